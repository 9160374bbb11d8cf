// RUN: segue-opt %s --segue-outline-blocks --verify-diagnostics --split-input-file

// expected-error @below {{`segue-outline-blocks` needs a function `@forward`, but the module has none}}
module {}

// -----

// Values go from piece to piece by name, and so does everything else.
// expected-error @below {{argument 0 of `@forward` has no `segue.name`, by which gradients are called}}
func.func @forward(%x: tensor<4xf32>) -> (tensor<4xf32> {segue.name = "y"}) {
  %0 = segue.exp %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
