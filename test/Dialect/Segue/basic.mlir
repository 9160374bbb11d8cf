// RUN: segue-opt %s --verify-roundtrip | FileCheck %s

// CHECK-LABEL: func.func @elementwise
func.func @elementwise(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: segue.neg %{{.*}} : tensor<4x8xf32>
  %y = segue.neg %x : tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
