// RUN: segue-opt %s --segue-interpret="all" -o /dev/null

// Values were worked out by hand or with PyTorch 2.13 in double.

func.func @float_unary() {
  %x = segue.constant dense<[-2.0, 0.0, 0.5, 3.0]> : tensor<4xf32>
  %0 = segue.neg %x : tensor<4xf32>
  check.expect_close_const %0, dense<[2.0, 0.0, -0.5, -3.0]> : tensor<4xf32>
  %1 = segue.abs %x : tensor<4xf32>
  check.expect_close_const %1, dense<[2.0, 0.0, 0.5, 3.0]> : tensor<4xf32>
  %2 = segue.sign %x : tensor<4xf32>
  check.expect_close_const %2, dense<[-1.0, 0.0, 1.0, 1.0]> : tensor<4xf32>
  %3 = segue.exp %x : tensor<4xf32>
  check.expect_close_const %3, dense<[0.1353353, 1.0, 1.6487213, 20.085537]> : tensor<4xf32>
  %4 = segue.expm1 %x : tensor<4xf32>
  check.expect_close_const %4, dense<[-0.8646647, 0.0, 0.6487213, 19.085537]> : tensor<4xf32>
  %tiny = segue.constant dense<[-1.0e-10, 1.0e-30, 1.0, -0.5]> : tensor<4xf32>
  %log1p = segue.log1p %tiny : tensor<4xf32>
  check.expect_close_const %log1p, dense<[-1.0e-10, 1.0e-30, 0.6931472, -0.6931472]> : tensor<4xf32> {atol = 0.0, rtol = 1.0e-6}
  // The last is infinite.
  %parts = segue.constant dense<[-2.5, 1.5, 0.5, 0x7F800000]> : tensor<4xf32>
  %floor = segue.floor %parts : tensor<4xf32>
  check.expect_close_const %floor, dense<[-3.0, 1.0, 0.0, 0x7F800000]> : tensor<4xf32>
  %ceil = segue.ceil %parts : tensor<4xf32>
  check.expect_close_const %ceil, dense<[-2.0, 2.0, 1.0, 0x7F800000]> : tensor<4xf32>
  %trunc = segue.trunc %parts : tensor<4xf32>
  check.expect_close_const %trunc, dense<[-2.0, 1.0, 0.0, 0x7F800000]> : tensor<4xf32>
  %round = segue.round %parts : tensor<4xf32>
  check.expect_close_const %round, dense<[-2.0, 2.0, 0.0, 0x7F800000]> : tensor<4xf32>
  %5 = segue.sin %x : tensor<4xf32>
  check.expect_close_const %5, dense<[-0.9092974, 0.0, 0.4794255, 0.1411200]> : tensor<4xf32>
  %6 = segue.cos %x : tensor<4xf32>
  check.expect_close_const %6, dense<[-0.4161468, 1.0, 0.8775826, -0.9899925]> : tensor<4xf32>
  %7 = segue.tanh %x : tensor<4xf32>
  check.expect_close_const %7, dense<[-0.9640276, 0.0, 0.4621172, 0.9950548]> : tensor<4xf32>
  %8 = segue.erf %x : tensor<4xf32>
  check.expect_close_const %8, dense<[-0.9953223, 0.0, 0.5204999, 0.9999779]> : tensor<4xf32>
  %9 = segue.sigmoid %x : tensor<4xf32>
  check.expect_close_const %9, dense<[0.1192029, 0.5, 0.6224593, 0.9525741]> : tensor<4xf32>
  %10 = segue.silu %x : tensor<4xf32>
  check.expect_close_const %10, dense<[-0.2384058, 0.0, 0.3112297, 2.8577224]> : tensor<4xf32>
  %11 = segue.relu %x : tensor<4xf32>
  check.expect_close_const %11, dense<[0.0, 0.0, 0.5, 3.0]> : tensor<4xf32>
  %stopped = segue.detach %x : tensor<4xf32>
  check.expect_close_const %stopped, dense<[-2.0, 0.0, 0.5, 3.0]> : tensor<4xf32>
  %12 = segue.gelu erf %x : tensor<4xf32>
  check.expect_close_const %12, dense<[-0.0455003, 0.0, 0.3457312, 2.9959503]> : tensor<4xf32>
  %13 = segue.gelu tanh %x : tensor<4xf32>
  check.expect_close_const %13, dense<[-0.0454023, 0.0, 0.3457140, 2.9963627]> : tensor<4xf32>
  // [1, 2] times a matrix is [2, -3], with the bias [2.5, -2]; times its transpose [-4, 0].
  %row = segue.constant dense<[[1.0, 2.0]]> : tensor<1x2xf32>
  %matrix = segue.constant dense<[[0.0, -2.0], [1.0, -0.5]]> : tensor<2x2xf32>
  %bias = segue.constant dense<[0.5, 1.0]> : tensor<2xf32>
  %14, %sums = segue.dot_gelu %row, %matrix bias %bias : tensor<2xf32> : tensor<1x2xf32>, tensor<2x2xf32> -> tensor<1x2xf32>, tensor<1x2xf32>
  check.expect_close_const %14, dense<[[2.4849157, -0.0454023]]> : tensor<1x2xf32>
  check.expect_close_const %sums, dense<[[2.5, -2.0]]> : tensor<1x2xf32>
  %15 = segue.dot_gelu %row, %matrix transposed : tensor<1x2xf32>, tensor<2x2xf32> -> tensor<1x2xf32>
  check.expect_close_const %15, dense<[[-0.0000702, 0.0000000]]> : tensor<1x2xf32>
  return
}

