// RUN: segue-opt %s --split-input-file --segue-to-prog=explain=true 2>%t | FileCheck %s
// RUN: FileCheck %s --check-prefix=COST < %t
// RUN: segue-opt %s --split-input-file --segue-to-prog=choose-orders=false | FileCheck %s --check-prefix=ROWS

// A product that a kernel reads transposed and another product as it is: written
// by columns it is copied for neither. Each product across rows costs a sixteenth.
// COST: remark: @both: a temporary of 'tensor<64x32xf32>' lies in strides [1, 64], which moves 15360 bytes less than dense rows
// COST-NOT: remark
// CHECK-LABEL: prog.program @both
// CHECK: prog.launch @step(%[[T:[^,]*]],
// CHECK: prog.view %[[T]] offset 0 : memref<8192xi8> to memref<1x64x32xf32, strided<[64, 1, 64]>>
// CHECK-NOT: prog.to_layout
// ROWS-LABEL: prog.program @both
// ROWS-COUNT-1: prog.to_layout
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  func.func @both(%x: tensor<64x16xf32>, %w: tensor<16x32xf32>, %v: tensor<32x8xf32>) -> (tensor<32x64xf32>, tensor<64x8xf32>) {
    %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %t = segue.transpose %y [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %k = segue.launch @step(%t) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %z = segue.dot_general %y, %v batch [] x [] contract [1] x [0] : tensor<64x32xf32>, tensor<32x8xf32> -> tensor<64x8xf32>
    return %k, %z : tensor<32x64xf32>, tensor<64x8xf32>
  }
}

// -----

// Two kernels that want different orders: one pays, and rows stay. Narrow products
// are not turned, as their library may sum in another order then. What is joined
// is written where it is joined.
// COST-NOT: remark
// CHECK-LABEL: prog.program @rows
// CHECK-COUNT-1: prog.to_layout
// CHECK-LABEL: prog.program @narrow
// CHECK-COUNT-1: prog.to_layout
// CHECK-LABEL: prog.program @joined
// CHECK-NOT: prog.to_layout
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
    func.func @narrow_step(%p: memref<?xbf16>, %o: memref<?xbf16>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 2, 2>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  func.func @rows(%x: tensor<64x16xf32>, %w: tensor<16x32xf32>) -> (tensor<32x64xf32>, tensor<64x32xf32>) {
    %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %t = segue.transpose %y [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %k = segue.launch @step(%t) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %l = segue.launch @step(%y) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    return %k, %l : tensor<32x64xf32>, tensor<64x32xf32>
  }
  func.func @narrow(%x: tensor<64x16xbf16>, %w: tensor<16x32xbf16>, %v: tensor<32x8xbf16>) -> (tensor<32x64xbf16>, tensor<64x8xbf16>) {
    %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xbf16>, tensor<16x32xbf16> -> tensor<64x32xbf16>
    %t = segue.transpose %y [1, 0] : tensor<64x32xbf16> -> tensor<32x64xbf16>
    %k = segue.launch @narrow_step(%t) range 2048 grain 1 : (tensor<32x64xbf16>) -> tensor<32x64xbf16>
    %z = segue.dot_general %y, %v batch [] x [] contract [1] x [0] : tensor<64x32xbf16>, tensor<32x8xbf16> -> tensor<64x8xbf16>
    return %k, %z : tensor<32x64xbf16>, tensor<64x8xbf16>
  }
  func.func @joined(%x: tensor<64x16xf32>, %w: tensor<16x32xf32>, %v: tensor<1x64xf32>) -> tensor<33x64xf32> {
    %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %t = segue.transpose %y [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %k = segue.launch @step(%v) range 64 grain 1 : (tensor<1x64xf32>) -> tensor<1x64xf32>
    %c = segue.concat %t, %k dim 0 : tensor<32x64xf32>, tensor<1x64xf32> -> tensor<33x64xf32>
    return %c : tensor<33x64xf32>
  }
}
