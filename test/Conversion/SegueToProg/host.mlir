// RUN: segue-opt %s --segue-to-prog | FileCheck %s

// What is declared on the host comes over the link once, when it is first read,
// and goes back when it is final: commands compute in the memory of the device.
// A value that is written in place of an input does too.
// CHECK-LABEL: prog.program @forward
// CHECK-SAME: #prog.value<"x" input tensor<4x8xf32, #segue.layout<space = host>>>
// CHECK-SAME: outputs [#prog.value<"y" output tensor<4x4xf32, #segue.layout<space = host_pinned>>>,
// CHECK: ^bb0(%[[X:.*]]: memref<4x8xf32, #segue.space<host>>, %[[W:.*]]: memref<8x4xf32>, %[[P:.*]]: memref<4x8xf32, #segue.space<host>>, %[[Y:.*]]: memref<4x4xf32, #segue.space<host_pinned>>, %[[Q:.*]]: memref<4x8xf32, #segue.space<host>>):
// CHECK: %[[A:.*]] = prog.view %{{.*}} offset 0 : memref<128xi8> to memref<4x8xf32>
// CHECK-NEXT: prog.to_layout %[[X]] into %[[A]] : memref<4x8xf32, #segue.space<host>>, memref<4x8xf32>
// CHECK: prog.matmul %{{.*}}, %{{.*}} into %{{.*}} : memref<1x4x8xf32>, memref<1x8x4xf32>, memref<1x4x4xf32>
// CHECK: prog.matmul
// CHECK: prog.to_layout %{{.*}} into %[[Y]] : memref<4x4xf32>, memref<4x4xf32, #segue.space<host_pinned>>
// CHECK: prog.to_layout %{{.*}} into %[[Q]] : memref<4x8xf32>, memref<4x8xf32, #segue.space<host>>
// CHECK-NOT: prog.to_layout
func.func @forward(%x: tensor<4x8xf32> {segue.name = "x", segue.layout = #segue.layout<space = host>}, %w: tensor<8x4xf32>,
                   %p: tensor<4x8xf32> {segue.layout = #segue.layout<space = host>})
    -> (tensor<4x4xf32> {segue.name = "y", segue.layout = #segue.layout<space = host_pinned>},
        tensor<4x8xf32> {segue.alias = 2 : i64, segue.layout = #segue.layout<space = host>}) {
  %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x4xf32> -> tensor<4x4xf32>
  %q = segue.dot_general %y, %w batch [] x [] contract [1] x [1] : tensor<4x4xf32>, tensor<8x4xf32> -> tensor<4x8xf32>
  return %y, %q : tensor<4x4xf32>, tensor<4x8xf32>
}
