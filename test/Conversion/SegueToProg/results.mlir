// RUN: segue-opt %s --segue-to-prog --split-input-file | FileCheck %s

// An argument and a value that is returned twice are copied; the first return
// of a value is written by its producer.
// CHECK-LABEL: prog.program @twice
// CHECK: ^bb0(%[[X:.*]]: memref<4x4xf32>, %[[A:.*]]: memref<4x4xf32>, %[[B:.*]]: memref<4x4xf32>, %[[C:.*]]: memref<4x4xf32>):
// CHECK: prog.matmul
// CHECK-NEXT: prog.to_layout %[[A]] into %[[B]]
// CHECK-NEXT: prog.to_layout %[[X]] into %[[C]]
func.func @twice(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %y = segue.dot_general %x, %x batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %y, %y, %x : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// -----

// A transposed result of a matmul is written as the turned product, not copied.
// CHECK-LABEL: prog.program @turned
// CHECK-NOT: prog.to_layout
// CHECK: prog.matmul %{{.*}}, %{{.*}} into %{{.*}} : memref<1x2x8xf32, strided<[16, 1, 2]>>, memref<1x8x4xf32, strided<[32, 1, 8]>>, memref<1x2x4xf32, strided<[4, 4, 1]>>
// CHECK-NOT: prog.to_layout
func.func @turned(%x: tensor<4x8xf32>, %w: tensor<8x2xf32>) -> tensor<2x4xf32> {
  %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x2xf32> -> tensor<4x2xf32>
  %t = segue.transpose %y [1, 0] : tensor<4x2xf32> -> tensor<2x4xf32>
  return %t : tensor<2x4xf32>
}

// -----

// A padded product: the buffer is filled first, the product goes inside.
// CHECK-LABEL: prog.program @padded
// CHECK: prog.fill %[[Y:out]] with [0, 0, 0, 0] : memref<4x5xf32>
// CHECK: %[[C:.*]] = prog.view %[[Y]] offset 8 : memref<4x5xf32> to memref<1x4x2xf32, strided<[20, 5, 1]>>
// CHECK-NEXT: prog.matmul %{{.*}}, %{{.*}} into %[[C]]
// CHECK-NOT: prog.to_layout
func.func @padded(%x: tensor<4x8xf32>, %w: tensor<8x2xf32>) -> tensor<4x5xf32> {
  %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x2xf32> -> tensor<4x2xf32>
  %p = segue.pad %y low [0, 2] high [0, 1] interior [0, 0] value 0.0 : f32 : tensor<4x2xf32> -> tensor<4x5xf32>
  return %p : tensor<4x5xf32>
}

// -----

// A slice that is a result of its own, and a concat of arguments, are copies.
// CHECK-LABEL: prog.program @copies
// CHECK: %[[S:.*]] = prog.view %[[X:in]] offset 8 : memref<4x4xf32> to memref<4x2xf32, strided<[4, 1]>>
// CHECK-NEXT: prog.to_layout %[[S]] into %{{.*}}
// CHECK-COUNT-2: prog.to_layout %[[X]] into
// CHECK-NOT: prog.to_layout
func.func @copies(%x: tensor<4x4xf32>) -> (tensor<4x2xf32>, tensor<8x4xf32>) {
  %s = segue.slice %x [0, 2] to [4, 4] by [1, 1] : tensor<4x4xf32> -> tensor<4x2xf32>
  %c = segue.concat %x, %x dim 0 : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<8x4xf32>
  return %s, %c : tensor<4x2xf32>, tensor<8x4xf32>
}

// -----

// Constants lie in a segment, equal ones once; a splat result is filled.
// CHECK: prog.segment @segment0 constants alignment 64 dense_resource<segment0> : tensor<16xi8>
// CHECK-LABEL: prog.program @constants
// CHECK: prog.constant @segment0 offset 0 : memref<16xi8>
// CHECK-NOT: prog.constant
// CHECK: prog.fill %{{.*}} with [0, 0, -128, 63] : memref<3xf32>
func.func @constants() -> (tensor<4xf32>, tensor<2x2xf32>, tensor<3xf32>) {
  %a = segue.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %b = segue.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
  %c = segue.constant dense<1.0> : tensor<3xf32>
  return %a, %b, %c : tensor<4xf32>, tensor<2x2xf32>, tensor<3xf32>
}

// -----

// An output over an input is written in place only where nothing reads the
// input afterwards and the kernel allows it: @late reads %p once more, so that
// its new value waits in a temporary.
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  // CHECK: prog.kernel @step arguments 2 outputs 1 fixed_bytes [0, 0] bytes_per_unit [4, 4] hash
  // CHECK: prog.program @optimizer
  // CHECK-SAME: aliases [#prog.alias<output 0 = input 0 required>]
  // CHECK: ^bb0(%[[P:.*]]: memref<4xf32>, %[[O:.*]]: memref<4xf32>):
  // CHECK-NEXT: prog.phase optimizer {
  // CHECK-NEXT: prog.launch @step(%[[P]], %[[O]]) range 4 grain 4 in_place [0, 1] : memref<4xf32>, memref<4xf32>
  // CHECK-NEXT: }
  func.func @optimizer(%p: tensor<4xf32> {segue.name = "p"}) -> (tensor<4xf32> {segue.name = "p", segue.alias = 0 : i64}) {
    %0 = segue.launch @step(%p) range 4 grain 4 {inPlace = array<i64: 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  // CHECK: prog.program @late
  // CHECK: ^bb0(%[[P:.*]]: memref<4xf32>, %[[O:.*]]: memref<4xf32>, %[[Q:.*]]: memref<4xf32>):
  // CHECK: %[[T:.*]] = prog.alloc of f32 : memref<16xi8>
  // CHECK: prog.launch @step(%[[P]], %[[T]])
  // CHECK-NEXT: prog.launch @step(%[[P]], %[[Q]])
  // CHECK-NEXT: %[[V:.*]] = prog.view %[[T]] offset 0 : memref<16xi8> to memref<4xf32>
  // CHECK-NEXT: prog.to_layout %[[V]] into %[[O]]
  func.func @late(%p: tensor<4xf32> {segue.name = "p"})
      -> (tensor<4xf32> {segue.name = "p", segue.alias = 0 : i64}, tensor<4xf32>) {
    %0 = segue.launch @step(%p) range 4 grain 4 {inPlace = array<i64: 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = segue.launch @step(%p) range 4 grain 4 : (tensor<4xf32>) -> tensor<4xf32>
    return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }
}

// -----

// What forward saves: told when forward is done with it (%a is read by the
// second matmul, in another block), in the order in which backward wants it (%b
// before %a), restored before the first use, freed after the last.
// CHECK-LABEL: prog.program @forward
// CHECK-SAME: save_points [#prog.save_point<value = 0, backward_input = 0, order = 1, bytes = 64, recompute_flops = 32, block = "h.0">, #prog.save_point<value = 1, backward_input = 1, order = 0, bytes = 64>]
// CHECK: prog.block "h.0" {
// CHECK: prog.matmul
// CHECK-NOT: prog.save
// CHECK: prog.matmul %[[A:[^,]*]], %{{.*}} into %[[B:[^ ]*]] :
// CHECK-DAG: prog.save %out : memref<4x4xf32>
// CHECK-DAG: prog.save %out_0 : memref<4x4xf32>
func.func @forward(%x: tensor<4x4xf32>)
    -> (tensor<4x4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>, segue.recompute_flops = 32 : i64, segue.block = "h.0"},
        tensor<4x4xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>}) {
  %a = segue.dot_general %x, %x batch [] x [] contract [1] x [0] {segue.block = "h.0"} : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  %b = segue.dot_general %a, %x batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %a, %b : tensor<4x4xf32>, tensor<4x4xf32>
}
// CHECK-LABEL: prog.program @backward
// CHECK: ^bb0(%[[A:.*]]: memref<4x4xf32>, %[[B:.*]]: memref<4x4xf32>, %{{.*}}: memref<4x4xf32>):
// CHECK: prog.phase backward {
// CHECK: prog.restore %[[B]]
// CHECK: prog.matmul
// CHECK-NEXT: prog.free %[[B]]
// CHECK: prog.restore %[[A]]
// CHECK: prog.matmul
// CHECK-NEXT: prog.free %[[A]]
func.func @backward(%a: tensor<4x4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
                    %b: tensor<4x4xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>}) -> tensor<4x4xf32> {
  %0 = segue.dot_general %b, %b batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  %1 = segue.dot_general %0, %a batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}

