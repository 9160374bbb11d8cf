// RUN: segue-opt %s --split-input-file --segue-choose-layouts | FileCheck %s
// RUN: segue-opt %s --split-input-file --segue-choose-layouts --segue-to-prog | FileCheck %s --check-prefix=PROG
// RUN: segue-opt %s --split-input-file --segue-choose-layouts=explain=true -o /dev/null 2>&1 | FileCheck %s --check-prefix=COST

// A kernel of backward reads the transpose of what a product of forward saves, in
// dense rows: laid by columns it is there already, and the product writes it so,
// for a sixteenth of its bytes instead of a conversion.
// COST: remark: saved saved.0 of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram, strides = [1, 64]>, which moves 512 bytes in a step; dense rows move 16384
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
// COST: remark: saved saved.0 of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram>, which moves 16384 bytes in a step; dense rows move 16384
// COST-NOT: saved.1
// COST: remark: saved saved.2 of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram>, which moves 16384 bytes in a step; dense rows move 16384
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
// COST: remark: saved saved.0 of 'tensor<2x4x2x8xf32>' lies in #segue.layout<space = device_dram, strides = [64, 8, 32, 1]>, which moves 0 bytes in a step; dense rows move 1024
// CHECK-LABEL: func.func @forward
// CHECK-SAME: {segue.layout = #segue.layout<space = device_dram, strides = [64, 8, 32, 1]>, segue.name = "saved.0"
// CHECK-LABEL: func.func @backward
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

// -----

