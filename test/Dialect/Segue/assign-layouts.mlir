// RUN: segue-opt %s --split-input-file --segue-assign-layouts | FileCheck %s

// What nobody asks for is left open; layouts of types move to the
// signature, and a conversion inside of the function goes.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: %arg0: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>}
// CHECK-SAME: %arg1: tensor<32x8xf32> {segue.layout = #segue.layout<space = device_dram, storage = int8_row>}
// CHECK-SAME: %arg2: tensor<8xf32>)
// CHECK-SAME: -> (tensor<64x8xf32> {segue.layout = #segue.layout<space = device_l1>})
// CHECK-NOT: segue.to_layout
// CHECK: %[[C:.*]] = segue.constant dense<1.000000e+00> : tensor<64x32xf32>
// CHECK: segue.add %arg0, %[[C]] : tensor<64x32xf32>
func.func @forward(%x: tensor<64x32xf32, #segue.layout<strides = [1, 64]>>,
                   %w: tensor<32x8xf32> {segue.layout = #segue.layout<storage = int8_row>}, %b: tensor<8xf32>)
    -> tensor<64x8xf32, #segue.layout<space = device_l1>> {
  %c = segue.constant dense<1.0> : tensor<64x32xf32, #segue.layout<strides = [1, 64]>>
  %s = segue.add %x, %c : tensor<64x32xf32, #segue.layout<strides = [1, 64]>>
  %0 = segue.to_layout %s : tensor<64x32xf32, #segue.layout<strides = [1, 64]>> -> tensor<64x32xf32>
  %1 = segue.dot_general %0, %w batch [] x [] contract [1] x [0] : tensor<64x32xf32>, tensor<32x8xf32> -> tensor<64x8xf32>
  %2 = segue.to_layout %1 : tensor<64x8xf32> -> tensor<64x8xf32, #segue.layout<space = device_l1>>
  return %2 : tensor<64x8xf32, #segue.layout<space = device_l1>>
}

// -----

// One tensor has one layout: the parameter in all programs, its new value over
// it, the input that backward takes again, what forward saves. The gradient
// that comes in is another tensor than the one that goes out under its name.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: %arg0: tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 4]>, segue.name = "x"
// CHECK-SAME: %arg1: tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram, tile = [4, 4]>, segue.name = "w"
// CHECK-SAME: -> (tensor<4x8xf32> {segue.name = "x"
func.func @forward(%x: tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.layout = #segue.layout<strides = [1, 4]>},
                   %w: tensor<4x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>, segue.layout = #segue.layout<tile = [4, 4]>})
    -> (tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<output>}) {
  %y = segue.mul %x, %w : tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
// CHECK-LABEL: func.func @backward
// CHECK-SAME: %arg0: tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 4]>, segue.name = "x"
// CHECK-SAME: %arg1: tensor<4x8xf32> {segue.name = "grad.x"
// CHECK-SAME: -> (tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 4]>, segue.name = "grad.x"
func.func @backward(%x: tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
                    %g: tensor<4x8xf32> {segue.name = "grad.x", segue.role = #segue.role<gradient>, segue.of = "x"})
    -> (tensor<4x8xf32, #segue.layout<strides = [1, 4]>> {segue.name = "grad.x", segue.role = #segue.role<gradient>, segue.of = "x"}) {
  %y = segue.mul %x, %g : tensor<4x8xf32>
  %z = segue.to_layout %y : tensor<4x8xf32> -> tensor<4x8xf32, #segue.layout<strides = [1, 4]>>
  return %z : tensor<4x8xf32, #segue.layout<strides = [1, 4]>>
}
// CHECK-LABEL: func.func @optimizer
// CHECK-SAME: %arg0: tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram, tile = [4, 4]>, segue.name = "w"
// CHECK-SAME: -> (tensor<4x8xf32> {segue.alias = 0 : i64, segue.layout = #segue.layout<space = device_dram, tile = [4, 4]>
func.func @optimizer(%w: tensor<4x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>, segue.alias = 0 : i64}) {
  %y = segue.neg %w : tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
