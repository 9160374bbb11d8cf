// RUN: segue-opt %s --segue-to-prog --split-input-file --verify-diagnostics

// Ops that are not commands say which passes are missing.
func.func @primitive(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{'segue.exp' op is not a command of a program; run segue-expand, segue-form-kernels and segue-outline-kernels first}}
  %y = segue.exp %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// Programs have bodies.
// expected-error @below {{function @declared must have a body of one block to become a program}}
func.func private @declared(tensor<4xf32>)

// -----

// A signature holds tensors.
// expected-error @below {{argument 0 of @number has type 'i64', which no program can hold}}
func.func @number(%x: i64) {
  return
}

// -----

// A kernel says what it needs.
module {
module @kernels {
  // expected-error @below {{kernel @k needs a body, buffers, a range, and the attributes `segue.outputs`, `segue.fixed_bytes` and `segue.bytes_per_unit`}}
  func.func @k(%x: memref<?xf32>, %b: index, %e: index) -> i64 {
    %0 = arith.constant 0 : i64
    return %0 : i64
  }
}
}