// -----

// What computes saved values again is a program of phase backward that restores
// nothing. @recompute.1 needs %a, which backward has finished with when it wants
// %c, and is left out; a parameter is there at any time.
// CHECK-LABEL: prog.program @forward
// CHECK-SAME: save_points [#prog.save_point<value = 0, backward_input = 0, order = 0, bytes = 64>, #prog.save_point<value = 1, backward_input = 1, order = 1, bytes = 64, recompute = @recompute.0>, #prog.save_point<value = 2, backward_input = 2, order = 2, bytes = 64>]
// CHECK-LABEL: prog.program @recompute.0 inputs [#prog.value<"saved.2" saved tensor<4x4xf32>>, #prog.value<"w" parameter tensor<4x4xf32>>] outputs [#prog.value<"saved.1" output tensor<4x4xf32>>]
// CHECK: prog.phase backward {
// CHECK-NEXT: prog.view
// CHECK-NOT: prog.restore
// CHECK: prog.matmul
// CHECK-NOT: prog.save
// CHECK-NOT: @recompute.1
func.func @forward(%w: tensor<4x4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
        tensor<4x4xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>},
        tensor<4x4xf32> {segue.name = "saved.2", segue.role = #segue.role<saved>}) {
  %a = segue.dot_general %w, %w batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  %c = segue.dot_general %a, %w batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  %b = segue.dot_general %c, %w batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %a, %b, %c : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
func.func @backward(%a: tensor<4x4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
                    %b: tensor<4x4xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>},
                    %c: tensor<4x4xf32> {segue.name = "saved.2", segue.role = #segue.role<saved>}) -> tensor<4x4xf32> {
  %0 = segue.dot_general %a, %a batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  %1 = segue.dot_general %0, %b batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  %2 = segue.dot_general %1, %c batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %2 : tensor<4x4xf32>
}
func.func @recompute.0(%c: tensor<4x4xf32> {segue.name = "saved.2", segue.role = #segue.role<saved>},
                       %w: tensor<4x4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x4xf32> {segue.name = "saved.1", segue.role = #segue.role<output>}) {
  %b = segue.dot_general %c, %w batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %b : tensor<4x4xf32>
}
func.func @recompute.1(%a: tensor<4x4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
                       %w: tensor<4x4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x4xf32> {segue.name = "saved.2", segue.role = #segue.role<output>}) {
  %c = segue.dot_general %a, %w batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %c : tensor<4x4xf32>
}

// -----

// A parameter that backward writes over before the saved value is wanted is no input to
// compute it from.
// CHECK-LABEL: prog.program @forward
// CHECK-SAME: save_points [#prog.save_point<value = 0, backward_input = 0, order = 1, bytes = 64>, #prog.save_point<value = 1, backward_input = 1, order = 0, bytes = 64>]
// CHECK-LABEL: prog.program @backward
// CHECK-NOT: @recompute.0
func.func @forward(%w: tensor<4x4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
        tensor<4x4xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>}) {
  %a = segue.dot_general %w, %w batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  %b = segue.dot_general %a, %w batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %a, %b : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func @backward(%a: tensor<4x4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
                    %b: tensor<4x4xf32> {segue.name = "saved.1", segue.role = #segue.role<saved>},
                    %w: tensor<4x4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x4xf32> {segue.alias = 2 : i64, segue.name = "w", segue.role = #segue.role<parameter>}, tensor<4x4xf32>) {
  %0 = segue.dot_general %b, %b batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  %1 = segue.dot_general %0, %a batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func @recompute.0(%w: tensor<4x4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x4xf32> {segue.name = "saved.0", segue.role = #segue.role<output>}) {
  %a = segue.dot_general %w, %w batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
  return %a : tensor<4x4xf32>
}

// -----

// Inputs in tiles are unpacked once, where they are first read; an output in
// tiles is packed at the end. A product reads a weight of codes as it lies. A
// layout may stand in the type or beside it.
// CHECK-LABEL: prog.program @packed
// CHECK-SAME: #prog.value<"x" input tensor<20x24xf32, #segue.layout<space = device_dram, tile = [8, 16]>>>
// CHECK-SAME: #prog.value<"w" frozen tensor<24x8xf32, #segue.layout<space = device_dram, storage = int8_row>>>
// CHECK: ^bb0(%[[X:.*]]: memref<3072xi8>, %[[W:.*]]: memref<288xi8>, %[[Y:.*]]: memref<640xi8>):
// CHECK-COUNT-2: prog.alloc
// CHECK-NOT: prog.alloc
// CHECK: prog.to_layout %[[X]] as tensor<20x24xf32, #segue.layout<space = device_dram, tile = [8, 16]>> into %[[XD:.*]] : memref<3072xi8>, memref<20x24xf32>
// CHECK: prog.matmul %{{.*}}, %[[W]] as tensor<24x8xf32, #segue.layout<space = device_dram, storage = int8_row>> into %{{.*}} : memref<1x20x24xf32>, memref<288xi8>, memref<1x20x8xf32>
// CHECK: prog.to_layout %{{.*}} into %[[Y]] as tensor<20x8xf32, #segue.layout<space = device_dram, tile = [4, 8]>> : memref<20x8xf32>, memref<640xi8>
// CHECK-NOT: prog.to_layout
func.func @packed(%x: tensor<20x24xf32, #segue.layout<tile = [8, 16]>> {segue.name = "x", segue.role = #segue.role<input>},
                  %w: tensor<24x8xf32> {segue.name = "w", segue.role = #segue.role<frozen>, segue.layout = #segue.layout<storage = int8_row>})
    -> (tensor<20x8xf32> {segue.layout = #segue.layout<tile = [4, 8]>}) {
  %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<20x24xf32, #segue.layout<tile = [8, 16]>>, tensor<24x8xf32> -> tensor<20x8xf32>
  return %y : tensor<20x8xf32>
}

// -----

// A product reads the codes of a weight transposed too, with a bias and with
// leading dimensions folded into rows, and those of groups. The derivative for
// x reads the same codes the other way round.
// CHECK-LABEL: prog.program @codes
// CHECK: ^bb0(%[[X:.*]]: memref<2x5x24xf32>, %[[W:.*]]: memref<224xi8>, %[[V:.*]]: memref<272xi8>, %[[B:.*]]: memref<8xf32>,
// CHECK-NOT: prog.to_layout
// CHECK: %[[A:.*]] = prog.view %[[X]] offset 0 : memref<2x5x24xf32> to memref<1x10x24xf32>
// CHECK: prog.matmul %[[A]], %[[W]] as tensor<8x24xf32, #segue.layout<space = device_dram, storage = int8_row>> transposed bias %[[B]] : memref<8xf32> into %{{.*}} : memref<1x10x24xf32>, memref<224xi8>, memref<1x10x8xf32>
// CHECK: prog.matmul %{{.*}}, %[[V]] as tensor<8x24xf32, #segue.layout<space = device_dram, storage = int4_group64>> into
// CHECK-NOT: prog.to_layout
func.func @codes(%x: tensor<2x5x24xf32>, %w: tensor<8x24xf32> {segue.layout = #segue.layout<storage = int8_row>},
                 %v: tensor<8x24xf32> {segue.layout = #segue.layout<storage = int4_group64>}, %b: tensor<8xf32>)
    -> (tensor<2x5x8xf32>, tensor<2x5x24xf32>) {
  %t = segue.transpose %w [1, 0] : tensor<8x24xf32> -> tensor<24x8xf32>
  %y = segue.dot_general %x, %t bias %b : tensor<8xf32> batch [] x [] contract [2] x [0] : tensor<2x5x24xf32>, tensor<24x8xf32> -> tensor<2x5x8xf32>
  %z = segue.dot_general %y, %v batch [] x [] contract [2] x [0] : tensor<2x5x8xf32>, tensor<8x24xf32> -> tensor<2x5x24xf32>
  return %y, %z : tensor<2x5x8xf32>, tensor<2x5x24xf32>
}

// -----

// What is more than one product of all of the codes is unpacked: a part of
// them, a left operand, another op. A product that comes after reads the floats
// that are there.
// CHECK-LABEL: prog.program @unpacked
// CHECK: ^bb0(%[[X:.*]]: memref<8x8xf32>, %[[W:.*]]: memref<96xi8>, %[[V:.*]]: memref<96xi8>,
// CHECK: prog.to_layout %[[W]] as tensor<8x8xf32, #segue.layout<space = device_dram, storage = int8_row>>
// CHECK: prog.matmul %{{[^ ]*}}, %{{[^ ]*}} into
// CHECK: prog.matmul %{{[^ ]*}}, %{{[^ ]*}} into
// CHECK: prog.to_layout %[[V]] as tensor<8x8xf32, #segue.layout<space = device_dram, storage = int8_row>>
// CHECK: prog.matmul %{{[^ ]*}}, %{{[^ ]*}} into
// CHECK-NOT: prog.to_layout
func.func @unpacked(%x: tensor<8x8xf32>, %w: tensor<8x8xf32> {segue.layout = #segue.layout<storage = int8_row>},
                    %v: tensor<8x8xf32> {segue.layout = #segue.layout<storage = int8_row>})
    -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x4xf32>) {
  %0 = segue.dot_general %w, %x batch [] x [] contract [1] x [0] : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  %1 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  %s = segue.slice %v [0, 4] to [8, 8] by [1, 1] : tensor<8x8xf32> -> tensor<8x4xf32>
  %2 = segue.dot_general %x, %s batch [] x [] contract [1] x [0] : tensor<8x8xf32>, tensor<8x4xf32> -> tensor<8x4xf32>
  return %0, %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x4xf32>
}

// -----

// What a kernel may write its result over is made where that result lies; not over an input, and not where it is read
// once more.
module {
  module @kernels {
    func.func @step(%p: memref<?xf32>, %o: memref<?xf32>, %b: index, %e: index) -> i64
        attributes {segue.outputs = 1 : i64, segue.fixed_bytes = array<i64: 0, 0>, segue.bytes_per_unit = array<i64: 4, 4>} {
      %0 = arith.constant 0 : i64
      return %0 : i64
    }
  }
  // CHECK: prog.program @chain
  // CHECK: ^bb0(%{{.*}}: memref<4x4xf32>, %[[O:.*]]: memref<16xf32>):
  // CHECK-NOT: prog.alloc
  // CHECK: prog.matmul {{.*}} into %[[V:[^ ]*]] :
  // CHECK: prog.launch @step(%[[O]], %[[O]]) range 16 grain 16 in_place [0, 1]
  func.func @chain(%x: tensor<4x4xf32>) -> tensor<16xf32> {
    %0 = segue.dot_general %x, %x batch [] x [] contract [1] x [0] : tensor<4x4xf32>, tensor<4x4xf32> -> tensor<4x4xf32>
    %1 = segue.launch @step(%0) range 16 grain 16 {inPlace = array<i64: 0, 0>} : (tensor<4x4xf32>) -> tensor<16xf32>
    return %1 : tensor<16xf32>
  }
  // CHECK: prog.program @over_an_input
  // CHECK: prog.alloc
  func.func @over_an_input(%p: tensor<4xf32> {segue.name = "p"}) -> (tensor<4xf32> {segue.name = "p", segue.alias = 0 : i64}) {
    %0 = segue.launch @step(%p) range 4 grain 4 : (tensor<4xf32>) -> tensor<4xf32>
    %1 = segue.launch @step(%0) range 4 grain 4 {inPlace = array<i64: 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  // CHECK: prog.program @read_again
  // CHECK: prog.alloc
  func.func @read_again(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %0 = segue.launch @step(%x) range 4 grain 4 : (tensor<4xf32>) -> tensor<4xf32>
    %1 = segue.launch @step(%0) range 4 grain 4 {inPlace = array<i64: 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
    %2 = segue.launch @step(%0) range 4 grain 4 : (tensor<4xf32>) -> tensor<4xf32>
    return %1, %2 : tensor<4xf32>, tensor<4xf32>
  }
}

// -----

// One element from a resource, which MLIR counts among the splats, is copied as any other.
// CHECK-LABEL: prog.program @resource
// CHECK: %[[C:.*]] = prog.constant @segment0 offset 0 : memref<4xi8>
// CHECK: prog.view %[[C]]
func.func @resource() -> tensor<1xf32> {
  %0 = segue.constant dense_resource<one> : tensor<1xf32>
  return %0 : tensor<1xf32>
}
{-# dialect_resources: { builtin: { one: "0x040000000000803F" } } #-}
