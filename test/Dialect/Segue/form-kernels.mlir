// RUN: segue-opt %s --pass-pipeline='builtin.module(segue-expand,cse,canonicalize,func.func(segue-form-kernels))' | FileCheck %s

// A residual addition and the norm after it are one kernel with both results.
// CHECK-LABEL: func.func @residual_norm
// CHECK: %[[K:.*]]:2 = segue.fused
// CHECK: segue.add
// CHECK-COUNT-2: segue.reduce
// CHECK: segue.rsqrt
// CHECK: segue.yield
// CHECK-NOT: segue.fused
// CHECK: return %[[K]]#0, %[[K]]#1
func.func @residual_norm(%x: tensor<4x16x32xf32>, %y: tensor<4x16x32xf32>, %g: tensor<32xf32>, %b: tensor<32xf32>)
    -> (tensor<4x16x32xf32>, tensor<4x16x32xf32>) {
  %s = segue.add %x, %y : tensor<4x16x32xf32>
  %r, %m, %v = segue.layer_norm %s gamma %g : tensor<32xf32> beta %b : tensor<32xf32> eps 1.0e-5 : tensor<4x16x32xf32> -> tensor<4x16xf32>
  return %s, %r : tensor<4x16x32xf32>, tensor<4x16x32xf32>
}

// A bias goes into the matmul; what follows is a kernel.
// CHECK-LABEL: func.func @linear_gelu(
// CHECK-SAME: %[[X:.*]]: tensor<64x32xf32>, %[[W:.*]]: tensor<32x48xf32>, %[[B:.*]]: tensor<48xf32>
// CHECK: %[[D:.*]] = segue.dot_general %[[X]], %[[W]] bias %[[B]]
// CHECK-NEXT: segue.fused(%{{.*}} = %[[D]] : tensor<64x48xf32>) -> tensor<64x48xf32>
// CHECK-NOT: segue.broadcast
func.func @linear_gelu(%x: tensor<64x32xf32>, %w: tensor<32x48xf32>, %b: tensor<48xf32>) -> tensor<64x48xf32> {
  %d = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<64x32xf32>, tensor<32x48xf32> -> tensor<64x48xf32>
  %c = segue.broadcast %b dims [1] : tensor<48xf32> -> tensor<64x48xf32>
  %a = segue.add %d, %c : tensor<64x48xf32>
  %y = segue.gelu tanh %a : tensor<64x48xf32>
  return %y : tensor<64x48xf32>
}

// Two kernels on both sides of a matmul must not become one: it would wait for
// itself.
// CHECK-LABEL: func.func @no_cycle
// CHECK: %[[E:.*]] = segue.fused
// CHECK: %[[D:.*]] = segue.dot_general %[[E]], %[[E]]
// CHECK: segue.fused(%{{.*}} = %[[E]] : tensor<8x8xf32>, %{{.*}} = %[[D]] : tensor<8x8xf32>)
func.func @no_cycle(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %e = segue.exp %x : tensor<8x8xf32>
  %d = segue.dot_general %e, %e batch [] x [] contract [1] x [0] : tensor<8x8xf32>, tensor<8x8xf32> -> tensor<8x8xf32>
  %y = segue.add %e, %d : tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}

// The gradient of a bias: sums of chunks next to the elementwise work, then a
// kernel that adds the chunks.
// CHECK-LABEL: func.func @chunks
// CHECK: %[[K:.*]]:2 = segue.fused
// CHECK-SAME: -> (tensor<4x256x32xf32>, tensor<1x64x32xf32>)
// CHECK: segue.mul
// CHECK: segue.reduce
// CHECK: segue.fused(%{{.*}} = %[[K]]#1
func.func @chunks(%x: tensor<4x256x32xf32>, %z: tensor<4x256x32xf32>) -> (tensor<4x256x32xf32>, tensor<32xf32>) {
  %y = segue.mul %x, %z : tensor<4x256x32xf32>
  %s = segue.reduce sum %y dims [0, 1] : tensor<4x256x32xf32> -> tensor<32xf32>
  return %y, %s : tensor<4x256x32xf32>, tensor<32xf32>
}

