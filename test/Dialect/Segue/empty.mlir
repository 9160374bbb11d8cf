// RUN: segue-opt %s --canonicalize --split-input-file | FileCheck %s

// What has no elements is a constant; what is made of nothing is what nothing counts.

// CHECK-LABEL: @chain
func.func @chain(%x: tensor<0x5xf32>) -> tensor<5x0xbf16> {
  // CHECK-NEXT: %[[C:.*]] = segue.constant dense<> : tensor<5x0xbf16>
  // CHECK-NEXT: return %[[C]]
  %0 = segue.exp %x : tensor<0x5xf32>
  %1 = segue.transpose %0 [1, 0] : tensor<0x5xf32> -> tensor<5x0xf32>
  %2 = segue.cast %1 : tensor<5x0xf32> -> tensor<5x0xbf16>
  return %2 : tensor<5x0xbf16>
}

// -----

// CHECK-LABEL: @sums
func.func @sums(%x: tensor<0x5xf32>, %i: tensor<0xi64>) -> (tensor<5xf32>, tensor<5xf32>, tensor<3x5xf32>) {
  // CHECK-DAG: %[[ZEROS:.*]] = segue.constant dense<0.000000e+00> : tensor<5xf32>
  // CHECK-DAG: %[[NAN:.*]] = segue.constant dense<0x7FC00000> : tensor<5xf32>
  // CHECK-DAG: %[[TABLE:.*]] = segue.constant dense<0.000000e+00> : tensor<3x5xf32>
  // CHECK: return %[[ZEROS]], %[[NAN]], %[[TABLE]]
  %0 = segue.reduce sum %x dims [0] : tensor<0x5xf32> -> tensor<5xf32>
  %1 = segue.reduce mean %x dims [0] : tensor<0x5xf32> -> tensor<5xf32>
  %2 = segue.scatter_add %x[%i] : tensor<0x5xf32>, tensor<0xi64> -> tensor<3x5xf32>
  return %0, %1, %2 : tensor<5xf32>, tensor<5xf32>, tensor<3x5xf32>
}

// -----

// CHECK-LABEL: @products
func.func @products(%a: tensor<2x0xbf16>, %b: tensor<0x3xbf16>, %bias: tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xbf16>) {
  // CHECK-DAG: %[[ZEROS:.*]] = segue.constant dense<0.000000e+00> : tensor<2x3xf32>
  // CHECK-DAG: %[[CAST:.*]] = segue.cast %{{.*}} : tensor<3xf32> -> tensor<3xbf16>
  // CHECK-DAG: %[[ROWS:.*]] = segue.broadcast %[[CAST]] dims [1] : tensor<3xbf16> -> tensor<2x3xbf16>
  // CHECK: return %[[ZEROS]], %[[ROWS]]
  %0 = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<2x0xbf16>, tensor<0x3xbf16> -> tensor<2x3xf32>
  %1 = segue.dot_general %a, %b bias %bias : tensor<3xf32> batch [] x [] contract [1] x [0] : tensor<2x0xbf16>, tensor<0x3xbf16> -> tensor<2x3xbf16>
  return %0, %1 : tensor<2x3xf32>, tensor<2x3xbf16>
}

// -----

// CHECK-LABEL: @joins
// CHECK-SAME: %[[X:.*]]: tensor<2x3xi32>, %[[NONE:.*]]: tensor<0x3xi32>
func.func @joins(%x: tensor<2x3xi32>, %none: tensor<0x3xi32>) -> (tensor<2x3xi32>, tensor<4x3xi32>, tensor<2x3xi32>) {
  // CHECK-DAG: %[[TWICE:.*]] = segue.concat %[[X]], %[[X]] dim 0
  // CHECK-DAG: %[[PAD:.*]] = segue.constant dense<7> : tensor<2x3xi32>
  // CHECK: return %[[X]], %[[TWICE]], %[[PAD]]
  %0 = segue.concat %none, %x dim 0 : tensor<0x3xi32>, tensor<2x3xi32> -> tensor<2x3xi32>
  %part = segue.slice %x [2, 0] to [2, 3] by [1, 1] : tensor<2x3xi32> -> tensor<0x3xi32>
  %1 = segue.concat %x, %part, %x dim 0 : tensor<2x3xi32>, tensor<0x3xi32>, tensor<2x3xi32> -> tensor<4x3xi32>
  %2 = segue.pad %none low [1, 0] high [1, 0] interior [3, 0] value 7 : i32 : tensor<0x3xi32> -> tensor<2x3xi32>
  return %0, %1, %2 : tensor<2x3xi32>, tensor<4x3xi32>, tensor<2x3xi32>
}

// -----

// CHECK-LABEL: @attention
func.func @attention(%q: tensor<1x2x3x4xf32>, %k: tensor<1x2x0x4xf32>) -> (tensor<1x2x3x4xf32>, tensor<1x2x3xf32>) {
  // CHECK-DAG: %[[OUT:.*]] = segue.constant dense<0.000000e+00> : tensor<1x2x3x4xf32>
  // CHECK-DAG: %[[LSE:.*]] = segue.constant dense<0xFF800000> : tensor<1x2x3xf32>
  // CHECK: return %[[OUT]], %[[LSE]]
  %0, %1 = segue.attention %q, %k, %k scale 0.5 : tensor<1x2x3x4xf32>, tensor<1x2x0x4xf32> -> tensor<1x2x3xf32>
  return %0, %1 : tensor<1x2x3x4xf32>, tensor<1x2x3xf32>
}

// -----

// CHECK-LABEL: @convolutions
// CHECK-SAME: %[[BIAS:[a-z0-9]*]]: tensor<4xf32>)
func.func @convolutions(%x: tensor<1x2x0x3xf32>, %w: tensor<4x2x1x1xf32>, %g: tensor<0x4x3x3xf32>, %y: tensor<0x2x3x3xf32>, %bias: tensor<4xf32>)
    -> (tensor<1x4x2x3xf32>, tensor<4x2x1x1xf32>) {
  // CHECK-DAG: %[[IMAGE:.*]] = segue.broadcast %[[BIAS]] dims [1] : tensor<4xf32> -> tensor<1x4x2x3xf32>
  // CHECK-DAG: %[[WEIGHT:.*]] = segue.constant dense<0.000000e+00> : tensor<4x2x1x1xf32>
  // CHECK: return %[[IMAGE]], %[[WEIGHT]]
  %0 = segue.conv2d %x, %w bias %bias : tensor<4xf32> strides [1, 1] low [1, 0] high [1, 0] dilations [1, 1] groups 1 : tensor<1x2x0x3xf32>, tensor<4x2x1x1xf32> -> tensor<1x4x2x3xf32>
  %1 = segue.conv2d_weight_grad %g, %y strides [1, 1] low [0, 0] high [0, 0] dilations [1, 1] groups 1 : tensor<0x4x3x3xf32>, tensor<0x2x3x3xf32> -> tensor<4x2x1x1xf32>
  return %0, %1 : tensor<1x4x2x3xf32>, tensor<4x2x1x1xf32>
}

// -----

// A maximum of none has no value, and stays for whoever says so.
// CHECK-LABEL: @maximum
func.func @maximum(%x: tensor<0x5xf32>) -> tensor<5xf32> {
  // CHECK: segue.reduce max
  %0 = segue.reduce max %x dims [0] : tensor<0x5xf32> -> tensor<5xf32>
  return %0 : tensor<5xf32>
}
