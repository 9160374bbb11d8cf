// RUN: segue-opt %s --pass-pipeline='builtin.module(func.func(canonicalize,segue-form-kernels),segue-outline-kernels)' --split-input-file --verify-diagnostics

// What has an answer for no elements is folded: see empty.mlir. A maximum has none, nor has a row of a table without rows.
func.func @forward(%x: tensor<0x5xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false})
    -> (tensor<5xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  // expected-error @+1 {{'segue.reduce' op computes with a value of type 'tensor<0x5xf32>', which has no elements, and that has no result}}
  %0 = segue.reduce max %x dims [0] : tensor<0x5xf32> -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @forward(%x: tensor<0x5xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %i: tensor<2xi64> {segue.name = "i", segue.role = #segue.role<input>})
    -> (tensor<2x5xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  // expected-error @+1 {{'segue.gather' op computes with a value of type 'tensor<0x5xf32>'}}
  %0 = segue.gather %x[%i] : tensor<0x5xf32>, tensor<2xi64> -> tensor<2x5xf32>
  return %0 : tensor<2x5xf32>
}
