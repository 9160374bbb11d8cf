// RUN: segue-opt %s --segue-to-prog --split-input-file | FileCheck %s

// A transposed operand is a view; the result is written where it belongs, and
// the bias goes with the matmul.
// CHECK-LABEL: prog.program @forward inputs
// CHECK-SAME: [#prog.value<"x" input tensor<4x8xf32>>, #prog.value<"w" parameter tensor<2x8xf32>>, #prog.value<"b" parameter tensor<2xf32>>]
// CHECK-SAME: outputs [#prog.value<"y" output tensor<4x2xf32>>]
// CHECK-NEXT: ^bb0(%[[X:.*]]: memref<4x8xf32>, %[[W:.*]]: memref<2x8xf32>, %[[B:.*]]: memref<2xf32>, %[[Y:.*]]: memref<4x2xf32>):
// CHECK-NEXT: prog.phase forward {
// CHECK-NEXT: prog.block "h.0" {
// CHECK-NEXT: %[[A:.*]] = prog.view %[[X]] offset 0 : memref<4x8xf32> to memref<1x4x8xf32>
// CHECK-NEXT: %[[T:.*]] = prog.view %[[W]] offset 0 : memref<2x8xf32> to memref<1x8x2xf32, strided<[8, 1, 8]>>
// CHECK-NEXT: %[[C:.*]] = prog.view %[[Y]] offset 0 : memref<4x2xf32> to memref<1x4x2xf32>
// CHECK-NEXT: prog.matmul %[[A]], %[[T]] bias %[[B]] : memref<2xf32> into %[[C]]
// CHECK-NEXT: }
// CHECK-NEXT: }
// CHECK-NEXT: }
func.func @forward(%x: tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<2x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %b: tensor<2xf32> {segue.name = "b", segue.role = #segue.role<parameter>})
    -> (tensor<4x2xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %t = segue.transpose %w [1, 0] : tensor<2x8xf32> -> tensor<8x2xf32>
  %y = segue.dot_general %x, %t bias %b : tensor<2xf32> batch [] x [] contract [1] x [0] {segue.block = "h.0"}
    : tensor<4x8xf32>, tensor<8x2xf32> -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// -----

// Attention over slices of one projection: operands are views into it, the
// result goes straight to where the heads are joined. Nothing is copied.
// CHECK-LABEL: prog.program @attention inputs
// CHECK-NOT: prog.to_layout
// CHECK: prog.attention %{{.*}}, %{{.*}}, %{{.*}} into %{{.*}}, %{{.*}} causal scale 5.000000e-01 : memref<2x4x16x8xf32, strided<[1536, 8, 96, 1]>>, memref<2x4x16x8xf32, strided<[1536, 8, 96, 1]>>, memref<2x4x16x8xf32, strided<[1536, 8, 96, 1]>>, memref<2x4x16x8xf32, strided<[512, 8, 32, 1]>>, memref<2x4x16xf32>
// CHECK-NOT: prog.to_layout
// CHECK: prog.matmul
// CHECK-NOT: prog.to_layout
// CHECK: prog.program
func.func @attention(%qkv: tensor<2x16x96xf32>, %w: tensor<32x32xf32>) -> tensor<2x16x32xf32> {
  %q0 = segue.slice %qkv [0, 0, 0] to [2, 16, 32] by [1, 1, 1] : tensor<2x16x96xf32> -> tensor<2x16x32xf32>
  %k0 = segue.slice %qkv [0, 0, 32] to [2, 16, 64] by [1, 1, 1] : tensor<2x16x96xf32> -> tensor<2x16x32xf32>
  %v0 = segue.slice %qkv [0, 0, 64] to [2, 16, 96] by [1, 1, 1] : tensor<2x16x96xf32> -> tensor<2x16x32xf32>
  %q1 = segue.reshape %q0 : tensor<2x16x32xf32> -> tensor<2x16x4x8xf32>
  %k1 = segue.reshape %k0 : tensor<2x16x32xf32> -> tensor<2x16x4x8xf32>
  %v1 = segue.reshape %v0 : tensor<2x16x32xf32> -> tensor<2x16x4x8xf32>
  %q = segue.transpose %q1 [0, 2, 1, 3] : tensor<2x16x4x8xf32> -> tensor<2x4x16x8xf32>
  %k = segue.transpose %k1 [0, 2, 1, 3] : tensor<2x16x4x8xf32> -> tensor<2x4x16x8xf32>
  %v = segue.transpose %v1 [0, 2, 1, 3] : tensor<2x16x4x8xf32> -> tensor<2x4x16x8xf32>
  %o, %l = segue.attention %q, %k, %v causal scale 0.5 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
  %t = segue.transpose %o [0, 2, 1, 3] : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32>
  %r = segue.reshape %t : tensor<2x16x4x8xf32> -> tensor<2x16x32xf32>
  %y = segue.dot_general %r, %w batch [] x [] contract [2] x [1] : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
  return %y : tensor<2x16x32xf32>
}

// Its derivative: three gradients land in one buffer, each in its own columns.
// CHECK-LABEL: @attention_grad inputs
// CHECK-NOT: prog.to_layout
// CHECK: %[[DQ:.*]] = prog.view %[[D:out.*]] offset 0 : memref<2x16x96xf32> to memref<2x4x16x8xf32, strided<[1536, 8, 96, 1]>>
// CHECK: %[[DK:.*]] = prog.view %[[D]] offset 128 : memref<2x16x96xf32> to memref<2x4x16x8xf32, strided<[1536, 8, 96, 1]>>
// CHECK: %[[DV:.*]] = prog.view %[[D]] offset 256 : memref<2x16x96xf32> to memref<2x4x16x8xf32, strided<[1536, 8, 96, 1]>>
// CHECK: prog.attention_grad {{.*}} into %[[DQ]], %[[DK]], %[[DV]]
// CHECK-NOT: prog.to_layout
// CHECK: }
func.func @attention_grad(%q: tensor<2x4x16x8xf32>, %k: tensor<2x4x16x8xf32>, %v: tensor<2x4x16x8xf32>,
                          %o: tensor<2x4x16x8xf32>, %l: tensor<2x4x16xf32>, %g: tensor<2x4x16x8xf32>) -> tensor<2x16x96xf32> {
  %dq, %dk, %dv = segue.attention_grad %q, %k, %v out %o lse %l grad %g causal scale 0.5
    : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16xf32>
  %tq = segue.transpose %dq [0, 2, 1, 3] : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32>
  %tk = segue.transpose %dk [0, 2, 1, 3] : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32>
  %tv = segue.transpose %dv [0, 2, 1, 3] : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32>
  %rq = segue.reshape %tq : tensor<2x16x4x8xf32> -> tensor<2x16x32xf32>
  %rk = segue.reshape %tk : tensor<2x16x4x8xf32> -> tensor<2x16x32xf32>
  %rv = segue.reshape %tv : tensor<2x16x4x8xf32> -> tensor<2x16x32xf32>
  %d = segue.concat %rq, %rk, %rv dim 2 : tensor<2x16x32xf32>, tensor<2x16x32xf32>, tensor<2x16x32xf32> -> tensor<2x16x96xf32>
  return %d : tensor<2x16x96xf32>
}
