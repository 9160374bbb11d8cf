// RUN: segue-opt %s --pass-pipeline='builtin.module(segue-expand,cse,canonicalize,func.func(segue-form-kernels),segue-outline-kernels)' | FileCheck %s

// Sizes are no part of an elementwise kernel: both parameters use one.
// CHECK-LABEL: func.func @sizes
// CHECK: segue.launch @[[$K:k[0-9a-z_]+]](%{{.*}}) range 300 grain 4096 {inPlace = array<i64: 0, 0>}
// CHECK: segue.launch @[[$K]](%{{.*}}) range 630 grain 4096
func.func @sizes(%p: tensor<300xf32>, %q: tensor<7x90xf32>) -> (tensor<300xf32>, tensor<7x90xf32>) {
  %a = segue.silu %p : tensor<300xf32>
  %b = segue.silu %q : tensor<7x90xf32>
  return %a, %b : tensor<300xf32>, tensor<7x90xf32>
}

// Nor is the number of rows.
// CHECK-LABEL: func.func @rows
// CHECK: segue.launch @[[$S:k[0-9a-z_]+]](%{{.*}}) range 20
// CHECK: segue.launch @[[$S]](%{{.*}}) range 6
func.func @rows(%x: tensor<4x5x16xf32>, %y: tensor<6x16xf32>) -> (tensor<4x5x16xf32>, tensor<6x16xf32>) {
  %a = segue.softmax %x dim 2 : tensor<4x5x16xf32>
  %b = segue.softmax %y dim 1 : tensor<6x16xf32>
  return %a, %b : tensor<4x5x16xf32>, tensor<6x16xf32>
}

// A result may take the place of any operand that is read at the same element,
// whether it is computed from it or not: all are read before one is stored.
// CHECK-LABEL: func.func @places
// CHECK: segue.launch @k{{[0-9a-z_]+}}(%arg0, %arg1) {{.*}}inPlace = array<i64: 0, 0, 0, 1, 1, 0, 1, 1>
func.func @places(%x: tensor<300xf32>, %g: tensor<300xf32>) -> (tensor<300xf32>, tensor<300xf32>) {
  %e = segue.exp %x : tensor<300xf32>
  %p = segue.mul %x, %g : tensor<300xf32>
  return %e, %p : tensor<300xf32>, tensor<300xf32>
}

// CHECK-LABEL: module @kernels
// CHECK: func.func @[[$K]](%{{.*}}: memref<?xf32>, %{{.*}}: memref<?xf32>, %{{.*}}: index, %{{.*}}: index) -> i64
// CHECK-SAME: segue.bytes_per_unit = array<i64: 4, 4>, segue.fixed_bytes = array<i64: 0, 0>, segue.flops_per_unit = {{[1-9][0-9]*}} : i64, segue.in_place = array<i64: 0, 0>, segue.outputs = 1
// CHECK: func.func @[[$S]]
// CHECK-SAME: segue.bytes_per_unit = array<i64: 64, 64>
// CHECK-NOT: memref.alloc(
// CHECK-NOT: memref.copy
