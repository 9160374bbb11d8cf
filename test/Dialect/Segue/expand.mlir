// RUN: segue-opt %s --segue-expand | FileCheck %s

// A silu is one exponential and one division, and never cancels.
// CHECK-LABEL: func.func @silu
// CHECK: %[[N:.*]] = segue.neg %[[X:.*]] : tensor<4xf32>
// CHECK: %[[E:.*]] = segue.exp %[[N]]
// CHECK: %[[D:.*]] = segue.add %[[E]]
// CHECK: %[[Y:.*]] = segue.div %[[X]], %[[D]]
// CHECK: return %[[Y]]
func.func @silu(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = segue.silu %x : tensor<4xf32>
  return %y : tensor<4xf32>
}

// Narrow floats are computed in f32 and rounded once.
// CHECK-LABEL: func.func @narrow
// CHECK: segue.cast %{{.*}} : tensor<4xbf16> -> tensor<4xf32>
// CHECK-NOT: bf16
// CHECK: segue.cast %{{.*}} : tensor<4xf32> -> tensor<4xbf16>
// CHECK-NEXT: return
func.func @narrow(%x: tensor<4xbf16>) -> tensor<4xbf16> {
  %y = segue.sigmoid %x : tensor<4xbf16>
  return %y : tensor<4xbf16>
}

// The primitives belong to the block of the op that they stand for.
// CHECK-LABEL: func.func @block
// CHECK-COUNT-4: segue.block = "h.3"
func.func @block(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = segue.sigmoid %x {segue.block = "h.3"} : tensor<4xf32>
  return %y : tensor<4xf32>
}

// Library calls stay whole.
// CHECK-LABEL: func.func @library
// CHECK: segue.dot_general
func.func @library(%a: tensor<4x8xf32>, %b: tensor<8x2xf32>) -> tensor<4x2xf32> {
  %c = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x2xf32> -> tensor<4x2xf32>
  return %c : tensor<4x2xf32>
}
