// RUN: segue-opt %s --segue-interpret="all" -o /dev/null

// Ops that make, move and reduce elements, with values worked out by hand.

func.func @iota() {
  %0 = segue.iota dim 1 : tensor<2x3xi32>
  check.expect_close_const %0, dense<[[0, 1, 2], [0, 1, 2]]> : tensor<2x3xi32>
  %1 = segue.iota dim 0 : tensor<2x3xf32>
  check.expect_close_const %1, dense<[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]> : tensor<2x3xf32>
  return
}

// Philox4x32-10 with key and counter 0 gives 6627e8d5 e169c58d bc57ac4c 9b00dbd8
// (the known answer of the paper's authors); an element is a word >> 8 times 2^-24.
func.func @random_known_answer() {
  %zero = segue.constant dense<0> : tensor<i64>
  %0 = segue.random %zero, %zero id 0 : tensor<4xf32>
  check.expect_close_const %0, dense<[0.39904648, 0.88052021, 0.73571277, 0.60548176]> : tensor<4xf32>
  return
}

// An element depends on its index alone, not on the shape; another id, step or
// seed gives other numbers.
func.func @random_by_counter() {
  %seed = segue.constant dense<12345678901> : tensor<i64>
  %step = segue.constant dense<7> : tensor<i64>
  %other = segue.constant dense<8> : tensor<i64>
  %a = segue.random %seed, %step id 3 : tensor<2x5xf32>
  %b = segue.random %seed, %step id 3 : tensor<7xf32>
  %flat = segue.reshape %a : tensor<2x5xf32> -> tensor<10xf32>
  %head = segue.slice %flat [0] to [7] by [1] : tensor<10xf32> -> tensor<7xf32>
  check.expect_eq %head, %b : tensor<7xf32>
  %c = segue.random %seed, %step id 4 : tensor<7xf32>
  %d = segue.random %seed, %other id 3 : tensor<7xf32>
  %e = segue.random %other, %step id 3 : tensor<7xf32>
  %differs_c = segue.compare ne %b, %c : tensor<7xf32> -> tensor<7xi1>
  %differs_d = segue.compare ne %b, %d : tensor<7xf32> -> tensor<7xi1>
  %differs_e = segue.compare ne %b, %e : tensor<7xf32> -> tensor<7xi1>
  check.expect_close_const %differs_c, dense<true> : tensor<7xi1>
  check.expect_close_const %differs_d, dense<true> : tensor<7xi1>
  check.expect_close_const %differs_e, dense<true> : tensor<7xi1>
  return
}

