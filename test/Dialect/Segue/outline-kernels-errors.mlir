// RUN: segue-opt %s --pass-pipeline='builtin.module(func.func(segue-form-kernels),segue-outline-kernels)' --split-input-file --verify-diagnostics

// Tensors without elements have no code: an argument, a result of an op, one that only a product sees.
// expected-error @+1 {{a value of type 'tensor<0x5xf32>' has no elements; code is made for tensors of at least one}}
func.func @forward(%x: tensor<0x5xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %w: tensor<5x7xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<0x5xf32>, tensor<5x7xf32> -> tensor<0x7xf32>
  %1 = segue.reduce sum %0 dims [0, 1] : tensor<0x7xf32> -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

func.func @forward(%x: tensor<4x5xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  // expected-error @+1 {{a value of type 'tensor<4x0xi32>' has no elements}}
  %0 = segue.iota dim 1 : tensor<4x0xi32>
  %1 = segue.cast %0 : tensor<4x0xi32> -> tensor<4x0xf32>
  %2 = segue.reduce sum %1 dims [0, 1] : tensor<4x0xf32> -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// expected-error @+1 {{a value of type 'tensor<2x0xf32>' has no elements}}
func.func @forward(%x: tensor<2x0xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %w: tensor<0x3xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<2x3xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<2x0xf32>, tensor<0x3xf32> -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
