// RUN: segue-opt %s --canonicalize | FileCheck %s

// What is folded has the value of what was there, on pseudo-random inputs.
// RUN: segue-opt %s --segue-interpret="all print" -o /dev/null > %t.before
// RUN: segue-opt %s --canonicalize --segue-interpret="all print" -o /dev/null > %t.after
// RUN: diff %t.before %t.after

// Each case has its counterpart, which must stay.

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

// CHECK-LABEL: func.func @identities
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>)
// CHECK-NEXT: return %[[X]], %[[X]], %[[X]], %[[X]], %[[X]], %[[X]]
func.func @identities(%x: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = segue.constant dense<0.0> : tensor<4xf32>
  %one = segue.constant dense<1.0> : tensor<4xf32>
  %0 = segue.add %zero, %x : tensor<4xf32>
  %1 = segue.sub %x, %zero : tensor<4xf32>
  %2 = segue.mul %one, %x : tensor<4xf32>
  %3 = segue.div %x, %one : tensor<4xf32>
  %4 = segue.pow %x, %one : tensor<4xf32>
  %5 = segue.neg %x : tensor<4xf32>
  %6 = segue.neg %5 : tensor<4xf32>
  return %0, %1, %2, %3, %4, %6 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// x * 0 and x - x are no zeros where x is NaN; 0 - x, 1 / x and 1 ^ x are none of x.
// CHECK-LABEL: func.func @float_not_identities
// CHECK: segue.mul
// CHECK: segue.sub
// CHECK: segue.sub
// CHECK: segue.div
// CHECK: segue.pow
func.func @float_not_identities(%x: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %zero = segue.constant dense<0.0> : tensor<4xf32>
  %one = segue.constant dense<1.0> : tensor<4xf32>
  %0 = segue.mul %x, %zero : tensor<4xf32>
  %1 = segue.sub %x, %x : tensor<4xf32>
  %2 = segue.sub %zero, %x : tensor<4xf32>
  %3 = segue.div %one, %x : tensor<4xf32>
  %4 = segue.pow %one, %x : tensor<4xf32>
  return %0, %1, %2, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// Integers have no NaN.
// CHECK-LABEL: func.func @integer_zeros
// CHECK-NEXT: %[[ZERO:.*]] = segue.constant dense<0> : tensor<4xi32>
// CHECK-NEXT: return %[[ZERO]], %[[ZERO]]
func.func @integer_zeros(%x: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) {
  %zero = segue.constant dense<0> : tensor<4xi32>
  %0 = segue.mul %x, %zero : tensor<4xi32>
  %1 = segue.sub %x, %x : tensor<4xi32>
  return %0, %1 : tensor<4xi32>, tensor<4xi32>
}

// CHECK-LABEL: func.func @logic
// CHECK-SAME: (%[[A:.*]]: tensor<4xi1>)
// CHECK-DAG: %[[FALSE:.*]] = segue.constant dense<false> : tensor<4xi1>
// CHECK-DAG: %[[TRUE:.*]] = segue.constant dense<true> : tensor<4xi1>
// CHECK-NOT: segue
// CHECK: return %[[A]], %[[FALSE]], %[[TRUE]], %[[A]], %[[A]]
func.func @logic(%a: tensor<4xi1>) -> (tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>) {
  %true = segue.constant dense<true> : tensor<4xi1>
  %false = segue.constant dense<false> : tensor<4xi1>
  %0 = segue.and %a, %true : tensor<4xi1>
  %1 = segue.and %a, %false : tensor<4xi1>
  %2 = segue.or %a, %true : tensor<4xi1>
  %3 = segue.or %a, %false : tensor<4xi1>
  %4 = segue.not %a : tensor<4xi1>
  %5 = segue.not %4 : tensor<4xi1>
  return %0, %1, %2, %3, %5 : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
}

// Bits of integers: all of them set are those of -1, and not of 1.
// CHECK-LABEL: func.func @bits
// CHECK-SAME: (%[[A:.*]]: tensor<4xi64>)
// CHECK-DAG: %[[NONE:.*]] = segue.constant dense<0> : tensor<4xi64>
// CHECK-DAG: %[[ONE:.*]] = segue.constant dense<1> : tensor<4xi64>
// CHECK-DAG: %[[ALL:.*]] = segue.constant dense<-1> : tensor<4xi64>
// CHECK-DAG: %[[SOME:.*]] = segue.constant dense<[4, -8, 0, 6]> : tensor<4xi64>
// CHECK-DAG: %[[LOW:.*]] = segue.and %[[A]], %[[ONE]]
// CHECK-DAG: %[[ODD:.*]] = segue.or %[[A]], %[[ONE]]
// CHECK: return %[[A]], %[[LOW]], %[[NONE]], %[[ALL]], %[[ODD]], %[[A]], %[[SOME]]
func.func @bits(%a: tensor<4xi64>) -> (tensor<4xi64>, tensor<4xi64>, tensor<4xi64>, tensor<4xi64>, tensor<4xi64>, tensor<4xi64>,
                                       tensor<4xi64>) {
  %all = segue.constant dense<-1> : tensor<4xi64>
  %one = segue.constant dense<1> : tensor<4xi64>
  %none = segue.constant dense<0> : tensor<4xi64>
  %0 = segue.and %a, %all : tensor<4xi64>
  %1 = segue.and %a, %one : tensor<4xi64>
  %2 = segue.and %a, %none : tensor<4xi64>
  %3 = segue.or %a, %all : tensor<4xi64>
  %4 = segue.or %a, %one : tensor<4xi64>
  %5 = segue.or %a, %none : tensor<4xi64>
  %6 = segue.constant dense<[5, -7, 1, 7]> : tensor<4xi64>
  %7 = segue.constant dense<[4, -8, 2, 14]> : tensor<4xi64>
  %8 = segue.and %6, %7 : tensor<4xi64>
  return %0, %1, %2, %3, %4, %5, %8 : tensor<4xi64>, tensor<4xi64>, tensor<4xi64>, tensor<4xi64>, tensor<4xi64>, tensor<4xi64>, tensor<4xi64>
}

// CHECK-LABEL: func.func @constants
// CHECK-DAG: dense<[4.000000e+00, 1.000000e+00]>
// CHECK-DAG: dense<-1.280000e+02> : tensor<100x100xbf16>
// CHECK-DAG: dense<-128> : tensor<2xi8>
// CHECK-DAG: dense<[false, true]>
// CHECK-NOT: segue.add
// CHECK: return
func.func @constants() -> (tensor<2xf32>, tensor<100x100xbf16>, tensor<2xi8>, tensor<2xi1>) {
  %a = segue.constant dense<[1.0, -2.0]> : tensor<2xf32>
  %b = segue.constant dense<3.0> : tensor<2xf32>
  %0 = segue.add %a, %b : tensor<2xf32>
  // A splat folds at any size, rounded to its type: -127.75 is no bf16.
  %c = segue.constant dense<-128.0> : tensor<100x100xbf16>
  %d = segue.constant dense<0.25> : tensor<100x100xbf16>
  %1 = segue.add %c, %d : tensor<100x100xbf16>
  // Integers wrap.
  %e = segue.constant dense<127> : tensor<2xi8>
  %f = segue.constant dense<1> : tensor<2xi8>
  %2 = segue.add %e, %f : tensor<2xi8>
  %3 = segue.compare gt %a, %b : tensor<2xf32> -> tensor<2xi1>
  %4 = segue.not %3 : tensor<2xi1>
  %5 = segue.compare lt %a, %0 : tensor<2xf32> -> tensor<2xi1>
  %6 = segue.and %4, %5 : tensor<2xi1>
  %7 = segue.compare lt %a, %b : tensor<2xf32> -> tensor<2xi1>
  %8 = segue.constant dense<[false, true]> : tensor<2xi1>
  %9 = segue.and %7, %8 : tensor<2xi1>
  return %0, %1, %2, %9 : tensor<2xf32>, tensor<100x100xbf16>, tensor<2xi8>, tensor<2xi1>
}

//===----------------------------------------------------------------------===//
// Choice and casts
//===----------------------------------------------------------------------===//

// CHECK-LABEL: func.func @select
// CHECK-SAME: (%[[C:.*]]: tensor<4xi1>, %[[A:.*]]: tensor<4xf32>, %[[B:.*]]: tensor<4xf32>)
// CHECK-NEXT: %[[S:.*]] = segue.select %[[C]], %[[B]], %[[A]]
// CHECK-NEXT: return %[[A]], %[[A]], %[[B]], %[[S]]
func.func @select(%c: tensor<4xi1>, %a: tensor<4xf32>, %b: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %true = segue.constant dense<true> : tensor<4xi1>
  %false = segue.constant dense<false> : tensor<4xi1>
  %0 = segue.select %c, %a, %a : tensor<4xi1>, tensor<4xf32>
  %1 = segue.select %true, %a, %b : tensor<4xi1>, tensor<4xf32>
  %2 = segue.select %false, %a, %b : tensor<4xi1>, tensor<4xf32>
  %not = segue.not %c : tensor<4xi1>
  %3 = segue.select %not, %a, %b : tensor<4xi1>, tensor<4xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// x == x holds for integers; a float may be NaN.
// CHECK-LABEL: func.func @compare_with_itself
// CHECK-DAG: segue.constant dense<true>
// CHECK-DAG: segue.constant dense<false>
// CHECK: segue.compare eq %{{.*}} : tensor<4xf32>
// CHECK-NOT: segue.compare
func.func @compare_with_itself(%x: tensor<4xf32>, %i: tensor<4xi64>) -> (tensor<4xi1>, tensor<4xi1>, tensor<4xi1>) {
  %0 = segue.compare eq %x, %x : tensor<4xf32> -> tensor<4xi1>
  %1 = segue.compare le %i, %i : tensor<4xi64> -> tensor<4xi1>
  %2 = segue.compare lt %i, %i : tensor<4xi64> -> tensor<4xi1>
  return %0, %1, %2 : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
}

// Widening and narrowing again gives the value back.
// CHECK-LABEL: func.func @lossless_casts
// CHECK-SAME: (%[[X:.*]]: tensor<4xbf16>, %[[I:.*]]: tensor<4xi8>, %[[B:.*]]: tensor<4xi1>)
// CHECK-NEXT: %[[HALF:.*]] = segue.cast %[[X]] : tensor<4xbf16> -> tensor<4xf16>
// CHECK-NEXT: return %[[X]], %[[I]], %[[B]], %[[HALF]]
func.func @lossless_casts(%x: tensor<4xbf16>, %i: tensor<4xi8>, %b: tensor<4xi1>)
    -> (tensor<4xbf16>, tensor<4xi8>, tensor<4xi1>, tensor<4xf16>) {
  %0 = segue.cast %x : tensor<4xbf16> -> tensor<4xf32>
  %1 = segue.cast %0 : tensor<4xf32> -> tensor<4xbf16>
  %2 = segue.cast %i : tensor<4xi8> -> tensor<4xf16>
  %3 = segue.cast %2 : tensor<4xf16> -> tensor<4xi8>
  %4 = segue.cast %b : tensor<4xi1> -> tensor<4xi64>
  %5 = segue.cast %4 : tensor<4xi64> -> tensor<4xi1>
  %6 = segue.cast %0 : tensor<4xf32> -> tensor<4xf16>
  return %1, %3, %5, %6 : tensor<4xbf16>, tensor<4xi8>, tensor<4xi1>, tensor<4xf16>
}

// Narrowing and widening again rounds: both casts stay. So does a large integer
// that goes by way of a float, and bf16 by way of f16.
// CHECK-LABEL: func.func @lossy_casts
// CHECK-COUNT-6: segue.cast
// CHECK: return
func.func @lossy_casts(%x: tensor<4xf32>, %i: tensor<4xi32>, %h: tensor<4xbf16>)
    -> (tensor<4xf32>, tensor<4xi32>, tensor<4xbf16>) {
  %0 = segue.cast %x : tensor<4xf32> -> tensor<4xbf16>
  %1 = segue.cast %0 : tensor<4xbf16> -> tensor<4xf32>
  %2 = segue.cast %i : tensor<4xi32> -> tensor<4xf32>
  %3 = segue.cast %2 : tensor<4xf32> -> tensor<4xi32>
  %4 = segue.cast %h : tensor<4xbf16> -> tensor<4xf16>
  %5 = segue.cast %4 : tensor<4xf16> -> tensor<4xbf16>
  return %1, %3, %5 : tensor<4xf32>, tensor<4xi32>, tensor<4xbf16>
}

// CHECK-LABEL: func.func @constant_casts
// CHECK-DAG: dense<[-1, 127, 0]> : tensor<3xi8>
// CHECK-DAG: dense<[true, true, false]>
// CHECK-DAG: dense<1.000000e+00> : tensor<2xbf16>
// CHECK-NOT: segue.cast
func.func @constant_casts() -> (tensor<3xi8>, tensor<3xi1>, tensor<2xbf16>) {
  %x = segue.constant dense<[-1.9, 300.0, 0.0]> : tensor<3xf32>
  %0 = segue.cast %x : tensor<3xf32> -> tensor<3xi8>
  %1 = segue.cast %x : tensor<3xf32> -> tensor<3xi1>
  %y = segue.constant dense<1.00390625> : tensor<2xf32>
  %2 = segue.cast %y : tensor<2xf32> -> tensor<2xbf16>
  return %0, %1, %2 : tensor<3xi8>, tensor<3xi1>, tensor<2xbf16>
}

//===----------------------------------------------------------------------===//
// Shapes
//===----------------------------------------------------------------------===//

// CHECK-LABEL: func.func @shape_identities
// CHECK-SAME: (%[[X:.*]]: tensor<4x6xf32>)
// CHECK-NEXT: return %[[X]], %[[X]], %[[X]], %[[X]], %[[X]], %[[X]], %[[X]]
func.func @shape_identities(%x: tensor<4x6xf32>)
    -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) {
  %r = segue.reshape %x : tensor<4x6xf32> -> tensor<24xf32>
  %0 = segue.reshape %r : tensor<24xf32> -> tensor<4x6xf32>
  %t = segue.transpose %x [1, 0] : tensor<4x6xf32> -> tensor<6x4xf32>
  %1 = segue.transpose %t [1, 0] : tensor<6x4xf32> -> tensor<4x6xf32>
  %2 = segue.broadcast %x dims [0, 1] : tensor<4x6xf32> -> tensor<4x6xf32>
  %3 = segue.slice %x [0, 0] to [4, 6] by [1, 1] : tensor<4x6xf32> -> tensor<4x6xf32>
  %4 = segue.pad %x low [0, 0] high [0, 0] interior [0, 0] value 7.0 : f32 : tensor<4x6xf32> -> tensor<4x6xf32>
  %5 = segue.concat %x dim 0 : tensor<4x6xf32> -> tensor<4x6xf32>
  %6 = segue.reduce max %x dims [] : tensor<4x6xf32> -> tensor<4x6xf32>
  return %0, %1, %2, %3, %4, %5, %6 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
}

// A transpose of a square is no identity although the type is the same.
// CHECK-LABEL: func.func @square
// CHECK: segue.transpose %{{.*}} [1, 0]
func.func @square(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = segue.transpose %x [1, 0] : tensor<4x4xf32> -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// Chains become one op.
// CHECK-LABEL: func.func @chains
// CHECK-SAME: (%[[X:.*]]: tensor<2x3x4xf32>)
// CHECK-NEXT: %[[R:.*]] = segue.reshape %[[X]] : tensor<2x3x4xf32> -> tensor<4x6xf32>
// CHECK-NEXT: %[[T:.*]] = segue.transpose %[[X]] [2, 1, 0]
// CHECK-NEXT: %[[B:.*]] = segue.broadcast %[[X]] dims [1, 3, 4] : tensor<2x3x4xf32> -> tensor<5x2x6x3x4xf32>
// CHECK-NEXT: %[[S:.*]] = segue.slice %[[X]] [0, 1, 1] to [1, 3, 4] by [1, 1, 2] : tensor<2x3x4xf32> -> tensor<1x2x2xf32>
// CHECK-NEXT: %[[P:.*]] = segue.pad %[[X]] low [0, 1, 2] high [1, 0, 3] interior [0, 0, 0]
// CHECK-NEXT: return %[[R]], %[[T]], %[[B]], %[[S]], %[[P]]
func.func @chains(%x: tensor<2x3x4xf32>)
    -> (tensor<4x6xf32>, tensor<4x3x2xf32>, tensor<5x2x6x3x4xf32>, tensor<1x2x2xf32>, tensor<3x4x9xf32>) {
  %r = segue.reshape %x : tensor<2x3x4xf32> -> tensor<24xf32>
  %0 = segue.reshape %r : tensor<24xf32> -> tensor<4x6xf32>
  %t = segue.transpose %x [1, 2, 0] : tensor<2x3x4xf32> -> tensor<3x4x2xf32>
  %1 = segue.transpose %t [1, 0, 2] : tensor<3x4x2xf32> -> tensor<4x3x2xf32>
  %b = segue.broadcast %x dims [0, 2, 3] : tensor<2x3x4xf32> -> tensor<2x6x3x4xf32>
  %2 = segue.broadcast %b dims [1, 2, 3, 4] : tensor<2x6x3x4xf32> -> tensor<5x2x6x3x4xf32>
  %s = segue.slice %x [0, 0, 1] to [2, 3, 4] by [1, 1, 1] : tensor<2x3x4xf32> -> tensor<2x3x3xf32>
  %3 = segue.slice %s [0, 1, 0] to [1, 3, 3] by [1, 1, 2] : tensor<2x3x3xf32> -> tensor<1x2x2xf32>
  %p = segue.pad %x low [0, 1, 0] high [0, 0, 3] interior [0, 0, 0] value 0.0 : f32 : tensor<2x3x4xf32> -> tensor<2x4x7xf32>
  %4 = segue.pad %p low [0, 0, 2] high [1, 0, 0] interior [0, 0, 0] value 0.0 : f32 : tensor<2x4x7xf32> -> tensor<3x4x9xf32>
  return %0, %1, %2, %3, %4 : tensor<4x6xf32>, tensor<4x3x2xf32>, tensor<5x2x6x3x4xf32>, tensor<1x2x2xf32>, tensor<3x4x9xf32>
}

// Pads of other values or with elements between do not join.
// CHECK-LABEL: func.func @pads_stay
// CHECK-COUNT-4: segue.pad
// CHECK: return
func.func @pads_stay(%x: tensor<3xf32>) -> (tensor<5xf32>, tensor<7xf32>) {
  %a = segue.pad %x low [1] high [0] interior [0] value 0.0 : f32 : tensor<3xf32> -> tensor<4xf32>
  %0 = segue.pad %a low [1] high [0] interior [0] value 1.0 : f32 : tensor<4xf32> -> tensor<5xf32>
  %b = segue.pad %x low [0] high [1] interior [0] value 0.0 : f32 : tensor<3xf32> -> tensor<4xf32>
  %1 = segue.pad %b low [0] high [0] interior [1] value 0.0 : f32 : tensor<4xf32> -> tensor<7xf32>
  return %0, %1 : tensor<5xf32>, tensor<7xf32>
}

// CHECK-LABEL: func.func @constant_shapes
// CHECK-DAG: dense<[{{\[}}1.000000e+00, 3.000000e+00], [2.000000e+00, 4.000000e+00]]>
// CHECK-DAG: dense<[3.000000e+00, 4.000000e+00]>
// CHECK-DAG: dense<2.000000e+00> : tensor<8x4xf32>
// CHECK-DAG: dense<2.000000e+00> : tensor<9xf32>
// CHECK-NOT: segue.{{transpose|slice|broadcast|pad|concat}}
func.func @constant_shapes() -> (tensor<2x2xf32>, tensor<2xf32>, tensor<8x4xf32>, tensor<9xf32>) {
  %x = segue.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
  %0 = segue.transpose %x [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
  %s = segue.slice %x [1, 0] to [2, 2] by [1, 1] : tensor<2x2xf32> -> tensor<1x2xf32>
  %1 = segue.reshape %s : tensor<1x2xf32> -> tensor<2xf32>
  %two = segue.constant dense<2.0> : tensor<4xf32>
  %2 = segue.broadcast %two dims [1] : tensor<4xf32> -> tensor<8x4xf32>
  %p = segue.pad %two low [1] high [0] interior [0] value 2.0 : f32 : tensor<4xf32> -> tensor<5xf32>
  %3 = segue.concat %p, %two dim 0 : tensor<5xf32>, tensor<4xf32> -> tensor<9xf32>
  return %0, %1, %2, %3 : tensor<2x2xf32>, tensor<2xf32>, tensor<8x4xf32>, tensor<9xf32>
}

// A broadcast of anything but a splat would make the program larger.
// CHECK-LABEL: func.func @broadcast_stays
// CHECK: segue.broadcast
func.func @broadcast_stays() -> tensor<3x2xf32> {
  %x = segue.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %0 = segue.broadcast %x dims [1] : tensor<2xf32> -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// CHECK-LABEL: func.func @slice_of_concat
// CHECK-SAME: (%[[A:.*]]: tensor<2x3xf32>, %[[B:.*]]: tensor<2x4xf32>)
// CHECK: %[[C:.*]] = segue.concat
// CHECK: %[[S:.*]] = segue.slice %[[B]] [0, 1] to [2, 4] by [1, 2] : tensor<2x4xf32> -> tensor<2x2xf32>
// CHECK: %[[BOTH:.*]] = segue.slice %[[C]] [0, 2] to [2, 4]
// CHECK: return %[[A]], %[[S]], %[[BOTH]]
func.func @slice_of_concat(%a: tensor<2x3xf32>, %b: tensor<2x4xf32>) -> (tensor<2x3xf32>, tensor<2x2xf32>, tensor<2x2xf32>) {
  %c = segue.concat %a, %b dim 1 : tensor<2x3xf32>, tensor<2x4xf32> -> tensor<2x7xf32>
  %0 = segue.slice %c [0, 0] to [2, 3] by [1, 1] : tensor<2x7xf32> -> tensor<2x3xf32>
  %1 = segue.slice %c [0, 4] to [2, 7] by [1, 2] : tensor<2x7xf32> -> tensor<2x2xf32>
  // Takes from both.
  %2 = segue.slice %c [0, 2] to [2, 4] by [1, 1] : tensor<2x7xf32> -> tensor<2x2xf32>
  return %0, %1, %2 : tensor<2x3xf32>, tensor<2x2xf32>, tensor<2x2xf32>
}

// CHECK-LABEL: func.func @slice_of_pad
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>)
// CHECK: %[[FIVES:.*]] = segue.constant dense<5.000000e+00> : tensor<2xf32>
// CHECK: %[[P:.*]] = segue.pad
// CHECK: %[[S:.*]] = segue.slice %[[X]] [1] to [3] by [1]
// CHECK: %[[MIXED:.*]] = segue.slice %[[P]] [1] to [3] by [1]
// CHECK: return %[[X]], %[[S]], %[[FIVES]], %[[MIXED]]
func.func @slice_of_pad(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
  %p = segue.pad %x low [2] high [3] interior [0] value 5.0 : f32 : tensor<4xf32> -> tensor<9xf32>
  %0 = segue.slice %p [2] to [6] by [1] : tensor<9xf32> -> tensor<4xf32>
  %1 = segue.slice %p [3] to [5] by [1] : tensor<9xf32> -> tensor<2xf32>
  %2 = segue.slice %p [6] to [9] by [2] : tensor<9xf32> -> tensor<2xf32>
  // Half padding.
  %3 = segue.slice %p [1] to [3] by [1] : tensor<9xf32> -> tensor<2xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
}

// CHECK-LABEL: func.func @concat_flattens
// CHECK-SAME: (%[[A:.*]]: tensor<2x3xf32>)
// CHECK-NEXT: %[[C:.*]] = segue.concat %[[A]], %[[A]], %[[A]] dim 0
// CHECK-NEXT: %[[OTHER:.*]] = segue.concat %[[A]], %[[A]] dim 1
// CHECK-NEXT: %[[D:.*]] = segue.concat %[[OTHER]], %[[OTHER]] dim 0
// CHECK-NEXT: return %[[C]], %[[D]]
func.func @concat_flattens(%a: tensor<2x3xf32>) -> (tensor<6x3xf32>, tensor<4x6xf32>) {
  %i = segue.concat %a, %a dim 0 : tensor<2x3xf32>, tensor<2x3xf32> -> tensor<4x3xf32>
  %0 = segue.concat %i, %a dim 0 : tensor<4x3xf32>, tensor<2x3xf32> -> tensor<6x3xf32>
  %j = segue.concat %a, %a dim 1 : tensor<2x3xf32>, tensor<2x3xf32> -> tensor<2x6xf32>
  %1 = segue.concat %j, %j dim 0 : tensor<2x6xf32>, tensor<2x6xf32> -> tensor<4x6xf32>
  return %0, %1 : tensor<6x3xf32>, tensor<4x6xf32>
}

// Slices put together again: the value; in another order, not.
// CHECK-LABEL: func.func @concat_of_slices
// CHECK-SAME: (%[[X:.*]]: tensor<6xf32>)
// CHECK: %[[SWAPPED:.*]] = segue.concat
// CHECK: return %[[X]], %[[SWAPPED]]
func.func @concat_of_slices(%x: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
  %a = segue.slice %x [0] to [2] by [1] : tensor<6xf32> -> tensor<2xf32>
  %b = segue.slice %x [2] to [4] by [1] : tensor<6xf32> -> tensor<2xf32>
  %c = segue.slice %x [4] to [6] by [1] : tensor<6xf32> -> tensor<2xf32>
  %0 = segue.concat %a, %b, %c dim 0 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32> -> tensor<6xf32>
  %1 = segue.concat %c, %b, %a dim 0 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32> -> tensor<6xf32>
  return %0, %1 : tensor<6xf32>, tensor<6xf32>
}

// The gradient of a projection that was split into q, k and v, in any order.
// CHECK-LABEL: func.func @join_pads
// CHECK-SAME: (%[[Q:.*]]: tensor<2x3xf32>, %[[K:.*]]: tensor<2x3xf32>, %[[V:.*]]: tensor<2x3xf32>)
// CHECK-NEXT: %[[C:.*]] = segue.concat %[[Q]], %[[K]], %[[V]] dim 1
// CHECK-NEXT: return %[[C]]
func.func @join_pads(%q: tensor<2x3xf32>, %k: tensor<2x3xf32>, %v: tensor<2x3xf32>) -> tensor<2x9xf32> {
  %0 = segue.pad %q low [0, 0] high [0, 6] interior [0, 0] value 0.0 : f32 : tensor<2x3xf32> -> tensor<2x9xf32>
  %1 = segue.pad %k low [0, 3] high [0, 3] interior [0, 0] value 0.0 : f32 : tensor<2x3xf32> -> tensor<2x9xf32>
  %2 = segue.pad %v low [0, 6] high [0, 0] interior [0, 0] value 0.0 : f32 : tensor<2x3xf32> -> tensor<2x9xf32>
  %3 = segue.add %0, %2 : tensor<2x9xf32>
  %4 = segue.add %3, %1 : tensor<2x9xf32>
  return %4 : tensor<2x9xf32>
}

// Boxes that do not fill the result leave a pad around them.
// CHECK-LABEL: func.func @join_some_pads
// CHECK: %[[C:.*]] = segue.concat
// CHECK-NEXT: segue.pad %[[C]] low [1] high [2] interior [0] value 0.0
// CHECK-NOT: segue.add
func.func @join_some_pads(%a: tensor<2xf32>, %b: tensor<3xf32>) -> tensor<8xf32> {
  %0 = segue.pad %a low [1] high [5] interior [0] value 0.0 : f32 : tensor<2xf32> -> tensor<8xf32>
  %1 = segue.pad %b low [3] high [2] interior [0] value 0.0 : f32 : tensor<3xf32> -> tensor<8xf32>
  %2 = segue.add %0, %1 : tensor<8xf32>
  return %2 : tensor<8xf32>
}

// Boxes that come in any order, as long as they leave no gap in the end: no addition but the last sees that.
// CHECK-LABEL: func.func @join_scattered_pads
// CHECK-SAME: (%[[A:.*]]: tensor<2xf32>, %[[B:.*]]: tensor<2xf32>, %[[C:.*]]: tensor<2xf32>, %[[D:.*]]: tensor<2xf32>)
// CHECK-NEXT: %[[J:.*]] = segue.concat %[[A]], %[[B]], %[[C]], %[[D]] dim 0
// CHECK-NEXT: return %[[J]]
func.func @join_scattered_pads(%a: tensor<2xf32>, %b: tensor<2xf32>, %c: tensor<2xf32>, %d: tensor<2xf32>) -> tensor<8xf32> {
  %0 = segue.pad %a low [0] high [6] interior [0] value 0.0 : f32 : tensor<2xf32> -> tensor<8xf32>
  %1 = segue.pad %b low [2] high [4] interior [0] value 0.0 : f32 : tensor<2xf32> -> tensor<8xf32>
  %2 = segue.pad %c low [4] high [2] interior [0] value 0.0 : f32 : tensor<2xf32> -> tensor<8xf32>
  %3 = segue.pad %d low [6] high [0] interior [0] value 0.0 : f32 : tensor<2xf32> -> tensor<8xf32>
  %4 = segue.add %0, %2 : tensor<8xf32>
  %5 = segue.add %1, %3 : tensor<8xf32>
  %6 = segue.add %4, %5 : tensor<8xf32>
  return %6 : tensor<8xf32>
}

// A sum within another that is joined while the other is not: something else is added, or a box that overlaps.
// CHECK-LABEL: func.func @join_within_a_sum
// CHECK: %[[J:.*]] = segue.concat %arg0, %arg0 dim 0
// CHECK-NEXT: %[[Y:.*]] = segue.add %[[J]], %arg1
// CHECK-NEXT: %[[S:.*]] = segue.add %[[Y]], %arg1
// CHECK: %[[O:.*]] = segue.pad %arg0 low [1] high [1]
// CHECK: %[[K:.*]] = segue.concat %arg0, %arg0 dim 0
// CHECK-NEXT: %[[T:.*]] = segue.add %[[K]], %[[O]]
// CHECK-NEXT: return %[[S]], %[[T]]
func.func @join_within_a_sum(%a: tensor<2xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = segue.pad %a low [0] high [2] interior [0] value 0.0 : f32 : tensor<2xf32> -> tensor<4xf32>
  %1 = segue.pad %a low [2] high [0] interior [0] value 0.0 : f32 : tensor<2xf32> -> tensor<4xf32>
  %2 = segue.add %0, %1 : tensor<4xf32>
  %3 = segue.add %2, %y : tensor<4xf32>
  %9 = segue.add %3, %y : tensor<4xf32>
  %4 = segue.pad %a low [1] high [1] interior [0] value 0.0 : f32 : tensor<2xf32> -> tensor<4xf32>
  %5 = segue.add %1, %0 : tensor<4xf32>
  %6 = segue.add %5, %4 : tensor<4xf32>
  return %9, %6 : tensor<4xf32>, tensor<4xf32>
}

// An op that takes the place of another is of the block of that one; a slice of slices is of the block of the first.
// CHECK-LABEL: func.func @joined_in_their_block
// CHECK: segue.concat %arg0, %arg0 dim 0 {segue.block = "h.1"}
// CHECK-NEXT: segue.pad %{{.*}} {segue.block = "h.1"}
// CHECK-NEXT: segue.slice %arg1 [0] to [4] by [1] {segue.block = "h.2"}
// CHECK-NEXT: segue.reshape %arg2 {segue.block = "h.3", segue.update = "w"}
func.func @joined_in_their_block(%a: tensor<2xf32>, %x: tensor<8xf32>, %u: tensor<2x1xf32>)
    -> (tensor<5xf32>, tensor<4xf32>, tensor<2xf32>) {
  %0 = segue.pad %a low [0] high [3] interior [0] value 0.0 : f32 {segue.block = "h.0"} : tensor<2xf32> -> tensor<5xf32>
  %1 = segue.pad %a low [2] high [1] interior [0] value 0.0 : f32 {segue.block = "h.0"} : tensor<2xf32> -> tensor<5xf32>
  %2 = segue.add %0, %1 {segue.block = "h.1"} : tensor<5xf32>
  %3 = segue.slice %x [0] to [2] by [1] {segue.block = "h.2"} : tensor<8xf32> -> tensor<2xf32>
  %4 = segue.slice %x [2] to [4] by [1] {segue.block = "h.3"} : tensor<8xf32> -> tensor<2xf32>
  %5 = segue.concat %3, %4 dim 0 {segue.block = "h.3"} : tensor<2xf32>, tensor<2xf32> -> tensor<4xf32>
  %6 = segue.reduce sum %u dims [1] {segue.block = "h.3", segue.update = "w"} : tensor<2x1xf32> -> tensor<2xf32>
  return %2, %5, %6 : tensor<5xf32>, tensor<4xf32>, tensor<2xf32>
}

// Boxes that overlap, pads that are not zero, and boxes along two dimensions
// are added.
// CHECK-LABEL: func.func @pads_not_joined
// CHECK-COUNT-3: segue.add
// CHECK-NOT: segue.concat
// CHECK: return
func.func @pads_not_joined(%a: tensor<2x2xf32>) -> (tensor<3x2xf32>, tensor<4x2xf32>, tensor<4x4xf32>) {
  %0 = segue.pad %a low [0, 0] high [1, 0] interior [0, 0] value 0.0 : f32 : tensor<2x2xf32> -> tensor<3x2xf32>
  %1 = segue.pad %a low [1, 0] high [0, 0] interior [0, 0] value 0.0 : f32 : tensor<2x2xf32> -> tensor<3x2xf32>
  %2 = segue.add %0, %1 : tensor<3x2xf32>
  %3 = segue.pad %a low [0, 0] high [2, 0] interior [0, 0] value 1.0 : f32 : tensor<2x2xf32> -> tensor<4x2xf32>
  %4 = segue.pad %a low [2, 0] high [0, 0] interior [0, 0] value 1.0 : f32 : tensor<2x2xf32> -> tensor<4x2xf32>
  %5 = segue.add %3, %4 : tensor<4x2xf32>
  %6 = segue.pad %a low [0, 0] high [2, 2] interior [0, 0] value 0.0 : f32 : tensor<2x2xf32> -> tensor<4x4xf32>
  %7 = segue.pad %a low [2, 2] high [0, 0] interior [0, 0] value 0.0 : f32 : tensor<2x2xf32> -> tensor<4x4xf32>
  %8 = segue.add %6, %7 : tensor<4x4xf32>
  return %2, %5, %8 : tensor<3x2xf32>, tensor<4x2xf32>, tensor<4x4xf32>
}

//===----------------------------------------------------------------------===//
// Reductions and products
//===----------------------------------------------------------------------===//

// CHECK-LABEL: func.func @reductions
// CHECK-SAME: (%[[X:.*]]: tensor<2x1x4xf32>)
// CHECK-DAG: %[[SUM:.*]] = segue.constant dense<1.200000e+01> : tensor<2xf32>
// CHECK-DAG: %[[MAX:.*]] = segue.constant dense<3.000000e+00> : tensor<2xf32>
// CHECK-DAG: %[[U:.*]] = segue.reshape %[[X]] : tensor<2x1x4xf32> -> tensor<2x4xf32>
// CHECK-DAG: %[[R:.*]] = segue.reduce max %[[X]] dims [0, 2] : tensor<2x1x4xf32> -> tensor<1xf32>
// CHECK: return %[[SUM]], %[[MAX]], %[[U]], %[[R]]
func.func @reductions(%x: tensor<2x1x4xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2x4xf32>, tensor<1xf32>) {
  %three = segue.constant dense<3.0> : tensor<2x4xf32>
  %0 = segue.reduce sum %three dims [1] : tensor<2x4xf32> -> tensor<2xf32>
  %1 = segue.reduce max %three dims [1] : tensor<2x4xf32> -> tensor<2xf32>
  %2 = segue.reduce mean %x dims [1] : tensor<2x1x4xf32> -> tensor<2x4xf32>
  %i = segue.reduce max %x dims [0] : tensor<2x1x4xf32> -> tensor<1x4xf32>
  %3 = segue.reduce max %i dims [1] : tensor<1x4xf32> -> tensor<1xf32>
  return %0, %1, %2, %3 : tensor<2xf32>, tensor<2xf32>, tensor<2x4xf32>, tensor<1xf32>
}

// Two kinds, a sum that is used elsewhere, and a sum that bf16 rounds between.
// CHECK-LABEL: func.func @reductions_stay
// CHECK-COUNT-6: segue.reduce
// CHECK: return
func.func @reductions_stay(%x: tensor<2x4xf32>, %y: tensor<2x4xbf16>)
    -> (tensor<f32>, tensor<4xf32>, tensor<f32>, tensor<bf16>) {
  %a = segue.reduce sum %x dims [0] : tensor<2x4xf32> -> tensor<4xf32>
  %0 = segue.reduce max %a dims [0] : tensor<4xf32> -> tensor<f32>
  %b = segue.reduce max %x dims [0] : tensor<2x4xf32> -> tensor<4xf32>
  %1 = segue.reduce max %b dims [0] : tensor<4xf32> -> tensor<f32>
  %c = segue.reduce sum %y dims [0] : tensor<2x4xbf16> -> tensor<4xbf16>
  %2 = segue.reduce sum %c dims [0] : tensor<4xbf16> -> tensor<bf16>
  return %0, %b, %1, %2 : tensor<f32>, tensor<4xf32>, tensor<f32>, tensor<bf16>
}

// A transposed operand costs nothing: its dimensions get other numbers.
// CHECK-LABEL: func.func @dot_of_transpose
// CHECK-SAME: (%[[A:.*]]: tensor<3x2xf32>, %[[B:.*]]: tensor<4x3xf32>)
// CHECK-NEXT: %[[C:.*]] = segue.dot_general %[[A]], %[[B]] batch [] x [] contract [0] x [1] : tensor<3x2xf32>, tensor<4x3xf32> -> tensor<2x4xf32>
// CHECK-NEXT: return %[[C]]
func.func @dot_of_transpose(%a: tensor<3x2xf32>, %b: tensor<4x3xf32>) -> tensor<2x4xf32> {
  %at = segue.transpose %a [1, 0] : tensor<3x2xf32> -> tensor<2x3xf32>
  %bt = segue.transpose %b [1, 0] : tensor<4x3xf32> -> tensor<3x4xf32>
  %c = segue.dot_general %at, %bt batch [] x [] contract [1] x [0] : tensor<2x3xf32>, tensor<3x4xf32> -> tensor<2x4xf32>
  return %c : tensor<2x4xf32>
}

// Heads that were brought forward, as attention does.
// CHECK-LABEL: func.func @dot_of_heads
// CHECK-NEXT: segue.dot_general %{{.*}}, %{{.*}} batch [0, 2] x [0, 2] contract [3] x [3]
func.func @dot_of_heads(%q: tensor<2x5x3x4xf32>, %k: tensor<2x6x3x4xf32>) -> tensor<2x3x5x6xf32> {
  %qh = segue.transpose %q [0, 2, 1, 3] : tensor<2x5x3x4xf32> -> tensor<2x3x5x4xf32>
  %kh = segue.transpose %k [0, 2, 3, 1] : tensor<2x6x3x4xf32> -> tensor<2x3x4x6xf32>
  %c = segue.dot_general %qh, %kh batch [0, 1] x [0, 1] contract [3] x [2] : tensor<2x3x5x4xf32>, tensor<2x3x4x6xf32> -> tensor<2x3x5x6xf32>
  return %c : tensor<2x3x5x6xf32>
}

// A transpose that swaps free dimensions changes the result: it stays.
// CHECK-LABEL: func.func @dot_needs_transpose
// CHECK: segue.transpose
// CHECK: segue.dot_general
func.func @dot_needs_transpose(%a: tensor<5x2x3xf32>, %b: tensor<3x4xf32>) -> tensor<2x5x4xf32> {
  %at = segue.transpose %a [1, 0, 2] : tensor<5x2x3xf32> -> tensor<2x5x3xf32>
  %c = segue.dot_general %at, %b batch [] x [] contract [2] x [0] : tensor<2x5x3xf32>, tensor<3x4xf32> -> tensor<2x5x4xf32>
  return %c : tensor<2x5x4xf32>
}

// (a b)^T = b^T a^T.
// CHECK-LABEL: func.func @transpose_of_dot
// CHECK-SAME: (%[[A:.*]]: tensor<6x2x3xf32>, %[[B:.*]]: tensor<6x3x4xf32>)
// CHECK-NEXT: %[[C:.*]] = segue.dot_general %[[B]], %[[A]] batch [0] x [0] contract [1] x [2] {segue.block = "h.0"}
// CHECK-NEXT: return %[[C]]
func.func @transpose_of_dot(%a: tensor<6x2x3xf32>, %b: tensor<6x3x4xf32>) -> tensor<6x4x2xf32> {
  %c = segue.dot_general %a, %b batch [0] x [0] contract [2] x [1] {segue.block = "h.0"} : tensor<6x2x3xf32>, tensor<6x3x4xf32> -> tensor<6x2x4xf32>
  %t = segue.transpose %c [0, 2, 1] : tensor<6x2x4xf32> -> tensor<6x4x2xf32>
  return %t : tensor<6x4x2xf32>
}

// A bias lies along the columns, and a product that is used twice would be
// computed twice.
// CHECK-LABEL: func.func @transpose_of_dot_stays
// CHECK: segue.transpose
// CHECK: segue.transpose
func.func @transpose_of_dot_stays(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>, %bias: tensor<4xf32>)
    -> (tensor<4x2xf32>, tensor<2x4xf32>, tensor<4x2xf32>) {
  %c = segue.dot_general %a, %b bias %bias : tensor<4xf32> batch [] x [] contract [1] x [0] : tensor<2x3xf32>, tensor<3x4xf32> -> tensor<2x4xf32>
  %0 = segue.transpose %c [1, 0] : tensor<2x4xf32> -> tensor<4x2xf32>
  %d = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<2x3xf32>, tensor<3x4xf32> -> tensor<2x4xf32>
  %1 = segue.transpose %d [1, 0] : tensor<2x4xf32> -> tensor<4x2xf32>
  return %0, %d, %1 : tensor<4x2xf32>, tensor<2x4xf32>, tensor<4x2xf32>
}

//===----------------------------------------------------------------------===//
// Layouts
//===----------------------------------------------------------------------===//

// A detour over an exact layout is none.
// CHECK-LABEL: func.func @layout_detour
// CHECK-SAME: (%[[X:.*]]: tensor<4x8xf32>)
// CHECK-NEXT: return %[[X]]
func.func @layout_detour(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = segue.to_layout %x : tensor<4x8xf32> -> tensor<4x8xf32, #segue.layout<strides = [1, 4]>>
  %1 = segue.to_layout %0 : tensor<4x8xf32, #segue.layout<strides = [1, 4]>> -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// Narrowing and widening again is not the identity: both conversions stay.
// CHECK-LABEL: func.func @keeps_lossy_pair
// CHECK-COUNT-2: segue.to_layout
func.func @keeps_lossy_pair(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = segue.to_layout %x : tensor<4x8xf32> -> tensor<4x8xf32, #segue.layout<storage = int8_row>>
  %1 = segue.to_layout %0 : tensor<4x8xf32, #segue.layout<storage = int8_row>> -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// The product of two steps wraps where one index alone is taken: it is no step then.
// CHECK-LABEL: func.func @steps_that_wrap
// CHECK: segue.constant dense<> : tensor<0x4xf32>
// CHECK: segue.slice %arg0 [0, 0] to [1, 2] by [1, 1] : tensor<4x4xf32> -> tensor<1x2xf32>
func.func @steps_that_wrap(%x: tensor<4x4xf32>) -> (tensor<1x2xf32>, tensor<0x4xf32>) {
  %0 = segue.slice %x [0, 0] to [4, 4] by [4611686018427387904, 1] : tensor<4x4xf32> -> tensor<1x4xf32>
  %1 = segue.slice %0 [0, 0] to [1, 2] by [4, 1] : tensor<1x4xf32> -> tensor<1x2xf32>
  %2 = segue.slice %x [1, 0] to [4, 4] by [2, 1] : tensor<4x4xf32> -> tensor<2x4xf32>
  %3 = segue.slice %2 [2, 0] to [2, 4] by [9223372036854775807, 1] : tensor<2x4xf32> -> tensor<0x4xf32>
  return %1, %3 : tensor<1x2xf32>, tensor<0x4xf32>
}
