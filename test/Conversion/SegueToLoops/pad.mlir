// RUN: segue-opt %s --segue-outline-kernels --split-input-file | FileCheck %s

// Windows of 3 by 2 over rows of 16 elements, one around them: the loop over windows tests for the edge, and the loop
// over the elements of a row, which is as long as a vector or several, only takes what it reads or the padding. A
// branch there would keep that from eight elements at once, and where it goes by values, as in a pool, cost most of the time.
// CHECK: func.func @k0
// CHECK: %[[AT:.*]] = arith.addi
// CHECK: %[[INSIDE:.*]] = arith.cmpi ult, %[[AT]], %{{.*}} : index
// CHECK: %[[ROW:.*]] = arith.select %[[INSIDE]], %[[AT]]
// CHECK: scf.for
// CHECK-NOT: scf.if
// CHECK: %[[VALUE:.*]] = memref.load %arg0
// CHECK: arith.select %[[INSIDE]], %[[VALUE]]
// CHECK-NOT: scf.if
// CHECK: return
func.func @outer(%x: tensor<8x9x16xf32>) -> tensor<8x5x16xf32> {
  %0 = segue.fused(%a = %x : tensor<8x9x16xf32>) -> (tensor<8x5x16xf32>) {
    %1 = segue.pad %a low [0, 1, 0] high [0, 1, 0] interior [0, 0, 0] value 0xFF800000 : f32 : tensor<8x9x16xf32> -> tensor<8x11x16xf32>
    %2 = segue.slice %1 [0, 0, 0] to [8, 9, 16] by [1, 2, 1] : tensor<8x11x16xf32> -> tensor<8x5x16xf32>
    segue.yield %2 : tensor<8x5x16xf32>
  }
  return %0 : tensor<8x5x16xf32>
}

// -----

// Windows along the elements of a row: the loop is cut where the edge is, though it takes every other element.
// CHECK: func.func @k0
// CHECK-DAG: %[[ONE:.*]] = arith.constant 1 : index
// CHECK-DAG: %[[ZERO:.*]] = arith.constant 0 : index
// CHECK-DAG: %[[END:.*]] = arith.constant 16 : index
// CHECK-NOT: scf.if
// CHECK: scf.for %{{.*}} = %[[ZERO]] to %[[ONE]] step
// CHECK-NOT: memref.load
// CHECK: scf.for %{{.*}} = %[[ONE]] to %[[END]] step
// CHECK: memref.load
// CHECK-NOT: scf.if
// CHECK: return
func.func @inner(%x: tensor<8x32xf32>) -> tensor<8x16xf32> {
  %0 = segue.fused(%a = %x : tensor<8x32xf32>) -> (tensor<8x16xf32>) {
    %1 = segue.pad %a low [0, 1] high [0, 0] interior [0, 0] value 0xFF800000 : f32 : tensor<8x32xf32> -> tensor<8x33xf32>
    %2 = segue.slice %1 [0, 0] to [8, 31] by [1, 2] : tensor<8x33xf32> -> tensor<8x16xf32>
    segue.yield %2 : tensor<8x16xf32>
  }
  return %0 : tensor<8x16xf32>
}

// -----

// Where there is more padding than operand, what lies around it is not read.
// CHECK: func.func @k0
// CHECK: scf.if
// CHECK: memref.load
func.func @mostly_padding(%x: tensor<8x2x16xf32>) -> tensor<8x5x16xf32> {
  %0 = segue.fused(%a = %x : tensor<8x2x16xf32>) -> (tensor<8x5x16xf32>) {
    %1 = segue.pad %a low [0, 3, 0] high [0, 4, 0] interior [0, 0, 0] value 0.0 : f32 : tensor<8x2x16xf32> -> tensor<8x9x16xf32>
    %2 = segue.slice %1 [0, 0, 0] to [8, 9, 16] by [1, 2, 1] : tensor<8x9x16xf32> -> tensor<8x5x16xf32>
    segue.yield %2 : tensor<8x5x16xf32>
  }
  return %0 : tensor<8x5x16xf32>
}
