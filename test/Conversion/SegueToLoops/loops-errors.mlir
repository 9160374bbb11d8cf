// RUN: segue-opt %s --segue-outline-kernels --split-input-file --verify-diagnostics

func.func @two_shapes(%x: tensor<4x16xf32>, %z: tensor<8x8xf32>) -> (tensor<4xf32>, tensor<8xf32>) {
  %y:2 = segue.fused(%a = %x : tensor<4x16xf32>, %b = %z : tensor<8x8xf32>) -> (tensor<4xf32>, tensor<8xf32>) {
    %s = segue.reduce sum %a dims [1] : tensor<4x16xf32> -> tensor<4xf32>
    // expected-error @+1 {{needs other loops than the ops before it in one kernel}}
    %t = segue.reduce sum %b dims [1] : tensor<8x8xf32> -> tensor<8xf32>
    segue.yield %s, %t : tensor<4xf32>, tensor<8xf32>
  }
  return %y#0, %y#1 : tensor<4xf32>, tensor<8xf32>
}

// -----

func.func @not_adjacent(%x: tensor<4x3x5xf32>) -> tensor<3xf32> {
  %y = segue.fused(%a = %x : tensor<4x3x5xf32>) -> (tensor<3xf32>) {
    // expected-error @+1 {{reduces dimensions that are not adjacent; run `segue-form-kernels` first}}
    %s = segue.reduce sum %a dims [0, 2] : tensor<4x3x5xf32> -> tensor<3xf32>
    segue.yield %s : tensor<3xf32>
  }
  return %y : tensor<3xf32>
}
