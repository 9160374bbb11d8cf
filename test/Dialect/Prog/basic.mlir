// RUN: segue-opt %s --verify-roundtrip | FileCheck %s

// Every op of the dialect in its place.

// CHECK: module attributes {prog.options = {optimizer = "adamw"}, prog.producer = "segue test", prog.version = array<i32: 0, 1>}
module attributes {prog.version = array<i32: 0, 1>, prog.producer = "segue test", prog.options = {optimizer = "adamw"}} {

// CHECK: prog.segment @segment0 constants alignment 64 dense<[1, 2, 3, 4]> : tensor<4xi8>
prog.segment @segment0 constants alignment 64 dense<[1, 2, 3, 4]> : tensor<4xi8>
// CHECK: prog.segment @segment1 elf alignment 64
prog.segment @segment1 elf alignment 64 dense<0> : tensor<16xi8>
// CHECK: prog.segment @segment2 cubin capability 90 alignment 64 dense<"0x7F454C46
prog.segment @segment2 cubin capability 90 alignment 64 dense<"0x7F454C460201014108000000000000000200BE0001000000000000000000000000000000000000004000000000000000045A000040003800000040000100000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"> : tensor<128xi8>

// CHECK: prog.kernel @scale arguments 3 outputs 1 fixed_bytes [4, 0, 0] bytes_per_unit [0, 4, 4] hash 18446744073709551615
// CHECK-SAME: variants [#prog.variant<x86_64_v3 "scale.v3" in @segment1>, #prog.variant<x86_64_v4 "scale.v4" in @segment1>]
prog.kernel @scale arguments 3 outputs 1 fixed_bytes [4, 0, 0] bytes_per_unit [0, 4, 4] hash 18446744073709551615
  variants [#prog.variant<x86_64_v3 "scale.v3" in @segment1>, #prog.variant<x86_64_v4 "scale.v4" in @segment1>]

// A forward with a saved value, a temporary, phases and nested blocks.
// CHECK-LABEL: prog.program @forward inputs
prog.program @forward
  inputs [#prog.value<"x" input tensor<4x8xf32>>, #prog.value<"w" parameter tensor<8x2xf32>>,
          #prog.value<"b" parameter tensor<2xf32>>]
  outputs [#prog.value<"y" output tensor<4x2xf32>>, #prog.value<"saved.0" saved tensor<4x2xf32> of "y">]
  arenas [#prog.arena<device_dram bytes = 256 lower_bound = 128 alignment = 64>]
  save_points [#prog.save_point<value = 1, backward_input = 0, order = 0, bytes = 32, recompute_flops = 64, block = "h.0">] {
// CHECK: ^bb0(%[[X:.*]]: memref<4x8xf32>, %[[W:.*]]: memref<8x2xf32>, %[[B:.*]]: memref<2xf32>, %[[Y:.*]]: memref<4x2xf32>, %[[S:.*]]: memref<4x2xf32>):
^bb0(%x: memref<4x8xf32>, %w: memref<8x2xf32>, %b: memref<2xf32>, %y: memref<4x2xf32>, %s: memref<4x2xf32>):
  // CHECK: %[[T:.*]] = prog.alloc offset 64 of bf16 : memref<128xi8>
  %t = prog.alloc offset 64 of bf16 : memref<128xi8>
  // CHECK: %[[C:.*]] = prog.constant @segment0 offset 0 : memref<4xi8>
  %c = prog.constant @segment0 offset 0 : memref<4xi8>
  // CHECK: prog.phase forward {
  prog.phase forward {
    // CHECK: prog.block "h.0" {
    prog.block "h.0" {
      // CHECK: prog.fill %[[T]] with [0, 0, -128, 63] : memref<128xi8>
      prog.fill %t with [0, 0, -128, 63] : memref<128xi8>
      // CHECK: prog.launch @scale(%[[C]], %[[X]], %[[T]]) range 32 grain 4 : memref<4xi8>, memref<4x8xf32>, memref<128xi8>
      prog.launch @scale(%c, %x, %t) range 32 grain 4 : memref<4xi8>, memref<4x8xf32>, memref<128xi8>
      // CHECK: prog.block "h.0.mlp" {
      prog.block "h.0.mlp" {
        // CHECK: %[[A:.*]] = prog.view %[[T]] offset 0 : memref<128xi8> to memref<1x4x8xf32>
        %a = prog.view %t offset 0 : memref<128xi8> to memref<1x4x8xf32>
        %wv = prog.view %w offset 0 : memref<8x2xf32> to memref<1x8x2xf32>
        %yv = prog.view %s offset 0 : memref<4x2xf32> to memref<1x4x2xf32, strided<[32, 2, 1]>>
        // CHECK: prog.matmul %[[A]], %{{.*}} bias %[[B]] : memref<2xf32> into %{{.*}} accumulate :
        prog.matmul %a, %wv bias %b : memref<2xf32> into %yv accumulate
          : memref<1x4x8xf32>, memref<1x8x2xf32>, memref<1x4x2xf32, strided<[32, 2, 1]>>
      }
    }
    // CHECK: prog.to_layout %[[S]] into %[[Y]] : memref<4x2xf32>, memref<4x2xf32>
    prog.to_layout %s into %y : memref<4x2xf32>, memref<4x2xf32>
    // CHECK: prog.save %[[S]] : memref<4x2xf32>
    prog.save %s : memref<4x2xf32>
  }
}

// Attention and its derivative; what is saved comes back and goes away.
// CHECK-LABEL: prog.program @backward inputs
prog.program @backward
  inputs [#prog.value<"q" saved tensor<1x2x4x8xf32>>, #prog.value<"m" input tensor<1x2x4x4xi1>>,
          #prog.value<"seed" hyper tensor<i64>>, #prog.value<"step" hyper tensor<i64>>]
  outputs [#prog.value<"o" output tensor<1x2x4x8xf32>>, #prog.value<"l" output tensor<1x2x4xf32>>,
           #prog.value<"grad.q" gradient tensor<1x2x4x8xf32> of "q">]
  arenas [#prog.arena<device_dram bytes = 512 lower_bound = 512 alignment = 64>] {
^bb0(%q: memref<1x2x4x8xf32>, %m: memref<1x2x4x4xi1>, %seed: memref<i64>, %step: memref<i64>, %o: memref<1x2x4x8xf32>, %l: memref<1x2x4xf32>, %g: memref<1x2x4x8xf32>):
  %t = prog.alloc offset 0 : memref<512xi8>
  // CHECK: prog.phase forward
  prog.phase forward {
  }
  // CHECK: prog.phase backward
  prog.phase backward {
    // CHECK: prog.restore
    prog.restore %q : memref<1x2x4x8xf32>
    // CHECK: prog.attention %[[Q:.*]], %[[Q]], %[[Q]] mask %{{.*}} : memref<1x2x4x4xi1> into %[[O:.*]], %[[L:.*]] causal scale 5.000000e-01 :
    prog.attention %q, %q, %q mask %m : memref<1x2x4x4xi1> into %o, %l causal scale 5.0e-01
      : memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>
    // CHECK: prog.attention %[[Q]], %[[Q]], %[[Q]] dropout 5.000000e-01 by %[[SEED:.*]] : memref<i64>, %[[STEP:.*]] : memref<i64> id 7 into
    prog.attention %q, %q, %q dropout 0.5 by %seed : memref<i64>, %step : memref<i64> id 7 into %o, %l causal scale 5.0e-01
      : memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>
    %dk = prog.view %t offset 0 : memref<512xi8> to memref<1x2x4x8xf32>
    %dv = prog.view %t offset 256 : memref<512xi8> to memref<1x2x4x8xf32>
    // CHECK: prog.attention_grad %[[Q]], %[[Q]], %[[Q]] out %[[O]] lse %[[L]] grad %[[O]] into
    prog.attention_grad %q, %q, %q out %o lse %l grad %o into %g, %dk, %dv scale 5.0e-01
      : memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>,
        memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>
    // CHECK: prog.library_call "conv2d"(%[[Q]], %{{.*}}) into %{{.*}} numbers [1, 1, 0, 0, 0, 0, 1, 1, 1] : memref<1x2x4x8xf32>, memref<2x2x1x1xf32> into memref<1x2x4x8xf32>
    %w = prog.view %t offset 0 : memref<512xi8> to memref<2x2x1x1xf32>
    %y = prog.view %t offset 256 : memref<512xi8> to memref<1x2x4x8xf32>
    prog.library_call "conv2d" (%q, %w) into %y numbers [1, 1, 0, 0, 0, 0, 1, 1, 1] : memref<1x2x4x8xf32>, memref<2x2x1x1xf32> into memref<1x2x4x8xf32>
    // CHECK: prog.free
    prog.free %q : memref<1x2x4x8xf32>
  }
}

// Aliases; layouts in the signature give strides and spaces to the buffers.
// CHECK-LABEL: prog.program @optimizer inputs
// CHECK-SAME: aliases [#prog.alias<output 0 = input 0 required>, #prog.alias<output 1 = input 1>]
prog.program @optimizer
  inputs [#prog.value<"p" parameter tensor<4x8xf32, #segue.layout<space = device_l1, strides = [1, 4]>>>,
          #prog.value<"m.p" state tensor<4x8xbf16> of "p">]
  outputs [#prog.value<"p" parameter tensor<4x8xf32, #segue.layout<space = device_l1, strides = [1, 4]>>>,
           #prog.value<"m.p" state tensor<4x8xbf16> of "p">]
  aliases [#prog.alias<output 0 = input 0 required>, #prog.alias<output 1 = input 1>] {
^bb0(%0: memref<4x8xf32, strided<[1, 4]>, #segue.space<device_l1>>, %1: memref<4x8xbf16>,
     %2: memref<4x8xf32, strided<[1, 4]>, #segue.space<device_l1>>, %3: memref<4x8xbf16>):
  // CHECK: prog.launch @scale(%{{.*}}, %{{.*}}, %{{.*}}) offsets [0, 4, 0] range 4 grain 1 :
  prog.launch @scale(%0, %1, %3) offsets [0, 4, 0] range 4 grain 1
    : memref<4x8xf32, strided<[1, 4]>, #segue.space<device_l1>>, memref<4x8xbf16>, memref<4x8xbf16>
}

// Layouts that strides do not show are bytes, which only a copy reads and
// writes; values list the layouts that the caller may choose.
// CHECK-LABEL: prog.program @layouts inputs
// CHECK-SAME: #prog.value<"w" frozen tensor<4x8xf32, #segue.layout<space = device_dram, storage = int8_row, zero_points = true>> or [<space = device_l1, storage = int8_row, zero_points = true>]>
// CHECK-SAME: #prog.value<"y" output tensor<4x8xf32, #segue.layout<space = device_dram, tile = [2, 4]>> or [<space = device_dram>, <space = device_l1, strides = [1, 4], alignment = 512>]>
// CHECK-SAME: #prog.value<"z" output tensor<4x8xf32, #segue.layout<space = host>> or [<space = host_pinned>]>
prog.program @layouts
  inputs [#prog.value<"w" frozen tensor<4x8xf32, #segue.layout<storage = int8_row, zero_points = true>>
                      or [<space = device_l1, storage = int8_row, zero_points = true>]>]
  outputs [#prog.value<"y" output tensor<4x8xf32, #segue.layout<tile = [2, 4]>>
                       or [<space = device_dram>, <space = device_l1, strides = [1, 4], alignment = 512>]>,
           #prog.value<"z" output tensor<4x8xf32, #segue.layout<space = host>> or [<space = host_pinned>]>]
  arenas [#prog.arena<device_dram bytes = 256 lower_bound = 256 alignment = 64>] {
^bb0(%w: memref<96xi8>, %y: memref<128xi8>, %z: memref<4x8xf32, #segue.space<host>>):
  %t = prog.alloc offset 0 : memref<256xi8>
  %v = prog.view %t offset 64 : memref<256xi8> to memref<4x8xf32>
  // CHECK: prog.to_layout %{{.*}} as tensor<4x8xf32, #segue.layout<space = device_dram, storage = int8_row, zero_points = true>> into %{{.*}} : memref<96xi8>, memref<4x8xf32>
  prog.to_layout %w as tensor<4x8xf32, #segue.layout<storage = int8_row, zero_points = true>> into %v
    : memref<96xi8>, memref<4x8xf32>
  // CHECK: prog.to_layout %{{.*}} into %{{.*}} as tensor<4x8xf32, #segue.layout<space = device_dram, tile = [2, 4]>> : memref<4x8xf32>, memref<128xi8>
  prog.to_layout %v into %y as tensor<4x8xf32, #segue.layout<tile = [2, 4]>> : memref<4x8xf32>, memref<128xi8>
  // CHECK: prog.to_layout %{{.*}} into %{{.*}} : memref<4x8xf32>, memref<4x8xf32, #segue.space<host>>
  prog.to_layout %v into %z : memref<4x8xf32>, memref<4x8xf32, #segue.space<host>>
}

// A product reads a weight of codes as it lies, or its transpose; the bytes may
// be a part of a buffer.
// CHECK-LABEL: prog.program @codes
prog.program @codes
  inputs [#prog.value<"x" input tensor<1x4x8xf32>>,
          #prog.value<"w" frozen tensor<2x8xf32, #segue.layout<storage = int8_row>>>,
          #prog.value<"v" frozen tensor<8x2xbf16, #segue.layout<storage = int4_group64>>>]
  outputs [#prog.value<"y" output tensor<1x4x2xf32>>, #prog.value<"z" output tensor<1x4x2xf32>>] {
^bb0(%x: memref<1x4x8xf32>, %w: memref<72xi8>, %v: memref<272xi8>, %y: memref<1x4x2xf32>, %z: memref<1x4x2xf32>):
  // CHECK: prog.matmul %{{.*}}, %{{.*}} as tensor<2x8xf32, #segue.layout<space = device_dram, storage = int8_row>> transposed into %{{.*}} : memref<1x4x8xf32>, memref<72xi8>, memref<1x4x2xf32>
  prog.matmul %x, %w as tensor<2x8xf32, #segue.layout<storage = int8_row>> transposed into %y
    : memref<1x4x8xf32>, memref<72xi8>, memref<1x4x2xf32>
  // CHECK: prog.matmul %{{.*}}, %{{.*}} as tensor<8x2xbf16, #segue.layout<space = device_dram, storage = int4_group64>> into
  prog.matmul %x, %v as tensor<8x2xbf16, #segue.layout<storage = int4_group64>> into %z
    : memref<1x4x8xf32>, memref<272xi8>, memref<1x4x2xf32>
}

}
