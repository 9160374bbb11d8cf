// RUN: segue-opt %s --prog-plan-memory | FileCheck %s

prog.kernel @map arguments 2 outputs 1 fixed_bytes [0, 0] bytes_per_unit [4, 4] hash 1
prog.kernel @add arguments 3 outputs 1 fixed_bytes [0, 0, 0] bytes_per_unit [4, 4, 4] hash 2
prog.kernel @both arguments 3 outputs 2 fixed_bytes [0, 0, 0] bytes_per_unit [4, 4, 4] hash 3

// Neighbours in a chain live together, all others share bytes; offsets are
// multiples of 64.
// CHECK-LABEL: prog.program @chain
// CHECK-SAME: arenas [#prog.arena<device_dram bytes = 256 lower_bound = 256 alignment = 64>]
// CHECK: prog.alloc offset [[#PLACE:]] : memref<100xi8>
// CHECK: prog.alloc offset {{0|128}} : memref<100xi8>
// CHECK: prog.alloc offset [[#PLACE]] : memref<100xi8>
prog.program @chain inputs [#prog.value<"x" input tensor<25xf32>>] outputs [#prog.value<"y" output tensor<25xf32>>] {
^bb0(%x: memref<25xf32>, %y: memref<25xf32>):
  %a = prog.alloc : memref<100xi8>
  %b = prog.alloc : memref<100xi8>
  %c = prog.alloc : memref<100xi8>
  prog.launch @map(%x, %a) range 25 grain 1 : memref<25xf32>, memref<100xi8>
  prog.launch @map(%a, %b) range 25 grain 1 : memref<100xi8>, memref<100xi8>
  prog.launch @map(%b, %c) range 25 grain 1 : memref<100xi8>, memref<100xi8>
  prog.launch @map(%c, %y) range 25 grain 1 : memref<100xi8>, memref<25xf32>
}

// An output takes the place of the input that dies there: the chain needs one
// place. The lists are gone afterwards.
// CHECK-LABEL: prog.program @in_place
// CHECK-SAME: bytes = 128 lower_bound = 128
// CHECK-COUNT-2: prog.alloc offset 0 : memref<100xi8>
// CHECK-NOT: in_place [
prog.program @in_place inputs [#prog.value<"x" input tensor<25xf32>>] outputs [#prog.value<"y" output tensor<25xf32>>] {
^bb0(%x: memref<25xf32>, %y: memref<25xf32>):
  %a = prog.alloc : memref<100xi8>
  %b = prog.alloc : memref<100xi8>
  prog.launch @map(%x, %a) range 25 grain 1 : memref<25xf32>, memref<100xi8>
  prog.launch @map(%a, %b) range 25 grain 1 in_place [0, 1] : memref<100xi8>, memref<100xi8>
  prog.launch @map(%b, %y) range 25 grain 1 : memref<100xi8>, memref<25xf32>
}

// Not in place: %a is read later on; in the second program the launch reads
// %a a second time, at an index that the list does not name.
// CHECK-LABEL: prog.program @read_later
// CHECK-SAME: bytes = 256 lower_bound = 256
prog.program @read_later inputs [#prog.value<"x" input tensor<25xf32>>] outputs [#prog.value<"y" output tensor<25xf32>>] {
^bb0(%x: memref<25xf32>, %y: memref<25xf32>):
  %a = prog.alloc : memref<100xi8>
  %b = prog.alloc : memref<100xi8>
  prog.launch @map(%x, %a) range 25 grain 1 : memref<25xf32>, memref<100xi8>
  prog.launch @map(%a, %b) range 25 grain 1 in_place [0, 1] : memref<100xi8>, memref<100xi8>
  prog.launch @add(%a, %b, %y) range 25 grain 1 : memref<100xi8>, memref<100xi8>, memref<25xf32>
}
// CHECK-LABEL: prog.program @read_twice
// CHECK-SAME: bytes = 256 lower_bound = 256
prog.program @read_twice inputs [#prog.value<"x" input tensor<25xf32>>] outputs [#prog.value<"y" output tensor<25xf32>>] {
^bb0(%x: memref<25xf32>, %y: memref<25xf32>):
  %a = prog.alloc : memref<100xi8>
  %b = prog.alloc : memref<100xi8>
  prog.launch @map(%x, %a) range 25 grain 1 : memref<25xf32>, memref<100xi8>
  prog.launch @add(%a, %a, %b) range 25 grain 1 in_place [0, 2] : memref<100xi8>, memref<100xi8>, memref<100xi8>
  prog.launch @map(%b, %y) range 25 grain 1 : memref<100xi8>, memref<25xf32>
}

