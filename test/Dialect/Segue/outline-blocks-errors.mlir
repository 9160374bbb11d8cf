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

// -----

// expected-error @below {{`segue-outline-blocks` makes `@segment.0`, but the module has one}}
func.func @segment.0() { return }
func.func @forward(%x: tensor<4xf32> {segue.name = "x"}) -> (tensor<4xf32> {segue.name = "y"}) {
  %0 = segue.exp %x {segue.block = "h.0"} : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// Pieces are handed values by names; a cache that comes and goes under one name would be two of them.
// expected-error @below {{`segue-outline-blocks` would call two arguments of `@segment.1` "cache"; call the value of `@forward` that has this name otherwise}}
func.func @forward(%x: tensor<4xf32> {segue.name = "cache"})
    -> (tensor<4xf32> {segue.name = "cache"}, tensor<4xf32> {segue.name = "y"}) {
  %0 = segue.exp %x {segue.block = "h.0"} : tensor<4xf32>
  %1 = segue.mul %0, %x {segue.block = "h.1"} : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