// Views that a library call reads stay outside of kernels, untouched.
// CHECK-LABEL: func.func @views
// CHECK-NOT: segue.fused
// CHECK: segue.slice
// CHECK: segue.dot_general
func.func @views(%x: tensor<4x8xf32>, %w: tensor<9x2xf32>) -> tensor<4x2xf32> {
  %s = segue.slice %w [1, 0] to [9, 2] by [1, 1] : tensor<9x2xf32> -> tensor<8x2xf32>
  %y = segue.dot_general %x, %s batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x2xf32> -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// No stride walks a transposed value whose dimensions are then joined: what a
// kernel makes is written in that order instead of being copied for the call.
// CHECK-LABEL: func.func @joined
// CHECK: %[[K:.*]] = segue.fused
// CHECK: segue.exp
// CHECK: segue.transpose
// CHECK: %[[R:.*]] = segue.reshape %[[K]]
// CHECK: segue.dot_general %[[R]]
// CHECK-NOT: segue.fused
func.func @joined(%x: tensor<3x4x8xf32>, %w: tensor<24x2xf32>) -> tensor<4x2xf32> {
  %e = segue.exp %x : tensor<3x4x8xf32>
  %t = segue.transpose %e [1, 0, 2] : tensor<3x4x8xf32> -> tensor<4x3x8xf32>
  %r = segue.reshape %t : tensor<4x3x8xf32> -> tensor<4x24xf32>
  %y = segue.dot_general %r, %w batch [] x [] contract [1] x [0] : tensor<4x24xf32>, tensor<24x2xf32> -> tensor<4x2xf32>
  return %y : tensor<4x2xf32>
}

// The table of a gather is read anywhere, a view of it too: what makes it is
// another kernel, even where that also has readers that could be fused.
// CHECK-LABEL: func.func @table_through_view
// CHECK: %[[K:.*]]:2 = segue.fused
// CHECK: segue.exp
// CHECK: segue.reduce
// CHECK: segue.fused(%{{.*}} = %[[K]]#
// CHECK: segue.gather
func.func @table_through_view(%x: tensor<16x4xf32>, %i: tensor<16xi64>) -> tensor<16xf32> {
  %e = segue.exp %x : tensor<16x4xf32>
  %t = segue.reshape %e : tensor<16x4xf32> -> tensor<64xf32>
  %g = segue.gather %t[%i] : tensor<64xf32>, tensor<16xi64> -> tensor<16xf32>
  %s = segue.reduce sum %e dims [1] : tensor<16x4xf32> -> tensor<16xf32>
  %y = segue.add %g, %s : tensor<16xf32>
  return %y : tensor<16xf32>
}

// A constant is not an input that blocks share: their weights come and go apart.
// CHECK-LABEL: func.func @constants_join_no_blocks
// CHECK: segue.fused
// CHECK: segue.fused
// CHECK-NOT: segue.fused
func.func @constants_join_no_blocks(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %d: tensor<64x64xf32>)
    -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
  %c = segue.constant dense<5.0e-01> : tensor<64x64xf32>
  %0 = segue.mul %a, %c {segue.block = "h.0"} : tensor<64x64xf32>
  %1 = segue.mul %b, %c {segue.block = "h.1"} : tensor<64x64xf32>
  %2 = segue.mul %d, %c {segue.block = "h.1"} : tensor<64x64xf32>
  return %0, %1, %2 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
}

// CHECK-LABEL: func.func @an_input_joins
// CHECK: segue.fused
// CHECK-NOT: segue.fused
func.func @an_input_joins(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %c: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %0 = segue.mul %a, %c {segue.block = "h.0"} : tensor<64x64xf32>
  %1 = segue.mul %b, %c {segue.block = "h.1"} : tensor<64x64xf32>
  return %0, %1 : tensor<64x64xf32>, tensor<64x64xf32>
}