// A pair is two whole buffers: parts that lie at other offsets would overlap.
// CHECK-LABEL: prog.program @from_the_middle
// CHECK-SAME: bytes = 512 lower_bound = 512
prog.program @from_the_middle inputs [#prog.value<"x" input tensor<25xf32>>] outputs [#prog.value<"y" output tensor<25xf32>>] {
^bb0(%x: memref<25xf32>, %y: memref<25xf32>):
  %a = prog.alloc : memref<200xi8>
  %b = prog.alloc : memref<200xi8>
  prog.launch @map(%x, %a) offsets [0, 60] range 25 grain 1 : memref<25xf32>, memref<200xi8>
  prog.launch @map(%a, %b) offsets [60, 0] range 25 grain 1 in_place [0, 1] : memref<200xi8>, memref<200xi8>
  prog.launch @map(%b, %y) range 25 grain 1 : memref<200xi8>, memref<25xf32>
}
// CHECK-LABEL: prog.program @to_the_middle
// CHECK-SAME: bytes = 512 lower_bound = 512
prog.program @to_the_middle inputs [#prog.value<"x" input tensor<25xf32>>] outputs [#prog.value<"y" output tensor<25xf32>>] {
^bb0(%x: memref<25xf32>, %y: memref<25xf32>):
  %a = prog.alloc : memref<200xi8>
  %b = prog.alloc : memref<200xi8>
  prog.launch @map(%x, %a) range 25 grain 1 : memref<25xf32>, memref<200xi8>
  prog.launch @map(%a, %b) offsets [0, 60] range 25 grain 1 in_place [0, 1] : memref<200xi8>, memref<200xi8>
  prog.launch @map(%b, %y) offsets [60, 0] range 25 grain 1 : memref<200xi8>, memref<25xf32>
}
// One operand, two results that may take its place: one of them does, and two
// operands for one result: one dies in it, the other keeps its place.
// CHECK-LABEL: prog.program @one_of_two
// CHECK-SAME: bytes = 256 lower_bound = 256
prog.program @one_of_two inputs [#prog.value<"x" input tensor<25xf32>>] outputs [#prog.value<"y" output tensor<25xf32>>] {
^bb0(%x: memref<25xf32>, %y: memref<25xf32>):
  %a = prog.alloc : memref<100xi8>
  %b = prog.alloc : memref<100xi8>
  %c = prog.alloc : memref<100xi8>
  %d = prog.alloc : memref<100xi8>
  prog.launch @map(%x, %a) range 25 grain 1 : memref<25xf32>, memref<100xi8>
  prog.launch @both(%a, %b, %c) range 25 grain 1 in_place [0, 1, 0, 2] : memref<100xi8>, memref<100xi8>, memref<100xi8>
  prog.launch @add(%b, %c, %d) range 25 grain 1 in_place [0, 2, 1, 2] : memref<100xi8>, memref<100xi8>, memref<100xi8>
  prog.launch @map(%d, %y) range 25 grain 1 : memref<100xi8>, memref<25xf32>
}

// Views count as uses of their buffer; commands in nested regions are in order.
// CHECK-LABEL: prog.program @views
// CHECK-SAME: bytes = 192 lower_bound = 192
prog.program @views inputs [#prog.value<"x" input tensor<4x4xf32>>] outputs [#prog.value<"y" output tensor<4x4xf32>>] {
^bb0(%x: memref<4x4xf32>, %y: memref<4x4xf32>):
  %a = prog.alloc : memref<64xi8>
  %b = prog.alloc : memref<64xi8>
  %c = prog.alloc : memref<64xi8>
  prog.phase forward {
    prog.block "h.0" {
      %v = prog.view %a offset 0 : memref<64xi8> to memref<4x4xf32>
      prog.to_layout %x into %v : memref<4x4xf32>, memref<4x4xf32>
    }
    prog.launch @map(%x, %b) range 16 grain 1 : memref<4x4xf32>, memref<64xi8>
    prog.block "h.1" {
      prog.launch @add(%x, %b, %c) range 16 grain 1 : memref<4x4xf32>, memref<64xi8>, memref<64xi8>
      %v = prog.view %a offset 0 : memref<64xi8> to memref<4x4xf32, strided<[1, 4]>>
      prog.to_layout %v into %y : memref<4x4xf32, strided<[1, 4]>>, memref<4x4xf32>
    }
  }
}

// Each space has its own arena.
// CHECK-LABEL: prog.program @spaces
// CHECK-SAME: arenas [#prog.arena<device_dram bytes = 128 {{.*}}>, #prog.arena<device_l1 bytes = 64 {{.*}}>]
prog.program @spaces inputs [] outputs [] {
  %a = prog.alloc : memref<64xi8, #segue.space<device_l1>>
  %b = prog.alloc : memref<128xi8>
  prog.fill %a with [0] : memref<64xi8, #segue.space<device_l1>>
  prog.fill %b with [0] : memref<128xi8>
}