// log, sqrt and rsqrt at their edges: 0 gives infinities, negative gives NaN.
func.func @edges() {
  %x = segue.constant dense<[-1.0, 0.0, 4.0]> : tensor<3xf32>
  %0 = segue.log %x : tensor<3xf32>
  check.expect_close_const %0, dense<[0x7FC00000, 0xFF800000, 1.3862944]> : tensor<3xf32>
  %1 = segue.sqrt %x : tensor<3xf32>
  check.expect_close_const %1, dense<[0x7FC00000, 0.0, 2.0]> : tensor<3xf32>
  %2 = segue.rsqrt %x : tensor<3xf32>
  check.expect_close_const %2, dense<[0x7FC00000, 0x7F800000, 0.5]> : tensor<3xf32>
  %nan = segue.constant dense<[0x7FC00000, 1.0, 0x7FC00000]> : tensor<3xf32>
  %3 = segue.sign %nan : tensor<3xf32>
  check.expect_close_const %3, dense<[0.0, 1.0, 0.0]> : tensor<3xf32>
  // NaN on either side wins in max, min and relu.
  %4 = segue.max %nan, %x : tensor<3xf32>
  check.expect_close_const %4, dense<[0x7FC00000, 1.0, 0x7FC00000]> : tensor<3xf32>
  %5 = segue.min %x, %nan : tensor<3xf32>
  check.expect_close_const %5, dense<[0x7FC00000, 0.0, 0x7FC00000]> : tensor<3xf32>
  %6 = segue.relu %nan : tensor<3xf32>
  check.expect_close_const %6, dense<[0x7FC00000, 1.0, 0x7FC00000]> : tensor<3xf32>
  return
}

func.func @binary() {
  %a = segue.constant dense<[1.0, -2.0, 9.0]> : tensor<3xf32>
  %b = segue.constant dense<[4.0, 3.0, 0.5]> : tensor<3xf32>
  %0 = segue.add %a, %b : tensor<3xf32>
  check.expect_close_const %0, dense<[5.0, 1.0, 9.5]> : tensor<3xf32>
  %1 = segue.sub %a, %b : tensor<3xf32>
  check.expect_close_const %1, dense<[-3.0, -5.0, 8.5]> : tensor<3xf32>
  %2 = segue.mul %a, %b : tensor<3xf32>
  check.expect_close_const %2, dense<[4.0, -6.0, 4.5]> : tensor<3xf32>
  %3 = segue.div %a, %b : tensor<3xf32>
  check.expect_close_const %3, dense<[0.25, -0.6666667, 18.0]> : tensor<3xf32>
  %4 = segue.max %a, %b : tensor<3xf32>
  check.expect_close_const %4, dense<[4.0, 3.0, 9.0]> : tensor<3xf32>
  %5 = segue.min %a, %b : tensor<3xf32>
  check.expect_close_const %5, dense<[1.0, -2.0, 0.5]> : tensor<3xf32>
  %6 = segue.pow %a, %b : tensor<3xf32>
  check.expect_close_const %6, dense<[1.0, -8.0, 3.0]> : tensor<3xf32>
  return
}

