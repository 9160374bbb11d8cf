// RUN: segue-opt %s --pass-pipeline='builtin.module(func.func(segue-fuse-epilogues),canonicalize)' | FileCheck %s

// A linear layer with its bias and gelu is one op, in whatever order the addition was written; the matrix is read as it lies.
// CHECK-LABEL: func.func @layer
// CHECK-SAME: (%[[X:.*]]: tensor<2x3x4xf32>, %[[W:.*]]: tensor<8x4xf32>, %[[B:.*]]: tensor<8xf32>)
// CHECK: %[[Y:.*]] = segue.dot_gelu %[[X]], %[[W]] transposed bias %[[B]] : tensor<8xf32> : tensor<2x3x4xf32>, tensor<8x4xf32> -> tensor<2x3x8xf32>{{$}}
// CHECK-NEXT: return %[[Y]]
func.func @layer(%x: tensor<2x3x4xf32>, %w: tensor<8x4xf32>, %b: tensor<8xf32>) -> tensor<2x3x8xf32> {
  %t = segue.transpose %w [1, 0] : tensor<8x4xf32> -> tensor<4x8xf32>
  %d = segue.dot_general %x, %t batch [] x [] contract [2] x [0] : tensor<2x3x4xf32>, tensor<4x8xf32> -> tensor<2x3x8xf32>
  %r = segue.broadcast %b dims [2] : tensor<8xf32> -> tensor<2x3x8xf32>
  %s = segue.add %r, %d : tensor<2x3x8xf32>
  %y = segue.gelu tanh %s : tensor<2x3x8xf32>
  return %y : tensor<2x3x8xf32>
}

// Who reads the sums, as the derivative does, gets them beside the result; also before the gelu.
// CHECK-LABEL: func.func @sums
// CHECK: %[[Y:.*]], %[[S:.*]] = segue.dot_gelu %{{.*}}, %{{.*}} : tensor<3x4xbf16>, tensor<4x8xbf16> -> tensor<3x8xbf16>, tensor<3x8xbf16>
// CHECK-NEXT: %[[N:.*]] = segue.neg %[[S]]
// CHECK-NEXT: return %[[Y]], %[[S]], %[[N]]
func.func @sums(%x: tensor<3x4xbf16>, %w: tensor<4x8xbf16>) -> (tensor<3x8xbf16>, tensor<3x8xbf16>, tensor<3x8xbf16>) {
  %s = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<3x4xbf16>, tensor<4x8xbf16> -> tensor<3x8xbf16>
  %n = segue.neg %s : tensor<3x8xbf16>
  %y = segue.gelu tanh %s : tensor<3x8xbf16>
  return %y, %s, %n : tensor<3x8xbf16>, tensor<3x8xbf16>, tensor<3x8xbf16>
}

// Products read gelu's result, as they lie or turned; a kernel that reads it would make it on its way, so nothing is gained there.
// CHECK-LABEL: func.func @readers
// CHECK-COUNT-1: segue.dot_gelu
// CHECK-NOT: segue.dot_gelu
// CHECK: segue.gelu tanh
func.func @readers(%x: tensor<3x4xf32>, %w: tensor<4x8xf32>, %m: tensor<3x8xf32>) -> (tensor<8x8xf32>, tensor<3x8xf32>) {
  %s = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x8xf32>
  %y = segue.gelu tanh %s : tensor<3x8xf32>
  %t = segue.transpose %y [1, 0] : tensor<3x8xf32> -> tensor<8x3xf32>
  %p = segue.dot_general %t, %y batch [] x [] contract [1] x [0] : tensor<8x3xf32>, tensor<3x8xf32> -> tensor<8x8xf32>
  %q = segue.dot_general %m, %p batch [] x [] contract [1] x [0] : tensor<3x8xf32>, tensor<8x8xf32> -> tensor<3x8xf32>
  %z = segue.gelu tanh %q : tensor<3x8xf32>
  %d = segue.mul %z, %m : tensor<3x8xf32>
  return %p, %d : tensor<8x8xf32>, tensor<3x8xf32>
}

// What the library does not take stays as it is: erf; columns in no multiple of 8; a
// batch of matrices; a bias along rows; f64; sums of another type than the operands.
// CHECK-LABEL: func.func @others
// CHECK-NOT: segue.dot_gelu
func.func @others(%x: tensor<3x4xf32>, %w: tensor<4x8xf32>, %n: tensor<4x6xf32>, %a: tensor<2x3x4xf32>, %m: tensor<2x4x8xf32>,
                  %b: tensor<3xf32>, %f: tensor<3x4xf64>, %e: tensor<4x8xf64>, %h: tensor<3x4xbf16>, %v: tensor<4x8xbf16>)
    -> (tensor<3x8xf32>, tensor<3x6xf32>, tensor<2x3x8xf32>, tensor<3x8xf32>, tensor<3x8xf64>, tensor<3x8xf32>) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x8xf32>
  %1 = segue.gelu erf %0 : tensor<3x8xf32>
  %2 = segue.dot_general %x, %n batch [] x [] contract [1] x [0] : tensor<3x4xf32>, tensor<4x6xf32> -> tensor<3x6xf32>
  %3 = segue.gelu tanh %2 : tensor<3x6xf32>
  %4 = segue.dot_general %a, %m batch [0] x [0] contract [2] x [1] : tensor<2x3x4xf32>, tensor<2x4x8xf32> -> tensor<2x3x8xf32>
  %5 = segue.gelu tanh %4 : tensor<2x3x8xf32>
  %6 = segue.broadcast %b dims [0] : tensor<3xf32> -> tensor<3x8xf32>
  %7 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x8xf32>
  %8 = segue.add %7, %6 : tensor<3x8xf32>
  %9 = segue.gelu tanh %8 : tensor<3x8xf32>
  %10 = segue.dot_general %f, %e batch [] x [] contract [1] x [0] : tensor<3x4xf64>, tensor<4x8xf64> -> tensor<3x8xf64>
  %11 = segue.gelu tanh %10 : tensor<3x8xf64>
  %12 = segue.dot_general %h, %v batch [] x [] contract [1] x [0] : tensor<3x4xbf16>, tensor<4x8xbf16> -> tensor<3x8xf32>
  %13 = segue.gelu tanh %12 : tensor<3x8xf32>
  return %1, %3, %5, %9, %11, %13 : tensor<3x8xf32>, tensor<3x6xf32>, tensor<2x3x8xf32>, tensor<3x8xf32>, tensor<3x8xf64>, tensor<3x8xf32>
}

// A weight that is stored as codes is read as such by the product alone.
// CHECK-LABEL: func.func @codes
// CHECK-NOT: segue.dot_gelu
func.func @codes(%x: tensor<3x64xf32>, %w: tensor<8x64xf32, #segue.layout<storage = int8_row>>) -> tensor<3x8xf32> {
  %f = segue.to_layout %w : tensor<8x64xf32, #segue.layout<storage = int8_row>> -> tensor<8x64xf32>
  %s = segue.dot_general %x, %f batch [] x [] contract [1] x [1] : tensor<3x64xf32>, tensor<8x64xf32> -> tensor<3x8xf32>
  %y = segue.gelu tanh %s : tensor<3x8xf32>
  return %y : tensor<3x8xf32>
}
