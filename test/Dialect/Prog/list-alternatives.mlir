// RUN: segue-opt %s --split-input-file --pass-pipeline='builtin.module(prog.program(prog-list-alternatives))' | FileCheck %s
// RUN: segue-opt %s --split-input-file --pass-pipeline='builtin.module(prog.program(prog-list-alternatives{l1-bytes=0}))' \
// RUN:   | FileCheck %s --check-prefix=NOL1

// A product may have padded rows, or be turned: its columns are contiguous then.
// What a program is given it reads in L1 as well.
// CHECK-LABEL: prog.program @product
// CHECK-SAME: inputs [#prog.value<"a" input tensor<1x4x8xf32> or [<space = device_l1>]>, #prog.value<"b" input tensor<1x8x6xf32> or [<space = device_l1>]>]
// CHECK-SAME: outputs [#prog.value<"y" output tensor<4x6xf32> or [<space = device_dram, strides = [16, 1]>, <space = device_dram, strides = [1, 4]>, <space = device_l1>]>]
// NOL1-LABEL: prog.program @product
// NOL1-SAME: or [<space = device_dram, strides = [16, 1]>, <space = device_dram, strides = [1, 4]>]>]
prog.program @product inputs [#prog.value<"a" input tensor<1x4x8xf32>>, #prog.value<"b" input tensor<1x8x6xf32>>] outputs [#prog.value<"y" output tensor<4x6xf32>>] {
^bb0(%a: memref<1x4x8xf32>, %b: memref<1x8x6xf32>, %y: memref<4x6xf32>):
  prog.phase forward {
    %c = prog.view %y offset 0 : memref<4x6xf32> to memref<1x4x6xf32>
    prog.matmul %a, %b into %c : memref<1x4x8xf32>, memref<1x8x6xf32>, memref<1x4x6xf32>
  }
}

// -----

// An output that is declared column-major may lie in dense rows as well.
// CHECK-LABEL: prog.program @turned
// CHECK-SAME: outputs [#prog.value<"y" output tensor<4x6xf32, #segue.layout<space = device_dram, strides = [1, 4]>> or [<space = device_dram>, <space = device_dram, strides = [16, 1]>, <space = device_l1, strides = [1, 4]>]>]
prog.program @turned inputs [#prog.value<"a" input tensor<1x6x8xf32>>, #prog.value<"b" input tensor<1x8x4xf32>>] outputs [#prog.value<"y" output tensor<4x6xf32, #segue.layout<strides = [1, 4]>>>] {
^bb0(%a: memref<1x6x8xf32>, %b: memref<1x8x4xf32>, %y: memref<4x6xf32, strided<[1, 4]>>):
  prog.phase forward {
    %c = prog.view %y offset 0 : memref<4x6xf32, strided<[1, 4]>> to memref<1x6x4xf32>
    prog.matmul %a, %b into %c : memref<1x6x8xf32>, memref<1x8x4xf32>, memref<1x6x4xf32>
  }
}

// -----