// Rows of an embedding that lies outside of blocks are looked up outside of them: in a kernel
// of block h.0 all of the table would come and go with that block.
// CHECK-LABEL: func.func @an_embedding_joins_no_block
// CHECK: %[[E:.*]] = segue.fused
// CHECK: segue.gather
// CHECK: segue.gather
// CHECK: segue.add
// CHECK: segue.fused(%{{.*}} = %[[E]]
// CHECK: {segue.block = "h.0"}
// CHECK-NOT: segue.fused
func.func @an_embedding_joins_no_block(%table: tensor<512x64xf32> {segue.role = #segue.role<parameter>, segue.name = "table"}, %places: tensor<32x64xf32> {segue.role = #segue.role<frozen>, segue.name = "places"},
    %tokens: tensor<16xi64>, %at: tensor<16xi64>) -> (tensor<16x64xf32>, tensor<16x64xf32>) {
  %0 = segue.gather %table[%tokens] : tensor<512x64xf32>, tensor<16xi64> -> tensor<16x64xf32>
  %1 = segue.gather %places[%at] : tensor<32x64xf32>, tensor<16xi64> -> tensor<16x64xf32>
  %2 = segue.add %0, %1 : tensor<16x64xf32>
  %3 = segue.softmax %2 dim 1 {segue.block = "h.0"} : tensor<16x64xf32>
  return %2, %3 : tensor<16x64xf32>, tensor<16x64xf32>
}

// CHECK-LABEL: func.func @an_embedding_of_a_block_joins_it
// CHECK: segue.fused
// CHECK-NOT: segue.fused
// CHECK: return
func.func @an_embedding_of_a_block_joins_it(%table: tensor<512x64xf32> {segue.role = #segue.role<parameter>, segue.name = "table"}, %tokens: tensor<16xi64>) -> tensor<16x64xf32> {
  %0 = segue.gather %table[%tokens] {segue.block = "h.0"} : tensor<512x64xf32>, tensor<16xi64> -> tensor<16x64xf32>
  %1 = segue.exp %0 {segue.block = "h.0"} : tensor<16x64xf32>
  return %1 : tensor<16x64xf32>
}

// -----

// The gradient of a table that is a matrix of a product as well: rows are added into what the product gives, those of
// one index first, so that nothing else is as large as the table.
// CHECK-LABEL: func.func @tied
// CHECK: %[[P:.*]] = segue.dot_general
// CHECK: %[[FIRST:.*]] = segue.fused
// CHECK: segue.compare eq
// CHECK: segue.reduce min
// CHECK: %[[SUMS:.*]] = segue.fused(%{{.*}} = %{{.*}} : tensor<2x2x8xf32>, %{{.*}} = %[[FIRST]] : tensor<4xi64>) -> tensor<4x8xf32>
// CHECK: segue.scatter_add
// CHECK: %[[Y:.*]] = segue.fused({{.*}}%[[SUMS]]{{.*}}%[[P]]{{.*}}) -> tensor<100x8xf32>
// CHECK: segue.scatter_add %{{.*}}[%{{.*}}] into %{{.*}}
// CHECK: return %[[Y]]
func.func @tied(%a: tensor<100x4xf32>, %b: tensor<4x8xf32>, %u: tensor<2x2x8xf32>, %i: tensor<2x2xi64>) -> tensor<100x8xf32> {
  %p = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<100x4xf32>, tensor<4x8xf32> -> tensor<100x8xf32>
  %s = segue.scatter_add %u[%i] : tensor<2x2x8xf32>, tensor<2x2xi64> -> tensor<100x8xf32>
  %y = segue.add %p, %s : tensor<100x8xf32>
  return %y : tensor<100x8xf32>
}

// -----

// Where there are about as many rows as the table has, comparing them does not pay.
// CHECK-LABEL: func.func @small_table
// CHECK-NOT: into
// CHECK: return
func.func @small_table(%p: tensor<6x8xf32>, %u: tensor<4x8xf32>, %i: tensor<4xi64>) -> tensor<6x8xf32> {
  %s = segue.scatter_add %u[%i] : tensor<4x8xf32>, tensor<4xi64> -> tensor<6x8xf32>
  %y = segue.add %p, %s : tensor<6x8xf32>
  return %y : tensor<6x8xf32>
}