// Integer arithmetic wraps at the width of the type, i8 here.
func.func @integers() {
  %a = segue.constant dense<[127, -128, 5]> : tensor<3xi8>
  %b = segue.constant dense<[1, -1, -3]> : tensor<3xi8>
  %0 = segue.add %a, %b : tensor<3xi8>
  %e0 = segue.constant dense<[-128, 127, 2]> : tensor<3xi8>
  check.expect_eq %0, %e0 : tensor<3xi8>
  %1 = segue.sub %a, %b : tensor<3xi8>
  %e1 = segue.constant dense<[126, -127, 8]> : tensor<3xi8>
  check.expect_eq %1, %e1 : tensor<3xi8>
  %2 = segue.mul %a, %b : tensor<3xi8>
  %e2 = segue.constant dense<[127, -128, -15]> : tensor<3xi8>
  check.expect_eq %2, %e2 : tensor<3xi8>
  %3 = segue.neg %a : tensor<3xi8>
  %e3 = segue.constant dense<[-127, -128, -5]> : tensor<3xi8>
  check.expect_eq %3, %e3 : tensor<3xi8>
  %4 = segue.abs %b : tensor<3xi8>
  %e4 = segue.constant dense<[1, 1, 3]> : tensor<3xi8>
  check.expect_eq %4, %e4 : tensor<3xi8>
  %5 = segue.sign %b : tensor<3xi8>
  %e5 = segue.constant dense<[1, -1, -1]> : tensor<3xi8>
  check.expect_eq %5, %e5 : tensor<3xi8>
  %6 = segue.max %a, %b : tensor<3xi8>
  %e6 = segue.constant dense<[127, -1, 5]> : tensor<3xi8>
  check.expect_eq %6, %e6 : tensor<3xi8>
  %7 = segue.min %a, %b : tensor<3xi8>
  %e7 = segue.constant dense<[1, -128, -3]> : tensor<3xi8>
  check.expect_eq %7, %e7 : tensor<3xi8>
  return
}

func.func @bits() {
  %a = segue.constant dense<[5, -7, -128]> : tensor<3xi8>
  %b = segue.constant dense<[3, 12, 127]> : tensor<3xi8>
  %0 = segue.and %a, %b : tensor<3xi8>
  %e0 = segue.constant dense<[1, 8, 0]> : tensor<3xi8>
  check.expect_eq %0, %e0 : tensor<3xi8>
  %1 = segue.or %a, %b : tensor<3xi8>
  %e1 = segue.constant dense<[7, -3, -1]> : tensor<3xi8>
  check.expect_eq %1, %e1 : tensor<3xi8>
  %i = segue.constant dense<[1, 0, 1]> : tensor<3xi64>
  %2 = segue.scatter_add %b[%i] : tensor<3xi8>, tensor<3xi64> -> tensor<2xi8>
  %e2 = segue.constant dense<[12, -126]> : tensor<2xi8>
  check.expect_eq %2, %e2 : tensor<2xi8>
  return
}

func.func @truth() {
  %a = segue.constant dense<[true, true, false, false]> : tensor<4xi1>
  %b = segue.constant dense<[true, false, true, false]> : tensor<4xi1>
  %0 = segue.and %a, %b : tensor<4xi1>
  %e0 = segue.constant dense<[true, false, false, false]> : tensor<4xi1>
  check.expect_eq %0, %e0 : tensor<4xi1>
  %1 = segue.or %a, %b : tensor<4xi1>
  %e1 = segue.constant dense<[true, true, true, false]> : tensor<4xi1>
  check.expect_eq %1, %e1 : tensor<4xi1>
  %2 = segue.not %a : tensor<4xi1>
  %e2 = segue.constant dense<[false, false, true, true]> : tensor<4xi1>
  check.expect_eq %2, %e2 : tensor<4xi1>
  %x = segue.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %y = segue.constant dense<5.0> : tensor<4xf32>
  %3 = segue.select %b, %x, %y : tensor<4xi1>, tensor<4xf32>
  check.expect_close_const %3, dense<[1.0, 5.0, 3.0, 5.0]> : tensor<4xf32>
  return
}

