// RUN: segue-opt %s --segue-outline-blocks | FileCheck %s
// RUN: segue-compile %s --block-programs --optimizer=none --emit=prog --target=x86-64-v3 | FileCheck %s --check-prefix=PROG

// @forward stays, and its pieces do the same one after the other: what is
// before the blocks, two runs of "a" about one of "b", and what comes after.
// CHECK-LABEL: func.func @forward
// CHECK-LABEL: func.func @segment.0
// CHECK-SAME: %[[X:.*]]: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>}
// CHECK-SAME: -> (tensor<4xf32> {segue.name = "value.0", segue.role = #segue.role<output>})
// CHECK-NEXT: segue.exp %[[X]]
// CHECK-LABEL: func.func @segment.1
// CHECK-SAME: %[[V0:.*]]: tensor<4xf32> {segue.name = "value.0", segue.role = #segue.role<input>}
// CHECK-SAME: %[[W:.*]]: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<frozen>}
// CHECK-SAME: -> (tensor<4xf32> {segue.name = "value.1", segue.role = #segue.role<output>})
// A value that only its own segment reads leaves it not.
// CHECK: %[[M:.*]] = segue.mul %[[V0]], %[[W]] {segue.block = "a"}
// CHECK: segue.add %[[M]], %[[M]] {segue.block = "a"}
// CHECK-LABEL: func.func @segment.2
// CHECK-SAME: "value.1"
// CHECK-SAME: "value.2"
// The constant is read in two segments and stands in both.
// CHECK: segue.constant dense<2.000000e+00>
// CHECK: segue.block = "b"
// CHECK-LABEL: func.func @segment.3
// Two results: one is read on, one is the second output of the module.
// CHECK-SAME: segue.name = "value.2"
// CHECK-SAME: segue.name = "w"
// CHECK-SAME: -> (tensor<4xf32> {segue.name = "z", segue.role = #segue.role<output>})
// CHECK: segue.block = "a"
// CHECK-LABEL: func.func @segment.4
// CHECK-SAME: segue.name = "z", segue.role = #segue.role<input>
// CHECK-SAME: -> (tensor<4xf32> {segue.name = "y"
// CHECK: segue.constant dense<2.000000e+00>
// CHECK-NOT: func.func @segment.5

// PROG: prog.program @segment.1
// PROG: prog.block "a"
// PROG: prog.program @segment.4
// PROG-NOT: prog.block
func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<frozen>},
                   %p: tensor<4xf32> {segue.name = "p", segue.role = #segue.role<parameter>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<4xf32> {segue.name = "z", segue.role = #segue.role<output>}) {
  %two = segue.constant dense<2.0> : tensor<4xf32>
  %0 = segue.exp %x : tensor<4xf32>
  %1 = segue.mul %0, %w {segue.block = "a"} : tensor<4xf32>
  %2 = segue.add %1, %1 {segue.block = "a"} : tensor<4xf32>
  %3 = segue.mul %2, %two {segue.block = "b"} : tensor<4xf32>
  %4 = segue.mul %3, %w {segue.block = "a"} : tensor<4xf32>
  %5 = segue.mul %4, %p : tensor<4xf32>
  %6 = segue.mul %5, %two : tensor<4xf32>
  return %6, %4 : tensor<4xf32>, tensor<4xf32>
}
