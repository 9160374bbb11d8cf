// A file read back is the module that was written, and is written again to the
// same bytes: the text of both modules and the bytes of both files are equal.

// RUN: segue-translate --prog-to-flatbuffer %S/../../Dialect/Prog/basic.mlir -o %t.1.segue
// RUN: segue-translate --flatbuffer-to-prog %t.1.segue --mlir-print-debuginfo -o %t.1.mlir
// RUN: segue-translate --prog-to-flatbuffer %t.1.mlir -o %t.2.segue
// RUN: cmp %t.1.segue %t.2.segue
// RUN: segue-translate --flatbuffer-to-prog %t.2.segue --mlir-print-debuginfo -o %t.2.mlir
// RUN: cmp %t.1.mlir %t.2.mlir

// This module is as the importer writes it: nothing changes on the way.
// RUN: segue-opt %s -o %t.a.mlir
// RUN: segue-translate --prog-to-flatbuffer %s | segue-translate --flatbuffer-to-prog | segue-opt -o %t.b.mlir
// RUN: cmp %t.a.mlir %t.b.mlir

// A file of an older version is written again as one of this version.
// RUN: segue-translate --flatbuffer-to-prog %S/../../corpus/0.1/attention.segue -o %t.old.mlir
// RUN: FileCheck %s --check-prefix=OLD < %t.old.mlir
// RUN: segue-translate --prog-to-flatbuffer %t.old.mlir | segue-translate --flatbuffer-to-prog \
// RUN:   | FileCheck %s --check-prefix=NEW
// OLD: prog.version = array<i32: 0, 1>
// NEW: prog.version = array<i32: 0, 3>

module attributes {prog.options = {name = "m"}, prog.producer = "segue test", prog.version = array<i32: 0, 3>} {
  prog.segment @segment0 constants alignment 64 dense_resource<segment0> : tensor<4xi8>
  prog.kernel @k arguments 3 outputs 1 fixed_bytes [4, 0, 0] bytes_per_unit [0, 4, 4] hash 9
  prog.program @forward inputs [#prog.value<"x \"quoted\"" input tensor<4x8xf32, #segue.layout<space = host, strides = [1, 4]>>>, #prog.value<"s" input tensor<i64>>] outputs [#prog.value<"y" output tensor<4x8xf32>>] {
  ^bb0(%x: memref<4x8xf32, strided<[1, 4]>, #segue.space<host>>, %s: memref<i64>, %y: memref<4x8xf32>):
  }
  prog.program @backward inputs [#prog.value<"x" saved tensor<4x8xf32>>] outputs [#prog.value<"y" gradient tensor<4x8xf32> of "x">] arenas [#prog.arena<device_dram bytes = 128 lower_bound = 128 alignment = 64>] {
  ^bb0(%x: memref<4x8xf32>, %y: memref<4x8xf32>):
    %t = prog.alloc offset 0 of f32 : memref<128xi8>
    %c = prog.constant @segment0 offset 0 : memref<4xi8>
    prog.phase backward {
      prog.restore %x : memref<4x8xf32>
      prog.block "h.0" {
        prog.launch @k(%c, %x, %t) range 32 grain 8 : memref<4xi8>, memref<4x8xf32>, memref<128xi8>
        prog.free %x : memref<4x8xf32>
        %v = prog.view %t offset 0 : memref<128xi8> to memref<4x8xf32>
        prog.to_layout %v into %y : memref<4x8xf32>, memref<4x8xf32>
      }
    }
  }
}

{-#
  dialect_resources: {
    builtin: {
      segment0: "0x4000000001020304"
    }
  }
#-}