// Gradients that @backward hands on. The runtime sums those of micro-batches in
// dense rows: that is a reader too, so that one program that wants columns (grad.v)
// does not turn what two do (grad.w). One that comes in is another tensor.
// COST: remark: gradient grad.w of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram, strides = [1, 64]>, which moves 16896 bytes in a step; dense rows move 32768
// COST: remark: gradient grad.v of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram>, which moves 16384 bytes in a step; dense rows move 16384
// COST-NOT: remark
// CHECK-LABEL: func.func @backward
// CHECK-SAME: %arg2: tensor<64x32xf32> {segue.name = "grad.v"
// CHECK-SAME: -> (tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, segue.name = "grad.w"
// CHECK-SAME: tensor<64x32xf32> {segue.name = "grad.v"
// CHECK-LABEL: func.func @optimizer
// CHECK-SAME: %arg0: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, segue.name = "grad.w"
// CHECK-SAME: %arg1: tensor<64x32xf32> {segue.name = "grad.v"
// CHECK-LABEL: func.func @grad_norm
// CHECK-SAME: %arg0: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, segue.name = "grad.w"
// PROG-LABEL: prog.program @optimizer
// PROG-COUNT-1: prog.to_layout
// PROG-LABEL: prog.program @grad_norm
// PROG-NOT: prog.to_layout
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  func.func @backward(%x: tensor<64x16xf32>, %w: tensor<16x32xf32>, %seed: tensor<64x32xf32> {segue.name = "grad.v", segue.role = #segue.role<gradient>, segue.of = "v"})
      -> (tensor<64x32xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}, tensor<64x32xf32> {segue.name = "grad.v", segue.role = #segue.role<gradient>, segue.of = "v"}) {
    %g = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %h = segue.launch @step(%seed) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    return %g, %h : tensor<64x32xf32>, tensor<64x32xf32>
  }
  func.func @optimizer(%g: tensor<64x32xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}, %h: tensor<64x32xf32> {segue.name = "grad.v", segue.role = #segue.role<gradient>, segue.of = "v"}) -> (tensor<32x64xf32>, tensor<32x64xf32>) {
    %t0 = segue.transpose %g [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %r0 = segue.launch @step(%t0) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %t1 = segue.transpose %h [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %r1 = segue.launch @step(%t1) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    return %r0, %r1 : tensor<32x64xf32>, tensor<32x64xf32>
  }
  func.func @grad_norm(%g: tensor<64x32xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}) -> tensor<32x64xf32> {
    %t0 = segue.transpose %g [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %r0 = segue.launch @step(%t0) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    return %r0 : tensor<32x64xf32>
  }
}

// -----

// Outputs that are inputs of other programs. Tiles that a consumer declares: the
// producer of "a" would copy it anyway, and copies it to tiles; "b" is wanted in
// tiles twice, and is converted once instead; of "c", which one wants so, the
// conversion costs the same on either side, and stays between the programs. "d" is
// read by columns, and written so. "e" is the caller's.
// COST: remark: value a of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram, tile = [8, 8]>, which moves 16384 bytes in a step; dense rows move 32768
// COST: remark: value b of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram, tile = [8, 8]>, which moves 16384 bytes in a step; dense rows move 32768
// COST: remark: value c of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram>, which moves 16384 bytes in a step; dense rows move 16384
// COST: remark: value d of 'tensor<64x32xf32>' lies in #segue.layout<space = device_dram, strides = [1, 64]>, which moves 512 bytes in a step; dense rows move 16384
// COST-NOT: value e
// CHECK-LABEL: func.func @first
// CHECK-SAME: -> (tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, tile = [8, 8]>, segue.name = "a"
// CHECK-SAME: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, tile = [8, 8]>, segue.name = "b"
// CHECK-SAME: tensor<64x32xf32> {segue.name = "c"
// CHECK-SAME: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, segue.name = "d"
// CHECK-SAME: tensor<64x32xf32> {segue.name = "e"
// CHECK-LABEL: func.func @second
// CHECK-SAME: %arg3: tensor<64x32xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 64]>, segue.name = "d"
// PROG-LABEL: prog.program @first
// PROG: prog.to_layout %{{.*}} into %out as
// PROG-LABEL: prog.program @second
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  func.func @first(%x: tensor<64x16xf32>, %w: tensor<16x32xf32>, %u: tensor<32x64xf32>, %e: tensor<64x32xf32> {segue.name = "e", segue.role = #segue.role<input>})
      -> (tensor<64x32xf32> {segue.name = "a", segue.role = #segue.role<output>}, tensor<64x32xf32> {segue.name = "b", segue.role = #segue.role<output>}, tensor<64x32xf32> {segue.name = "c", segue.role = #segue.role<output>},
          tensor<64x32xf32> {segue.name = "d", segue.role = #segue.role<output>}, tensor<64x32xf32> {segue.name = "e", segue.role = #segue.role<output>}) {
    %a = segue.transpose %u [1, 0] : tensor<32x64xf32> -> tensor<64x32xf32>
    %b = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %c = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %d = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x16xf32>, tensor<16x32xf32> -> tensor<64x32xf32>
    %f = segue.launch @step(%e) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    return %a, %b, %c, %d, %f : tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>
  }
  func.func @second(%a: tensor<64x32xf32> {segue.name = "a", segue.role = #segue.role<input>, segue.layout = #segue.layout<tile = [8, 8]>}, %b: tensor<64x32xf32> {segue.name = "b", segue.role = #segue.role<input>, segue.layout = #segue.layout<tile = [8, 8]>},
                    %c: tensor<64x32xf32> {segue.name = "c", segue.role = #segue.role<input>, segue.layout = #segue.layout<tile = [8, 8]>}, %d: tensor<64x32xf32> {segue.name = "d", segue.role = #segue.role<input>}) -> (tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<32x64xf32>) {
    %p = segue.launch @step(%a) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %q = segue.launch @step(%b) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %r = segue.launch @step(%c) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %t0 = segue.transpose %d [1, 0] : tensor<64x32xf32> -> tensor<32x64xf32>
    %r0 = segue.launch @step(%t0) range 2048 grain 1 : (tensor<32x64xf32>) -> tensor<32x64xf32>
    return %p, %q, %r, %r0 : tensor<64x32xf32>, tensor<64x32xf32>, tensor<64x32xf32>, tensor<32x64xf32>
  }
  func.func @third(%b: tensor<64x32xf32> {segue.name = "b", segue.role = #segue.role<input>, segue.layout = #segue.layout<tile = [8, 8]>}, %e: tensor<64x32xf32> {segue.name = "e", segue.role = #segue.role<input>}) -> tensor<64x32xf32> {
    %p = segue.launch @step(%b) range 2048 grain 1 : (tensor<64x32xf32>) -> tensor<64x32xf32>
    return %p : tensor<64x32xf32>
  }
}
