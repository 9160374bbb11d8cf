// RUN: segue-opt %s --segue-outline-kernels --split-input-file | FileCheck %s

// The exponential is needed twice: it is kept in a row buffer, not computed
// again, and the sum is carried in a register.
// CHECK: func.func @k0
// CHECK: %[[ROW:.*]] = memref.alloca() : memref<16xf32>
// CHECK: scf.for
// CHECK: %[[SUM:.*]] = scf.for %{{.*}} iter_args
// CHECK: math.exp
// CHECK: memref.store %{{.*}}, %[[ROW]]
// CHECK: scf.for
// CHECK: memref.load %[[ROW]]
// CHECK-NOT: math.exp
func.func @kept(%x: tensor<4x16xf32>) -> tensor<4x16xf32> {
  %y = segue.fused(%a = %x : tensor<4x16xf32>) -> (tensor<4x16xf32>) {
    %e = segue.exp %a : tensor<4x16xf32>
    %s = segue.reduce sum %e dims [1] : tensor<4x16xf32> -> tensor<4xf32>
    %b = segue.broadcast %s dims [0] : tensor<4xf32> -> tensor<4x16xf32>
    %d = segue.div %e, %b : tensor<4x16xf32>
    segue.yield %d : tensor<4x16xf32>
  }
  return %y : tensor<4x16xf32>
}

// -----

// A bad index is reported and never read.
// CHECK: func.func @k0_gather
// CHECK: %[[IN:.*]] = arith.cmpi ult, %[[I:.*]], %{{.*}} : index
// CHECK: scf.if
// CHECK: memref.store %c2_i64
// CHECK: arith.select %[[IN]], %[[I]]
func.func @checked(%t: tensor<5x8xf32>, %i: tensor<3xi64>) -> tensor<3x8xf32> {
  %y = segue.fused(%a = %t : tensor<5x8xf32>, %b = %i : tensor<3xi64>) -> (tensor<3x8xf32>) {
    %g = segue.gather %a[%b] : tensor<5x8xf32>, tensor<3xi64> -> tensor<3x8xf32>
    segue.yield %g : tensor<3x8xf32>
  }
  return %y : tensor<3x8xf32>
}

// -----

// The loop over the columns is cut where the operands meet: no element asks
// which one it is from.
// CHECK: func.func @k0_concat
// CHECK-NOT: scf.if
// CHECK: scf.for %{{.*}} = %c0 to %c4
// CHECK: scf.for %{{.*}} = %c4 to %c10
func.func @cut(%x: tensor<64x4xf32>, %z: tensor<64x6xf32>) -> tensor<64x10xf32> {
  %y = segue.fused(%a = %x : tensor<64x4xf32>, %b = %z : tensor<64x6xf32>) -> (tensor<64x10xf32>) {
    %c = segue.concat %a, %b dim 1 : tensor<64x4xf32>, tensor<64x6xf32> -> tensor<64x10xf32>
    segue.yield %c : tensor<64x10xf32>
  }
  return %y : tensor<64x10xf32>
}

// -----

// Sums of a reduction may be taken in any order. Nothing else may: (x - max) - log(sum)
// is no x - (max + log(sum)), where a large max swallows the logarithm.
// CHECK: func.func @k0
// CHECK: arith.addf {{.*}} fastmath<reassoc,nsz,contract>
// CHECK: arith.subf {{.*}} fastmath<nsz,contract>
// CHECK: arith.subf {{.*}} fastmath<nsz,contract>
func.func @order(%x: tensor<4x16xf32>, %m: tensor<4x16xf32>) -> tensor<4x16xf32> {
  %y = segue.fused(%a = %x : tensor<4x16xf32>, %n = %m : tensor<4x16xf32>) -> (tensor<4x16xf32>) {
    %s = segue.reduce sum %a dims [1] : tensor<4x16xf32> -> tensor<4xf32>
    %b = segue.broadcast %s dims [0] : tensor<4xf32> -> tensor<4x16xf32>
    %c = segue.sub %a, %n : tensor<4x16xf32>
    %d = segue.sub %c, %b : tensor<4x16xf32>
    segue.yield %d : tensor<4x16xf32>
  }
  return %y : tensor<4x16xf32>
}

// -----

