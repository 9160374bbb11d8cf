// RUN: segue-opt %s --verify-diagnostics --split-input-file -o /dev/null

func.func @const_type(%y: tensor<2xf32>) {
  // expected-note @-1 {{prior use here}}
  // expected-error @below {{use of value '%y' expects different type than prior uses: 'tensor<3xf32>' vs 'tensor<2xf32>'}}
  check.expect_close_const %y, dense<1.0> : tensor<3xf32>
  return
}

// -----

func.func @types(%x: tensor<2xf32>, %y: tensor<3xf32>) {
  // expected-error @below {{'check.expect_eq' op requires all operands to have the same type}}
  "check.expect_eq"(%x, %y) : (tensor<2xf32>, tensor<3xf32>) -> ()
  return
}
