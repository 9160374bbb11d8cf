// RUN: segue-opt %s --segue-assign-layouts=frozen-storage=int8_row | FileCheck %s
// RUN: not segue-opt %s --segue-assign-layouts=frozen-storage=int8 2>&1 | FileCheck %s --check-prefix=WRONG

// WRONG: error: `frozen-storage` is `int8`, but must be `int8_row`, `fp8_e4m3_row`, `fp8_e5m2_row`, `int4_group32` or `int4_group64`

// A frozen matrix that is the right operand of products alone, transposed or
// not, in all functions that take it, is stored so. Not: a trained one, a
// vector, one that another op reads too, one whose source has said how it lies.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: %arg0: tensor<4x8xf32> {segue.name = 
// CHECK-SAME: %arg1: tensor<8x8xf32> {segue.layout = #segue.layout<space = device_dram, storage = int8_row>
// CHECK-SAME: %arg2: tensor<8x8xf32> {segue.name = 
// CHECK-SAME: %arg3: tensor<8x8xf32> {segue.name = 
// CHECK-SAME: %arg4: tensor<8x8xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 8]>
// CHECK-SAME: %arg5: tensor<8xf32> {segue.name = 
func.func @forward(
    %x: tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
    %w: tensor<8x8xf32> {segue.name = "base.weight", segue.role = #segue.role<frozen>},
    %t: tensor<8x8xf32> {segue.name = "trained.weight", segue.role = #segue.role<parameter>},
    %r: tensor<8x8xf32> {segue.name = "read.weight", segue.role = #segue.role<frozen>},
    %s: tensor<8x8xf32> {segue.name = "said.weight", segue.role = #segue.role<frozen>, segue.layout = #segue.layout<strides = [1, 8]>},
    %b: tensor<8xf32> {segue.name = "bias", segue.role = #segue.role<frozen>})
    -> (tensor<4x8xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %wt = segue.transpose %w [1, 0] : tensor<8x8xf32> -> tensor<8x8xf32>
  %0 = segue.dot_general %x, %wt bias %b : tensor<8xf32> batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
  %1 = segue.dot_general %0, %t batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
  %n = segue.neg %r : tensor<8x8xf32>
  %2 = segue.dot_general %1, %n batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
  %3 = segue.dot_general %2, %r batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
  %4 = segue.dot_general %3, %s batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}

// CHECK-LABEL: func.func @backward
// CHECK-SAME: %arg0: tensor<8x8xf32> {segue.layout = #segue.layout<space = device_dram, storage = int8_row>
func.func @backward(%w: tensor<8x8xf32> {segue.name = "base.weight", segue.role = #segue.role<frozen>},
                    %dy: tensor<4x8xf32> {segue.name = "grad.y", segue.role = #segue.role<gradient>, segue.of = "y"})
    -> (tensor<4x8xf32> {segue.name = "grad.x", segue.role = #segue.role<gradient>, segue.of = "x"}) {
  %0 = segue.dot_general %dy, %w batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x8xf32> -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
