// RUN: segue-opt %s --pass-pipeline='builtin.module(prog.program(prog-place-in-l1{l1-bytes=128},prog-plan-memory))' | FileCheck %s
// RUN: segue-opt %s --pass-pipeline='builtin.module(prog.program(prog-place-in-l1,prog-plan-memory))' | FileCheck %s --check-prefix=NONE
// RUN: not segue-opt %s --pass-pipeline='builtin.module(prog.program(prog-place-in-l1{l1-bytes=-1}))' 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// NEGATIVE: for the --l1-bytes option: '-1' value invalid

// %a and %b are never needed together and share 64 bytes; %d, which is touched
// once, waits for long and is worth less than %c; %e is larger than all of L1.
// CHECK-LABEL: prog.program @rank
// CHECK-SAME: arenas [#prog.arena<device_dram bytes = 320 {{.*}}>, #prog.arena<device_l1 bytes = 128 {{.*}}>]
// CHECK-DAG: %[[A:.*]] = prog.alloc offset 0 : memref<64xi8, #segue.space<device_l1>>
// CHECK-DAG: prog.alloc offset 64 : memref<64xi8, #segue.space<device_l1>>
// CHECK-DAG: prog.alloc offset 0 : memref<64xi8, #segue.space<device_l1>>
// CHECK-DAG: prog.alloc offset {{.*}} : memref<64xi8>
// CHECK-DAG: prog.alloc offset {{.*}} : memref<256xi8>
// CHECK: prog.view %[[A]] offset 0 : memref<64xi8, #segue.space<device_l1>> to memref<4x4xf32, #segue.space<device_l1>>
// CHECK: prog.to_layout %{{.*}} into %{{.*}} : memref<4x4xf32>, memref<4x4xf32, #segue.space<device_l1>>
// NONE-LABEL: prog.program @rank
// NONE-NOT: device_l1
prog.kernel @map arguments 2 outputs 1 fixed_bytes [0, 0] bytes_per_unit [4, 4] hash 1
prog.program @rank inputs [#prog.value<"x" input tensor<4x4xf32>>, #prog.value<"z" input tensor<64xf32>>] outputs [#prog.value<"y" output tensor<4x4xf32>>, #prog.value<"u" output tensor<64xf32>>] {
^bb0(%x: memref<4x4xf32>, %z: memref<64xf32>, %y: memref<4x4xf32>, %u: memref<64xf32>):
  %a = prog.alloc : memref<64xi8>
  %b = prog.alloc : memref<64xi8>
  %c = prog.alloc : memref<64xi8>
  %d = prog.alloc : memref<64xi8>
  %e = prog.alloc : memref<256xi8>
  prog.phase forward {
    prog.launch @map(%x, %d) range 16 grain 1 : memref<4x4xf32>, memref<64xi8>
    prog.launch @map(%z, %e) range 64 grain 1 : memref<64xf32>, memref<256xi8>
    prog.launch @map(%e, %u) range 64 grain 1 : memref<256xi8>, memref<64xf32>
    %v = prog.view %a offset 0 : memref<64xi8> to memref<4x4xf32>
    prog.to_layout %x into %v : memref<4x4xf32>, memref<4x4xf32>
    prog.launch @map(%a, %c) range 16 grain 1 : memref<64xi8>, memref<64xi8>
    prog.launch @map(%c, %b) range 16 grain 1 : memref<64xi8>, memref<64xi8>
    prog.launch @map(%b, %y) range 16 grain 1 : memref<64xi8>, memref<4x4xf32>
    prog.launch @map(%d, %y) range 16 grain 1 : memref<64xi8>, memref<4x4xf32>
  }
}
