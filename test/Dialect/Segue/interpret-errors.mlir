// RUN: segue-opt %s --segue-interpret --split-input-file --verify-diagnostics -o /dev/null

// The first index that differs is named, with both values.
func.func @main() {
  %a = segue.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
  // expected-error @below {{'check.expect_close_const' op does not hold at [1, 0]: 3 and 3.5, difference -0.5}}
  check.expect_close_const %a, dense<[[1.0, 2.0], [3.5, 9.0]]> : tensor<2x2xf32>
  return
}

// -----

func.func @main() {
  %a = segue.constant dense<[9007199254740993]> : tensor<1xi64>
  %b = segue.constant dense<[9007199254740992]> : tensor<1xi64>
  // Integers are compared exactly, above 2^53 too.
  // expected-error @below {{'check.expect_eq' op does not hold at [0]: 9007199254740993 and 9007199254740992}}
  check.expect_eq %a, %b : tensor<1xi64>
  return
}

// -----

// NaN is not close to a number.
func.func @main() {
  %a = segue.constant dense<0x7FC00000> : tensor<1xf32>
  %b = segue.constant dense<1.0> : tensor<1xf32>
  // expected-error @below {{'check.expect_close' op does not hold at [0]: nan and 1}}
  check.expect_close %a, %b {atol = 1.0e9} : tensor<1xf32>
  return
}

// -----

func.func @main() {
  %table = segue.constant dense<0.0> : tensor<4x2xf32>
  %i = segue.constant dense<[3, 4]> : tensor<2xi64>
  // expected-error @below {{index 4 at position 1 lies outside of a table of 4 rows}}
  %0 = segue.gather %table[%i] : tensor<4x2xf32>, tensor<2xi64> -> tensor<2x2xf32>
  return
}

// -----

func.func @main() {
  %u = segue.constant dense<0.0> : tensor<1x2xf32>
  %i = segue.constant dense<[-1]> : tensor<1xi32>
  // expected-error @below {{index -1 at position 0 lies outside of a table of 4 rows}}
  %0 = segue.scatter_add %u[%i] : tensor<1x2xf32>, tensor<1xi32> -> tensor<4x2xf32>
  return
}

// -----

func.func @main() {
  %x = segue.constant dense<0.0> : tensor<1x3xf32>
  %t = segue.constant dense<[3]> : tensor<1xi64>
  // expected-error @below {{target of row 0 is 3, but there are 3 classes}}
  %l, %s = segue.cross_entropy %x, %t ignore_index -100 : tensor<1x3xf32>, tensor<1xi64> -> tensor<1xf32>
  return
}

// -----

// expected-error @below {{calls are nested deeper than 64}}
func.func @main() {
  func.call @main() : () -> ()
  return
}

// -----

func.func @main() {
  // expected-error @below {{cannot be interpreted}}
  %0 = arith.constant dense<1.0> : tensor<2xf32>
  return
}

// -----

// expected-error @below {{argument 0 is 'index'; only static tensors can be filled}}
func.func @main(%i: index) {
  return
}

// -----

// expected-error @below {{has no function `main` to interpret}}
module {
}

// -----

// expected-error @below {{cannot be interpreted: 'tensor<1099511627776xf32>' has more elements than 268435456}}
func.func @main(%x: tensor<1099511627776xf32>) { return }

// -----

func.func @main(%x: tensor<f32>) {
  // expected-error @below {{cannot be interpreted: 'tensor<1099511627776xf32>' has more elements than 268435456}}
  %0 = segue.broadcast %x dims [] : tensor<f32> -> tensor<1099511627776xf32>
  return
}

// -----

// Text may leave out the bytes of a resource; who reads them says so.
func.func @main() {
  // expected-error @below {{'segue.constant' op has a resource of 0 bytes for 'tensor<4xf32>'}}
  %0 = segue.constant dense_resource<left_out> : tensor<4xf32>
  return
}