// What is declared in L1 is read from, and written to, DRAM as well; what is
// written in place stays.
// CHECK-LABEL: prog.program @fast
// CHECK-SAME: inputs [#prog.value<"x" input tensor<4x6xf32, #segue.layout<space = device_l1>> or [<space = device_dram>]>,
// CHECK-SAME: #prog.value<"s" state tensor<4xf32, #segue.layout<space = device_l1>>>]
// CHECK-SAME: outputs [#prog.value<"y" output tensor<4x6xf32, #segue.layout<space = device_l1>> or [<space = device_dram>]>,
// CHECK-SAME: #prog.value<"s" state tensor<4xf32, #segue.layout<space = device_l1>>>]
prog.program @fast inputs [#prog.value<"x" input tensor<4x6xf32, #segue.layout<space = device_l1>>>, #prog.value<"s" state tensor<4xf32, #segue.layout<space = device_l1>>>] outputs [#prog.value<"y" output tensor<4x6xf32, #segue.layout<space = device_l1>>>, #prog.value<"s" state tensor<4xf32, #segue.layout<space = device_l1>>>] aliases [#prog.alias<output 1 = input 1 required>] {
^bb0(%x: memref<4x6xf32, #segue.space<device_l1>>, %s: memref<4xf32, #segue.space<device_l1>>, %y: memref<4x6xf32, #segue.space<device_l1>>, %t: memref<4xf32, #segue.space<device_l1>>):
  prog.phase forward {
    prog.to_layout %x into %y : memref<4x6xf32, #segue.space<device_l1>>, memref<4x6xf32, #segue.space<device_l1>>
  }
}

// -----

// With a bias along n it cannot be turned.
// CHECK-LABEL: prog.program @biased
// CHECK-SAME: outputs [#prog.value<"y" output tensor<4x16xf32> or [<space = device_l1>]>]
prog.program @biased inputs [#prog.value<"a" input tensor<1x4x8xf32>>, #prog.value<"b" input tensor<1x8x16xf32>>, #prog.value<"v" input tensor<16xf32>>] outputs [#prog.value<"y" output tensor<4x16xf32>>] {
^bb0(%a: memref<1x4x8xf32>, %b: memref<1x8x16xf32>, %v: memref<16xf32>, %y: memref<4x16xf32>):
  prog.phase forward {
    %c = prog.view %y offset 0 : memref<4x16xf32> to memref<1x4x16xf32>
    prog.matmul %a, %b bias %v : memref<16xf32> into %c : memref<1x4x8xf32>, memref<1x8x16xf32>, memref<1x4x16xf32>
  }
}

// -----

// [2, 3, 4] written as [6, 4]: the first two dimensions stay together, so that
// of the five other orders one is left, and padding.
// CHECK-LABEL: prog.program @joined
// CHECK-SAME: or [<space = device_dram, strides = [48, 16, 1]>, <space = device_dram, strides = [3, 1, 6]>, <space = device_l1>]>]
prog.program @joined inputs [#prog.value<"a" input tensor<1x6x8xf32>>, #prog.value<"b" input tensor<1x8x4xf32>>] outputs [#prog.value<"y" gradient tensor<2x3x4xf32>>] {
^bb0(%a: memref<1x6x8xf32>, %b: memref<1x8x4xf32>, %y: memref<2x3x4xf32>):
  prog.phase forward {
    %c = prog.view %y offset 0 : memref<2x3x4xf32> to memref<1x6x4xf32>
    prog.matmul %a, %b into %c : memref<1x6x8xf32>, memref<1x8x4xf32>, memref<1x6x4xf32>
  }
}

// -----

// Attention keeps the innermost dimension contiguous: heads and rows may swap.
// CHECK-LABEL: prog.program @attention
// CHECK-SAME: #prog.value<"o" output tensor<2x4x16xf32> or [<space = device_dram, strides = [16, 32, 1]>, <space = device_l1>]>
// CHECK-SAME: #prog.value<"l" output tensor<1x2x4xf32> or [<space = device_l1>]>
prog.program @attention inputs [#prog.value<"q" input tensor<1x2x4x16xf32>>] outputs [#prog.value<"o" output tensor<2x4x16xf32>>, #prog.value<"l" output tensor<1x2x4xf32>>] {
^bb0(%q: memref<1x2x4x16xf32>, %o: memref<2x4x16xf32>, %l: memref<1x2x4xf32>):
  prog.phase forward {
    %v = prog.view %o offset 0 : memref<2x4x16xf32> to memref<1x2x4x16xf32>
    prog.attention %q, %q, %q into %v, %l scale 0.5 : memref<1x2x4x16xf32>, memref<1x2x4x16xf32>, memref<1x2x4x16xf32>, memref<1x2x4x16xf32>, memref<1x2x4xf32>
  }
}

// -----

// A kernel writes dense buffers; a second reader, a saved value and one over an
// input stay as they are, and so does that input; a large one does not fit L1.
// CHECK-LABEL: prog.program @none
// CHECK-SAME: inputs [#prog.value<"x" input tensor<4x6xf32>>, #prog.value<"z" input tensor<512x513xf32>>]
// CHECK-SAME: #prog.value<"dense" output tensor<4x6xf32> or [<space = device_l1>]>
// CHECK-SAME: #prog.value<"read" output tensor<4x6xf32> or [<space = device_l1>]>
// CHECK-SAME: #prog.value<"saved.0" saved tensor<4x6xf32>>
// CHECK-SAME: #prog.value<"over" output tensor<4x6xf32>>
// CHECK-SAME: #prog.value<"large" output tensor<512x513xf32>>
// NOL1-LABEL: prog.program @none
// NOL1-NOT: or [
prog.kernel @copy arguments 2 outputs 1 fixed_bytes [0, 0] bytes_per_unit [4, 4] hash 1
prog.program @none inputs [#prog.value<"x" input tensor<4x6xf32>>, #prog.value<"z" input tensor<512x513xf32>>] outputs [#prog.value<"dense" output tensor<4x6xf32>>, #prog.value<"read" output tensor<4x6xf32>>, #prog.value<"saved.0" saved tensor<4x6xf32>>, #prog.value<"over" output tensor<4x6xf32>>, #prog.value<"large" output tensor<512x513xf32>>] aliases [#prog.alias<output 3 = input 0 required>] {
^bb0(%x: memref<4x6xf32>, %z: memref<512x513xf32>, %a: memref<4x6xf32>, %b: memref<4x6xf32>, %s: memref<4x6xf32>, %o: memref<4x6xf32>, %l: memref<512x513xf32>):
  prog.phase forward {
    prog.to_layout %x into %b : memref<4x6xf32>, memref<4x6xf32>
    prog.launch @copy(%b, %a) range 24 grain 1 : memref<4x6xf32>, memref<4x6xf32>
    prog.to_layout %x into %s : memref<4x6xf32>, memref<4x6xf32>
    prog.launch @copy(%z, %l) range 262656 grain 1 : memref<512x513xf32>, memref<512x513xf32>
  }
}

// -----

// Wherever an input is given it lies as declared, in tiles too. Saved values and
// states are for the runtime to place, and what is on the host stays there.
// CHECK-LABEL: prog.program @given
// CHECK-SAME: #prog.value<"t" input tensor<8x8xf32, #segue.layout<space = device_dram, tile = [4, 4]>> or [<space = device_l1, tile = [4, 4]>]>
// CHECK-SAME: #prog.value<"w" frozen tensor<8x8xf32, #segue.layout<space = device_dram, strides = [1, 8]>> or [<space = device_l1, strides = [1, 8]>]>
// CHECK-SAME: #prog.value<"g" gradient tensor<8xf32> or [<space = device_l1>]>
// CHECK-SAME: #prog.value<"s" saved tensor<8xf32>>
// CHECK-SAME: #prog.value<"m" state tensor<8xf32>>
// CHECK-SAME: #prog.value<"h" input tensor<8xf32, #segue.layout<space = host>>>]
// NOL1-LABEL: prog.program @given
// NOL1-NOT: or [
prog.program @given inputs [#prog.value<"t" input tensor<8x8xf32, #segue.layout<tile = [4, 4]>>>, #prog.value<"w" frozen tensor<8x8xf32, #segue.layout<strides = [1, 8]>>>, #prog.value<"g" gradient tensor<8xf32>>, #prog.value<"s" saved tensor<8xf32>>, #prog.value<"m" state tensor<8xf32>>, #prog.value<"h" input tensor<8xf32, #segue.layout<space = host>>>] outputs [] {
^bb0(%t: memref<256xi8>, %w: memref<8x8xf32, strided<[1, 8]>>, %g: memref<8xf32>, %s: memref<8xf32>, %m: memref<8xf32>, %h: memref<8xf32, #segue.space<host>>):
  prog.phase forward {
  }
}