// Two products are added or subtracted, and one of them is rounded: which one does not depend
// on what else is in the kernel. A product with two uses is rounded in any case.
// CHECK: func.func @k0
// CHECK: %[[AB:.*]] = arith.mulf %{{.*}} fastmath<nsz,contract>
// CHECK: %[[CD:.*]] = arith.mulf %{{.*}} fastmath<nsz> : f32
// CHECK: arith.addf %[[AB]], %[[CD]] fastmath<nsz,contract>
// CHECK: func.func @k1
// CHECK: %[[AB:.*]] = arith.mulf %{{.*}} fastmath<nsz> : f32
// CHECK: %[[CD:.*]] = arith.mulf %{{.*}} fastmath<nsz,contract>
// CHECK: arith.subf %[[AB]], %[[CD]] fastmath<nsz,contract>
func.func @products(%x: tensor<64xf32>, %z: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>) {
  %y = segue.fused(%a = %x : tensor<64xf32>, %b = %z : tensor<64xf32>) -> (tensor<64xf32>) {
    %ab = segue.mul %a, %b : tensor<64xf32>
    %aa = segue.mul %a, %a : tensor<64xf32>
    %s = segue.add %ab, %aa : tensor<64xf32>
    segue.yield %s : tensor<64xf32>
  }
  %w:2 = segue.fused(%a = %x : tensor<64xf32>, %b = %y : tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
    %ab = segue.mul %a, %b : tensor<64xf32>
    %aa = segue.mul %a, %a : tensor<64xf32>
    %s = segue.sub %ab, %aa : tensor<64xf32>
    segue.yield %s, %ab : tensor<64xf32>, tensor<64xf32>
  }
  return %y, %w#0, %w#1 : tensor<64xf32>, tensor<64xf32>, tensor<64xf32>
}

// -----

// A product of scalars is rounded, however many read it.
// CHECK: func.func @k0
// CHECK: %[[PRODUCT:.*]] = arith.mulf %{{.*}} fastmath<nsz> : f32
// CHECK: arith.addf %[[PRODUCT]], %{{.*}} fastmath<nsz,contract>
// CHECK: arith.mulf %{{.*}} fastmath<nsz,contract>
func.func @scalar_product(%x: tensor<64xf32>, %s: tensor<f32>, %t: tensor<f32>) -> tensor<64xf32> {
  %y = segue.fused(%a = %x : tensor<64xf32>, %b = %s : tensor<f32>, %c = %t : tensor<f32>) -> (tensor<64xf32>) {
    %bc = segue.mul %b, %c : tensor<f32>
    %d = segue.add %bc, %c : tensor<f32>
    %e = segue.broadcast %d dims [] : tensor<f32> -> tensor<64xf32>
    %f = segue.mul %a, %e : tensor<64xf32>
    segue.yield %f : tensor<64xf32>
  }
  return %y : tensor<64xf32>
}

// -----

// A result that is stored before the row of an operand was read for the last time
// does not take its place; what is stored in the last level may.
// CHECK: func.func @k0
// CHECK-SAME: segue.in_place = array<i64: 0, 1>
func.func @place(%x: tensor<4x16xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>) {
  %y:2 = segue.fused(%a = %x : tensor<4x16xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>) {
    %e = segue.exp %a : tensor<4x16xf32>
    %s = segue.reduce sum %e dims [1] : tensor<4x16xf32> -> tensor<4xf32>
    %b = segue.broadcast %s dims [0] : tensor<4xf32> -> tensor<4x16xf32>
    %d = segue.add %a, %b : tensor<4x16xf32>
    segue.yield %e, %d : tensor<4x16xf32>, tensor<4x16xf32>
  }
  return %y#0, %y#1 : tensor<4x16xf32>, tensor<4x16xf32>
}

// -----

// A number per row may take the place of one that another is computed from: all of a row are computed before the
// first is stored.
// CHECK: func.func @k0
// CHECK-SAME: segue.in_place = array<i64: 1, 0, 1, 1>
// CHECK: %[[MOST:.*]] = scf.for
// CHECK: %[[NUMBER:.*]] = memref.load %arg1
// CHECK-NEXT: %[[BOTH:.*]] = arith.addf %[[MOST]], %[[NUMBER]]
// CHECK-NEXT: memref.store %[[MOST]], %arg2
// CHECK-NEXT: memref.store %[[BOTH]], %arg3
func.func @rows(%x: tensor<4x16xf32>, %s: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %y:2 = segue.fused(%a = %x : tensor<4x16xf32>, %b = %s : tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %p = segue.mul %a, %a : tensor<4x16xf32>
    %m = segue.reduce max %p dims [1] : tensor<4x16xf32> -> tensor<4xf32>
    %t = segue.add %m, %b : tensor<4xf32>
    segue.yield %m, %t : tensor<4xf32>, tensor<4xf32>
  }
  return %y#0, %y#1 : tensor<4xf32>, tensor<4xf32>
}
