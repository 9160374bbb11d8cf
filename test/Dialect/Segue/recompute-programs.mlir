// RUN: segue-opt %s --segue-recompute-programs --split-input-file | FileCheck %s
// RUN: segue-opt %s --segue-recompute-programs=max-flops-per-byte=3 --split-input-file | FileCheck %s --check-prefix=FLOPS
// RUN: segue-opt %s --segue-recompute-programs=max-commands=0 --split-input-file | FileCheck %s --check-prefix=NONE
// RUN: not segue-opt %s --segue-recompute-programs=max-commands=-1 --split-input-file 2>&1 | FileCheck %s --check-prefix=ERROR

// ERROR: error: `segue-recompute-programs` needs `max-flops-per-byte` and `max-commands` of at least 0, but was given 16384 and -1
// NONE-NOT: @recompute

// What follows from other saved values is cloned, launches and calls as they
// are; it starts from the nearest ones. The two results of one launch come
// from one function. The first saved value follows from an input that backward
// does not take, and has none.
// CHECK-LABEL: func.func @backward
// CHECK: func.func @recompute.0(%[[N:.*]]: tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram>, segue.name = "saved.0", segue.role = #segue.role<saved>}, %[[W:.*]]: tensor<8x64xf32> {segue.name = "w", segue.role = #segue.role<parameter>}) -> (tensor<4x64xf32> {segue.name = "saved.1", segue.role = #segue.role<output>})
// CHECK-NEXT: %[[H:.*]] = segue.dot_general %[[N]], %[[W]]
// CHECK-NEXT: return %[[H]]
// CHECK: func.func @recompute.1(%[[H:.*]]: tensor<4x64xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>}) -> (tensor<4x64xf32> {segue.name = "saved.2", segue.role = #segue.role<output>}, tensor<4xf32> {segue.name = "saved.3", segue.role = #segue.role<output>})
// CHECK-NEXT: %[[A:.*]]:2 = segue.launch @act(%[[H]]) range 4 grain 1
// CHECK-NEXT: return %[[A]]#0, %[[A]]#1
// CHECK-NOT: @recompute.2

// The product takes 4 flops per byte that it gives, the launch 3.9.
// FLOPS: func.func @recompute.0(%{{.*}}: tensor<4x64xf32> {segue.name = "saved.1"
// FLOPS-NOT: @recompute.1
module {
func.func @forward(%x: tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<8x64xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x64xf32> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<4x8xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>, segue.layout = #segue.layout<space = device_dram>},
        tensor<4x64xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>},
        tensor<4x64xf32> {segue.name = "saved.2", segue.role = #segue.role<saved>},
        tensor<4xf32> {segue.name = "saved.3", segue.role = #segue.role<saved>}) {
  %n = segue.launch @norm(%x) range 4 grain 1 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %h = segue.dot_general %n, %w batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x64xf32> -> tensor<4x64xf32>
  %a, %s = segue.launch @act(%h) range 4 grain 1 : (tensor<4x64xf32>) -> (tensor<4x64xf32>, tensor<4xf32>)
  return %a, %n, %h, %a, %s : tensor<4x64xf32>, tensor<4x8xf32>, tensor<4x64xf32>, tensor<4x64xf32>, tensor<4xf32>
}
func.func @backward(%a: tensor<4x64xf32> {segue.name = "saved.2", segue.role = #segue.role<saved>},
                    %g: tensor<4x64xf32> {segue.name = "grad.y", segue.role = #segue.role<gradient>})
    -> tensor<4x64xf32> {
  return %g : tensor<4x64xf32>
}
module @kernels {
  func.func private @norm(memref<?xf32>, memref<?xf32>, index, index) -> i64 attributes {segue.flops_per_unit = 64 : i64}
  func.func private @act(memref<?xf32>, memref<?xf32>, memref<?xf32>, index, index) -> i64 attributes {segue.flops_per_unit = 1024 : i64}
}
}