// A comparison with NaN is false, except `ne`.
func.func @compare() {
  %a = segue.constant dense<[1.0, 2.0, 3.0, 0x7FC00000]> : tensor<4xf32>
  %b = segue.constant dense<2.0> : tensor<4xf32>
  %eq = segue.compare eq %a, %b : tensor<4xf32> -> tensor<4xi1>
  check.expect_close_const %eq, dense<[false, true, false, false]> : tensor<4xi1>
  %ne = segue.compare ne %a, %b : tensor<4xf32> -> tensor<4xi1>
  check.expect_close_const %ne, dense<[true, false, true, true]> : tensor<4xi1>
  %lt = segue.compare lt %a, %b : tensor<4xf32> -> tensor<4xi1>
  check.expect_close_const %lt, dense<[true, false, false, false]> : tensor<4xi1>
  %le = segue.compare le %a, %b : tensor<4xf32> -> tensor<4xi1>
  check.expect_close_const %le, dense<[true, true, false, false]> : tensor<4xi1>
  %gt = segue.compare gt %a, %b : tensor<4xf32> -> tensor<4xi1>
  check.expect_close_const %gt, dense<[false, false, true, false]> : tensor<4xi1>
  %ge = segue.compare ge %a, %b : tensor<4xf32> -> tensor<4xi1>
  check.expect_close_const %ge, dense<[false, true, true, false]> : tensor<4xi1>
  %i = segue.constant dense<[-1, 3]> : tensor<2xi64>
  %j = segue.constant dense<[2, 2]> : tensor<2xi64>
  %signed = segue.compare lt %i, %j : tensor<2xi64> -> tensor<2xi1>
  check.expect_close_const %signed, dense<[true, false]> : tensor<2xi1>
  return
}

func.func @casts() {
  // 1 + 2^-8 lies between two bf16 and goes to the even one; 1 + 3 * 2^-8 too.
  %x = segue.constant dense<[1.00390625, 1.01171875]> : tensor<2xf32>
  %narrow = segue.cast %x : tensor<2xf32> -> tensor<2xbf16>
  %wide = segue.cast %narrow : tensor<2xbf16> -> tensor<2xf32>
  check.expect_close_const %wide, dense<[1.0, 1.015625]> : tensor<2xf32> {atol = 0.0, rtol = 0.0}
  // To integer: toward zero, saturating, NaN to 0.
  %f = segue.constant dense<[-1.9, 1.9, 300.0, -1000.0, 0x7FC00000]> : tensor<5xf32>
  %i8 = segue.cast %f : tensor<5xf32> -> tensor<5xi8>
  check.expect_close_const %i8, dense<[-1, 1, 127, -128, 0]> : tensor<5xi8>
  %i1 = segue.cast %f : tensor<5xf32> -> tensor<5xi1>
  check.expect_close_const %i1, dense<true> : tensor<5xi1>
  %back = segue.cast %i1 : tensor<5xi1> -> tensor<5xf32>
  check.expect_close_const %back, dense<1.0> : tensor<5xf32>
  %i = segue.constant dense<[4294967297, -1]> : tensor<2xi64>
  %low = segue.cast %i : tensor<2xi64> -> tensor<2xi32>
  check.expect_close_const %low, dense<[1, -1]> : tensor<2xi32>
  return
}

// bf16 is rounded after each op: 256 + 1 is no bf16.
func.func @rounds_each_op() {
  %a = segue.constant dense<256.0> : tensor<1xbf16>
  %b = segue.constant dense<1.0> : tensor<1xbf16>
  %0 = segue.add %a, %b : tensor<1xbf16>
  %1 = segue.sub %0, %a : tensor<1xbf16>
  check.expect_close_const %1, dense<0.0> : tensor<1xbf16> {atol = 0.0}
  return
}
