// RUN: segue-opt %s --split-input-file --segue-choose-layouts | FileCheck %s
// RUN: segue-opt %s --split-input-file --segue-choose-layouts --segue-to-prog | FileCheck %s --check-prefix=PROG

// A kernel of backward reads the transpose of what a product of forward saves, in
// dense rows: laid by columns it is there already, and the product writes it so.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: -> (tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, segue.name = "saved.0"
// CHECK-LABEL: func.func @backward
// CHECK-SAME: %arg0: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, segue.name = "saved.0"
// PROG-LABEL: prog.program @forward
// PROG-NOT: prog.to_layout
// PROG-LABEL: prog.program @backward
// PROG-NOT: prog.to_layout
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  func.func @forward(%x: tensor<64x16xf32>, %w: tensor<16x32xf32>)
      -> (tensor<64x32xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>}) {
    %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    return %y : tensor<64x32xf32>
  }
  func.func @backward(%s: tensor<64x32xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>}) -> tensor<32x64xf32> {
    %t = segue.transpose %s [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %g = segue.launch @step(%t) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    return %g : tensor<32x64xf32>
  }
}

// -----

// A second kernel reads rows, one pays in either order; what the source lays
// itself is kept; a kernel writes dense rows only, so that forward would pay what
// backward gains. All three stay as they are.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: -> (tensor<64x32xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
// CHECK-SAME: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, tile = [8, 8]>, segue.name = "saved.1", segue.role = #segue.role<saved>},
// CHECK-SAME: tensor<64x32xf32> {segue.name = "saved.2", segue.role = #segue.role<saved>})
// PROG-LABEL: prog.program @forward
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  func.func @forward(%x: tensor<64x16xf32>, %w: tensor<16x32xf32>, %v: tensor<64x32xf32>)
      -> (tensor<64x32xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
          tensor<64x32xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>, segue.layout = #segue.layout<tile = [8, 8]>},
          tensor<64x32xf32> {segue.name = "saved.2", segue.role = #segue.role<saved>}) {
    %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %z = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %k = segue.launch @step(%v) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    return %y, %z, %k : tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>
  }
  func.func @backward(%s: tensor<64x32xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
                      %u: tensor<64x32xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>, segue.layout = #segue.layout<tile = [8, 8]>},
                      %k: tensor<64x32xf32> {segue.name = "saved.2", segue.role = #segue.role<saved>})
      -> (tensor<32x64xf32>, tensor<64x32xf32>, tensor<32x64xf32>, tensor<32x64xf32>) {
    %t = segue.transpose %s [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %a = segue.launch @step(%t) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %b = segue.launch @step(%s) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %l = segue.transpose %u [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %c = segue.launch @step(%l) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %m = segue.transpose %k [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %d = segue.launch @step(%m) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    return %a, %b, %c, %d : tensor<32x64xf32>, tensor<64x32xf32>, tensor<32x64xf32>, tensor<32x64xf32>
  }
}

// -----

// Through views, and of more dimensions: attention writes any order of heads and
// rows, and the kernel wants the heads first.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: {segue.layout = #segue.layout<space = device_dram, strides = [64, 8, 32, 1]>, segue.name = "saved.0"
// PROG-LABEL: prog.program @forward
// PROG-NOT: prog.to_layout
// PROG-LABEL: prog.program @backward
// PROG-NOT: prog.to_layout
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  func.func @forward(%q: tensor<2x2x4x8xf32>) -> (tensor<2x4x2x8xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>}) {
    %o, %l = segue.attention %q, %q, %q scale 0.5 : tensor<2x2x4x8xf32>, tensor<2x2x4x8xf32> -> tensor<2x2x4xf32>
    %t = segue.transpose %o [0, 2, 1, 3] : tensor<2x2x4x8xf32> -> tensor<2x4x2x8xf32>
    return %t : tensor<2x4x2x8xf32>
  }
  func.func @backward(%s: tensor<2x4x2x8xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>}) -> tensor<16x8xf32> {
    %t = segue.transpose %s [0, 2, 1, 3] : tensor<2x4x2x8xf32> -> tensor<2x2x4x8xf32>
    %r = segue.reshape %t : tensor<2x2x4x8xf32> -> tensor<16x8xf32>
    %g = segue.launch @step(%r) range 128 grain 1 : (tensor<16x8xf32>) -> tensor<16x8xf32>
    return %g : tensor<16x8xf32>
  }
}
