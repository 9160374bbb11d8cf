// RUN: segue-opt %s --verify-roundtrip | FileCheck %s

// CHECK-LABEL: func.func @checks
func.func @checks(%a: tensor<4xi32>, %x: tensor<4xf32>, %y: tensor<2xf32>) {
  // CHECK: check.expect_eq %{{.*}}, %{{.*}} : tensor<4xi32>
  check.expect_eq %a, %a : tensor<4xi32>
  // CHECK: check.expect_close %{{.*}}, %{{.*}} {rtol = 1.000000e-04 : f64} : tensor<4xf32>
  check.expect_close %x, %x {rtol = 1.0e-4} : tensor<4xf32>
  // CHECK: check.expect_close_const %{{.*}}, dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>
  check.expect_close_const %y, dense<[1.0, 2.0]> : tensor<2xf32>
  return
}
