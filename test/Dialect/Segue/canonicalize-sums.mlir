// RUN: segue-opt %s --canonicalize | FileCheck %s

// Folds that add in another order: equal but for rounding, so that they stand
// apart from canonicalize.mlir, which compares exactly.
// RUN: segue-opt %s --segue-check-equivalent="a=sum_of_sums b=sum"
// RUN: segue-opt %s --segue-check-equivalent="a=mean_of_means b=mean"

// CHECK-LABEL: func.func @sum_of_sums
// CHECK-NEXT: %[[R:.*]] = segue.reduce sum %{{.*}} dims [0, 2] : tensor<2x3x4xf32> -> tensor<3xf32>
// CHECK-NEXT: return %[[R]]
func.func @sum_of_sums(%x: tensor<2x3x4xf32>) -> tensor<3xf32> {
  %0 = segue.reduce sum %x dims [0] : tensor<2x3x4xf32> -> tensor<3x4xf32>
  %1 = segue.reduce sum %0 dims [1] : tensor<3x4xf32> -> tensor<3xf32>
  return %1 : tensor<3xf32>
}

func.func @sum(%x: tensor<2x3x4xf32>) -> tensor<3xf32> {
  %0 = segue.reduce sum %x dims [0, 2] : tensor<2x3x4xf32> -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// CHECK-LABEL: func.func @mean_of_means
// CHECK-NEXT: %[[R:.*]] = segue.reduce mean %{{.*}} dims [0, 1, 2] : tensor<2x3x4xf32> -> tensor<f32>
// CHECK-NEXT: return %[[R]]
func.func @mean_of_means(%x: tensor<2x3x4xf32>) -> tensor<f32> {
  %0 = segue.reduce mean %x dims [1] : tensor<2x3x4xf32> -> tensor<2x4xf32>
  %1 = segue.reduce mean %0 dims [0, 1] : tensor<2x4xf32> -> tensor<f32>
  return %1 : tensor<f32>
}

func.func @mean(%x: tensor<2x3x4xf32>) -> tensor<f32> {
  %0 = segue.reduce mean %x dims [0, 1, 2] : tensor<2x3x4xf32> -> tensor<f32>
  return %0 : tensor<f32>
}
