// RUN: segue-opt %s --split-input-file --segue-training-pipeline="optimizer=adamw" --segue-layout-pipeline --segue-kernel-pipeline \
// RUN:   --segue-program-pipeline | FileCheck %s
// RUN: segue-opt %s --split-input-file --segue-training-pipeline="optimizer=none" --segue-layout-pipeline --segue-kernel-pipeline \
// RUN:   --segue-program-pipeline | FileCheck %s --implicit-check-not=grad_norm_squares --check-prefix=NONE

// NONE: prog.program @backward

// The square of each gradient comes behind the last command that touches it, in its block, by the kernel of @grad_norm; they are put
// together in the order of the parameters.
// CHECK-LABEL: prog.program @backward
// CHECK-SAME: #prog.value<"grad.w1" gradient {{.*}}#prog.value<"grad.w2" gradient {{.*}}#prog.value<"grad_norm_squares" output tensor<2xf32>
// CHECK: ^bb0({{.*}}, %[[G1:out[_0-9]*]]: memref<6x16xf32>, %[[G2:out[_0-9]*]]: memref<16x6xf32>, {{.*}}, %[[SQUARES:out[_0-9]*]]: memref<2xf32>):
// CHECK: prog.block "b1" {
// CHECK: %[[VIEW:[0-9]+]] = prog.view %[[G2]]
// CHECK-NEXT: prog.matmul {{.*}} into %[[VIEW]]
// CHECK-NEXT: prog.launch @[[$SQUARE:[a-z0-9_]+]](%[[G2]], %[[TWO:[0-9]+]])
// CHECK-NEXT: }
// CHECK-NEXT: prog.block "b0" {
// CHECK: prog.launch @[[$SQUARE]](%[[G1]], %[[ONE:[0-9]+]])
// CHECK-NEXT: }
// CHECK-NEXT: prog.launch @[[$ALL:[a-z0-9_]+]](%[[ONE]], %[[TWO]], %[[SQUARES]])
// CHECK-LABEL: prog.program @grad_norm
// CHECK: prog.launch @[[$SQUARE]](
// CHECK: prog.launch @[[$SQUARE]](
// CHECK: prog.launch @[[$ALL]](
func.func @forward(%x: tensor<8x6xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w1: tensor<6x16xf32> {segue.name = "w1", segue.role = #segue.role<parameter>},
                   %w2: tensor<16x6xf32> {segue.name = "w2", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w1 batch [] x [] contract [1] x [0] {segue.block = "b0"} : tensor<8x6xf32>, tensor<6x16xf32> -> tensor<8x16xf32>
  %1 = segue.tanh %0 {segue.block = "b0"} : tensor<8x16xf32>
  %2 = segue.dot_general %1, %w2 batch [] x [] contract [1] x [0] {segue.block = "b1"} : tensor<8x16xf32>, tensor<16x6xf32> -> tensor<8x6xf32>
  %3 = segue.mul %2, %2 {segue.block = "b1"} : tensor<8x6xf32>
  %4 = segue.reduce sum %3 dims [0, 1] {segue.block = "b1"} : tensor<8x6xf32> -> tensor<f32>
  return %4 : tensor<f32>
}