func.func @moves() {
  %x = segue.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
  %0 = segue.reshape %x : tensor<2x3xf32> -> tensor<3x2xf32>
  check.expect_close_const %0, dense<[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]> : tensor<3x2xf32>
  %1 = segue.transpose %x [1, 0] : tensor<2x3xf32> -> tensor<3x2xf32>
  check.expect_close_const %1, dense<[[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]> : tensor<3x2xf32>
  %2 = segue.slice %x [0, 0] to [2, 3] by [1, 2] : tensor<2x3xf32> -> tensor<2x2xf32>
  check.expect_close_const %2, dense<[[1.0, 3.0], [4.0, 6.0]]> : tensor<2x2xf32>
  %3 = segue.pad %2 low [0, 1] high [1, 0] interior [0, 1] value 9.0 : f32 : tensor<2x2xf32> -> tensor<3x4xf32>
  check.expect_close_const %3, dense<[[9.0, 1.0, 9.0, 3.0], [9.0, 4.0, 9.0, 6.0], [9.0, 9.0, 9.0, 9.0]]> : tensor<3x4xf32>
  %4 = segue.concat %2, %x dim 1 : tensor<2x2xf32>, tensor<2x3xf32> -> tensor<2x5xf32>
  check.expect_close_const %4, dense<[[1.0, 3.0, 1.0, 2.0, 3.0], [4.0, 6.0, 4.0, 5.0, 6.0]]> : tensor<2x5xf32>
  %5 = segue.to_layout %x : tensor<2x3xf32> -> tensor<2x3xf32, #segue.layout<strides = [1, 2]>>
  %6 = segue.to_layout %5 : tensor<2x3xf32, #segue.layout<strides = [1, 2]>> -> tensor<2x3xf32>
  check.expect_eq %6, %x : tensor<2x3xf32>
  return
}

// Three dimensions tell a permutation from its inverse.
func.func @transpose_of_three() {
  %x = segue.constant dense<[[[1, 2], [3, 4], [5, 6]]]> : tensor<1x3x2xi32>
  %0 = segue.transpose %x [1, 2, 0] : tensor<1x3x2xi32> -> tensor<3x2x1xi32>
  check.expect_close_const %0, dense<[[[1], [2]], [[3], [4]], [[5], [6]]]> : tensor<3x2x1xi32>
  return
}

func.func @broadcast() {
  %x = segue.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %0 = segue.broadcast %x dims [0] : tensor<2xf32> -> tensor<2x3xf32>
  check.expect_close_const %0, dense<[[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]> : tensor<2x3xf32>
  %y = segue.constant dense<[[1.0, 2.0]]> : tensor<1x2xf32>
  %1 = segue.broadcast %y dims [0, 1] : tensor<1x2xf32> -> tensor<2x2xf32>
  check.expect_close_const %1, dense<[[1.0, 2.0], [1.0, 2.0]]> : tensor<2x2xf32>
  return
}

func.func @reduce() {
  %x = segue.constant dense<[[1.0, -2.0, 4.0], [0.5, 8.0, 0.5]]> : tensor<2x3xf32>
  %0 = segue.reduce sum %x dims [1] : tensor<2x3xf32> -> tensor<2xf32>
  check.expect_close_const %0, dense<[3.0, 9.0]> : tensor<2xf32>
  %1 = segue.reduce mean %x dims [0, 1] : tensor<2x3xf32> -> tensor<f32>
  check.expect_close_const %1, dense<2.0> : tensor<f32>
  %2 = segue.reduce max %x dims [0] : tensor<2x3xf32> -> tensor<3xf32>
  check.expect_close_const %2, dense<[1.0, 8.0, 4.0]> : tensor<3xf32>
  %3 = segue.reduce min %x dims [1] : tensor<2x3xf32> -> tensor<2xf32>
  check.expect_close_const %3, dense<[-2.0, 0.5]> : tensor<2xf32>
  // A NaN is never lost, wherever it stands.
  %nan = segue.constant dense<[[0x7FC00000, 1.0], [1.0, 0x7FC00000]]> : tensor<2x2xf32>
  %4 = segue.reduce max %nan dims [1] : tensor<2x2xf32> -> tensor<2xf32>
  check.expect_close_const %4, dense<0x7FC00000> : tensor<2xf32>
  // Integers wrap.
  %i = segue.constant dense<[100, 100]> : tensor<2xi8>
  %5 = segue.reduce sum %i dims [0] : tensor<2xi8> -> tensor<i8>
  check.expect_close_const %5, dense<-56> : tensor<i8>
  // bf16 accumulates wider: 256 + 1 + 1 is 258, though 256 + 1 is no bf16.
  %b = segue.constant dense<[256.0, 1.0, 1.0]> : tensor<3xbf16>
  %6 = segue.reduce sum %b dims [0] : tensor<3xbf16> -> tensor<bf16>
  check.expect_close_const %6, dense<258.0> : tensor<bf16>
  return
}

func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = segue.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// Calls are followed and kernels looked into.
func.func @structure() {
  %x = segue.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %0 = func.call @twice(%x) : (tensor<2xf32>) -> tensor<2xf32>
  check.expect_close_const %0, dense<[2.0, 4.0]> : tensor<2xf32>
  %1:2 = segue.fused(%in = %0 : tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %n = segue.neg %in : tensor<2xf32>
    segue.yield %n, %in : tensor<2xf32>, tensor<2xf32>
  }
  check.expect_close_const %1#0, dense<[-2.0, -4.0]> : tensor<2xf32>
  check.expect_eq %1#1, %0 : tensor<2xf32>
  return
}

// A resource has a byte for each truth value, as memory has.
func.func @resources() {
  %0 = segue.constant dense_resource<truth> : tensor<9xi1>
  %1 = segue.cast %0 : tensor<9xi1> -> tensor<9xi32>
  check.expect_close_const %1, dense<[1, 0, 0, 1, 1, 1, 0, 0, 1]> : tensor<9xi32>
  %2 = segue.constant dense_resource<half> : tensor<2xf16>
  check.expect_close_const %2, dense<[1.0, -2.0]> : tensor<2xf16>
  return
}
{-# dialect_resources: { builtin: { truth: "0x01000000010000010101000001", half: "0x02000000003C00C0" } } #-}
