// RUN: segue-opt %s --verify-diagnostics --split-input-file -o /dev/null

// Every constraint of SegueOps.td, by its label.

//===----------------------------------------------------------------------===//
// Elementwise
//===----------------------------------------------------------------------===//

// Nothing is broadcast by itself.
func.func @add(%a: tensor<4xf32>, %b: tensor<1xf32>) {
  // expected-note @-1 {{prior use here}}
  // expected-error @below {{use of value '%b' expects different type than prior uses: 'tensor<4xf32>' vs 'tensor<1xf32>'}}
  %0 = segue.add %a, %b : tensor<4xf32>
  return
}

// -----

// Shapes are static.
func.func @dynamic(%a: tensor<?xf32>) {
  // expected-error @below {{'segue.exp' op operand #0 must be statically shaped tensor of f64, f32, bf16 or f16 values, but got 'tensor<?xf32>'}}
  %0 = segue.exp %a : tensor<?xf32>
  return
}

// -----

func.func @float_only(%a: tensor<4xi32>) {
  // expected-error @below {{'segue.exp' op operand #0 must be statically shaped tensor of f64, f32, bf16 or f16 values}}
  %0 = segue.exp %a : tensor<4xi32>
  return
}

// -----

func.func @compare(%a: tensor<4xf32>) {
  // expected-error @below {{'segue.compare' op requires the same shape for all operands and results}}
  %0 = segue.compare lt %a, %a : tensor<4xf32> -> tensor<5xi1>
  return
}

// -----

func.func @select(%c: tensor<3xi1>, %a: tensor<4xf32>) {
  // expected-error @below {{'segue.select' op failed to verify that all of {condition, result} have same shape}}
  %0 = segue.select %c, %a, %a : tensor<3xi1>, tensor<4xf32>
  return
}

// -----

func.func @cast(%a: tensor<4xf32>) {
  // expected-error @below {{'segue.cast' op requires the same shape for all operands and results}}
  %0 = segue.cast %a : tensor<4xf32> -> tensor<2x2xbf16>
  return
}

// -----

//===----------------------------------------------------------------------===//
// Sources and shapes
//===----------------------------------------------------------------------===//

func.func @iota_c1() {
  // expected-error @below {{'segue.iota' op `dim` is 2, but `result` of shape [4, 8] has 2 dimensions}}
  %0 = segue.iota dim 2 : tensor<4x8xi32>
  return
}

// -----

func.func @reshape_c1(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.reshape' op `result` of shape [5, 5] has 25 elements, but `input` of shape [4, 6] has 24}}
  %0 = segue.reshape %x : tensor<4x6xf32> -> tensor<5x5xf32>
  return
}

// -----

func.func @reshape_c2(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.reshape' op `result` holds 'bf16', but `input` holds 'f32'}}
  %0 = segue.reshape %x : tensor<4x6xf32> -> tensor<24xbf16>
  return
}

// -----

func.func @transpose_c1_twice(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.transpose' op `permutation` [1, 1] names dimension 1 twice}}
  %0 = segue.transpose %x [1, 1] : tensor<4x6xf32> -> tensor<6x6xf32>
  return
}

// -----

func.func @transpose_c1_length(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.transpose' op `permutation` has 1 entries, but `input` of shape [4, 6] has 2 dimensions}}
  %0 = segue.transpose %x [0] : tensor<4x6xf32> -> tensor<4xf32>
  return
}

// -----

func.func @transpose_c1_range(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.transpose' op `permutation` names dimension -1, but `input` of shape [4, 6] has 2 dimensions}}
  %0 = segue.transpose %x [0, -1] : tensor<4x6xf32> -> tensor<4x6xf32>
  return
}

// -----

func.func @transpose_c2(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.transpose' op `result` has shape [4, 6], but the permuted shape of `input` is [6, 4]}}
  %0 = segue.transpose %x [1, 0] : tensor<4x6xf32> -> tensor<4x6xf32>
  return
}

// -----

func.func @transpose_c2_element(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.transpose' op `result` holds 'f16', but `input` holds 'f32'}}
  %0 = segue.transpose %x [1, 0] : tensor<4x6xf32> -> tensor<6x4xf16>
  return
}

// -----

func.func @broadcast_c1_length(%x: tensor<8xf32>) {
  // expected-error @below {{'segue.broadcast' op `dims` has 2 entries, but `input` of shape [8] has 1 dimensions}}
  %0 = segue.broadcast %x dims [0, 1] : tensor<8xf32> -> tensor<8x8xf32>
  return
}

// -----

func.func @broadcast_c1_range(%x: tensor<8xf32>) {
  // expected-error @below {{'segue.broadcast' op `dims` names dimension 2, but `result` of shape [8, 8] has 2 dimensions}}
  %0 = segue.broadcast %x dims [2] : tensor<8xf32> -> tensor<8x8xf32>
  return
}

// -----

func.func @broadcast_c1_order(%x: tensor<8x8xf32>) {
  // expected-error @below {{'segue.broadcast' op `dims` must be strictly increasing, but is [1, 0]}}
  %0 = segue.broadcast %x dims [1, 0] : tensor<8x8xf32> -> tensor<8x8xf32>
  return
}

// -----

func.func @broadcast_c2(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.broadcast' op dimension 0 of `input` is 4, but dimension 1 of `result` is 8; only an extent of 1 is repeated}}
  %0 = segue.broadcast %x dims [1] : tensor<4xf32> -> tensor<2x8xf32>
  return
}

// -----

func.func @broadcast_c3(%x: tensor<8xf32>) {
  // expected-error @below {{'segue.broadcast' op `result` holds 'bf16', but `input` holds 'f32'}}
  %0 = segue.broadcast %x dims [1] : tensor<8xf32> -> tensor<2x8xbf16>
  return
}

// -----

func.func @slice_c1(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.slice' op `limits` has 1 entries, but `input` of shape [4, 6] has 2 dimensions}}
  %0 = segue.slice %x [0, 2] to [4] by [1, 1] : tensor<4x6xf32> -> tensor<4x4xf32>
  return
}

// -----

func.func @slice_c2_limit(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.slice' op takes [2, 7) of dimension 1, which must be a part of [0, 6)}}
  %0 = segue.slice %x [0, 2] to [4, 7] by [1, 1] : tensor<4x6xf32> -> tensor<4x5xf32>
  return
}

// -----

func.func @slice_c2_reversed(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.slice' op takes [4, 3) of dimension 1, which must be a part of [0, 6)}}
  %0 = segue.slice %x [0, 4] to [4, 3] by [1, 1] : tensor<4x6xf32> -> tensor<4x0xf32>
  return
}

// -----

func.func @slice_c2_step(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.slice' op has step 0 in dimension 0, which must be at least 1}}
  %0 = segue.slice %x [0, 2] to [4, 6] by [0, 1] : tensor<4x6xf32> -> tensor<4x4xf32>
  return
}

// -----

func.func @slice_c3(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.slice' op `result` has shape [4, 4], but the shape of the box is [4, 2]}}
  %0 = segue.slice %x [0, 2] to [4, 6] by [1, 2] : tensor<4x6xf32> -> tensor<4x4xf32>
  return
}

// -----

func.func @pad_c1_length(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.pad' op `high` has 1 entries, but `input` of shape [4, 6] has 2 dimensions}}
  %0 = segue.pad %x low [0, 1] high [0] interior [0, 0] value 0.0 : f32 : tensor<4x6xf32> -> tensor<4x9xf32>
  return
}

// -----

func.func @pad_c1_negative(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.pad' op has a negative padding in dimension 1: low -1, high 0, interior 0}}
  %0 = segue.pad %x low [0, -1] high [0, 0] interior [0, 0] value 0.0 : f32 : tensor<4x6xf32> -> tensor<4x5xf32>
  return
}

// -----

func.func @pad_c2(%x: tensor<4x6xf32>) {
  // expected-error @below {{'segue.pad' op `result` has shape [4, 9], but the padded shape of `input` is [4, 14]}}
  %0 = segue.pad %x low [0, 1] high [0, 2] interior [0, 1] value 0.0 : f32 : tensor<4x6xf32> -> tensor<4x9xf32>
  return
}

// -----

func.func @pad_c3(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.pad' op `value` is 'i32', but `input` holds 'f32'}}
  %0 = segue.pad %x low [1] high [0] interior [0] value 0 : i32 : tensor<4xf32> -> tensor<5xf32>
  return
}

// -----

func.func @concat_c1() {
  // expected-error @below {{'segue.concat' op needs at least one operand}}
  %0 = "segue.concat"() {dim = 0 : i64} : () -> tensor<4xf32>
  return
}

// -----

func.func @concat_c2(%a: tensor<4xf32>) {
  // expected-error @below {{'segue.concat' op `dim` is 1, but `result` of shape [8] has 1 dimensions}}
  %0 = segue.concat %a, %a dim 1 : tensor<4xf32>, tensor<4xf32> -> tensor<8xf32>
  return
}

// -----

func.func @concat_c3_elsewhere(%a: tensor<4x2xf32>, %b: tensor<3x2xf32>) {
  // expected-error @below {{'segue.concat' op dimension 0 of operand 1 is 3, but that of `result` is 4; only dimension 1 may differ}}
  %0 = segue.concat %a, %b dim 1 : tensor<4x2xf32>, tensor<3x2xf32> -> tensor<4x4xf32>
  return
}

// -----

func.func @concat_c3_rank(%a: tensor<4x2xf32>, %b: tensor<4xf32>) {
  // expected-error @below {{'segue.concat' op operand 1 of shape [4] has 1 dimensions, but `result` has 2}}
  %0 = segue.concat %a, %b dim 1 : tensor<4x2xf32>, tensor<4xf32> -> tensor<4x3xf32>
  return
}

// -----

func.func @concat_c3_sum(%a: tensor<4x2xf32>) {
  // expected-error @below {{'segue.concat' op dimension 1 of `result` is 5, but the operands sum to 4}}
  %0 = segue.concat %a, %a dim 1 : tensor<4x2xf32>, tensor<4x2xf32> -> tensor<4x5xf32>
  return
}

// -----

func.func @concat_c4(%a: tensor<4xf32>, %b: tensor<4xbf16>) {
  // expected-error @below {{'segue.concat' op operand 1 holds 'bf16', but `result` holds 'f32'}}
  %0 = segue.concat %a, %b dim 0 : tensor<4xf32>, tensor<4xbf16> -> tensor<8xf32>
  return
}

// -----

//===----------------------------------------------------------------------===//
// Reductions and contractions
//===----------------------------------------------------------------------===//

func.func @reduce_c1(%x: tensor<2x4xf32>) {
  // expected-error @below {{'segue.reduce' op `dims` must be strictly increasing, but is [1, 0]}}
  %0 = segue.reduce sum %x dims [1, 0] : tensor<2x4xf32> -> tensor<f32>
  return
}

// -----

func.func @reduce_c1_range(%x: tensor<2x4xf32>) {
  // expected-error @below {{'segue.reduce' op `dims` names dimension 2, but `input` of shape [2, 4] has 2 dimensions}}
  %0 = segue.reduce sum %x dims [2] : tensor<2x4xf32> -> tensor<2xf32>
  return
}

// -----

func.func @reduce_c2(%x: tensor<2x4xf32>) {
  // expected-error @below {{'segue.reduce' op `result` has shape [2, 1], but what is left of `input` is [2]}}
  %0 = segue.reduce sum %x dims [1] : tensor<2x4xf32> -> tensor<2x1xf32>
  return
}

// -----

func.func @reduce_c2_element(%x: tensor<2x4xbf16>) {
  // expected-error @below {{'segue.reduce' op `result` holds 'f32', but `input` holds 'bf16'}}
  %0 = segue.reduce sum %x dims [1] : tensor<2x4xbf16> -> tensor<2xf32>
  return
}

// -----

func.func @reduce_c3(%x: tensor<2x4xi32>) {
  // expected-error @below {{'segue.reduce' op takes the mean of 'i32', which must be a float}}
  %0 = segue.reduce mean %x dims [1] : tensor<2x4xi32> -> tensor<2xi32>
  return
}

// -----

func.func @dot_general_c1(%a: tensor<2x4xf32>) {
  // expected-error @below {{'segue.dot_general' op names dimension 1 of `lhs` twice: batch [1], contract [1]}}
  %0 = segue.dot_general %a, %a batch [1] x [0] contract [1] x [1] : tensor<2x4xf32>, tensor<2x4xf32> -> tensor<4x2xf32>
  return
}

// -----

func.func @dot_general_c1_range(%a: tensor<2x4xf32>) {
  // expected-error @below {{'segue.dot_general' op `rhsContract` names dimension 2, but `rhs` of shape [2, 4] has 2 dimensions}}
  %0 = segue.dot_general %a, %a batch [] x [] contract [1] x [2] : tensor<2x4xf32>, tensor<2x4xf32> -> tensor<2x2xf32>
  return
}

// -----

func.func @dot_general_c2_length(%a: tensor<2x4xf32>) {
  // expected-error @below {{'segue.dot_general' op has 1 contracting dimensions of `lhs`, but 2 of `rhs`}}
  %0 = segue.dot_general %a, %a batch [] x [] contract [1] x [0, 1] : tensor<2x4xf32>, tensor<2x4xf32> -> tensor<2xf32>
  return
}

// -----

func.func @dot_general_c2_contract(%a: tensor<4x8xf32>, %b: tensor<9x3xf32>) {
  // expected-error @below {{'segue.dot_general' op contracting dimension 1 of `lhs` is 8, but dimension 0 of `rhs` is 9}}
  %0 = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<9x3xf32> -> tensor<4x3xf32>
  return
}

// -----

func.func @dot_general_c2_batch(%a: tensor<2x4x8xf32>, %b: tensor<3x8x3xf32>) {
  // expected-error @below {{'segue.dot_general' op batch dimension 0 of `lhs` is 2, but dimension 0 of `rhs` is 3}}
  %0 = segue.dot_general %a, %b batch [0] x [0] contract [2] x [1] : tensor<2x4x8xf32>, tensor<3x8x3xf32> -> tensor<2x4x3xf32>
  return
}

// -----

func.func @dot_general_c3(%a: tensor<4x8xf32>, %b: tensor<8x3xbf16>) {
  // expected-error @below {{'segue.dot_general' op `rhs` holds 'bf16', but `lhs` holds 'f32'}}
  %0 = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x3xbf16> -> tensor<4x3xf32>
  return
}

// -----

func.func @dot_general_c4(%a: tensor<4x8xf32>, %b: tensor<8x3xf32>) {
  // expected-error @below {{'segue.dot_general' op `result` has shape [3, 4], but the shape of the product is [4, 3]}}
  %0 = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x3xf32> -> tensor<3x4xf32>
  return
}

// -----

func.func @dot_general_c4_element(%a: tensor<4x8xf32>, %b: tensor<8x3xf32>) {
  // expected-error @below {{'segue.dot_general' op `result` holds 'bf16', which must be 'f32' as the operands, or f32}}
  %0 = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x3xf32> -> tensor<4x3xbf16>
  return
}

// -----

func.func @dot_general_c5(%a: tensor<4x8xf32>, %b: tensor<8x3xf32>, %bias: tensor<4xf32>) {
  // expected-error @below {{'segue.dot_general' op `bias` has shape [4], but the last dimension of `result` is [3]}}
  %0 = segue.dot_general %a, %b bias %bias : tensor<4xf32> batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x3xf32> -> tensor<4x3xf32>
  return
}

// -----

func.func @dot_general_c5_scalar(%a: tensor<8xf32>, %bias: tensor<1xf32>) {
  // expected-error @below {{'segue.dot_general' op has a `bias`, but `result` has no dimension to add it along}}
  %0 = segue.dot_general %a, %a bias %bias : tensor<1xf32> batch [] x [] contract [0] x [0] : tensor<8xf32>, tensor<8xf32> -> tensor<f32>
  return
}

// -----

func.func @dot_general_c5_element(%a: tensor<4x8xf32>, %b: tensor<8x3xf32>, %bias: tensor<3xbf16>) {
  // expected-error @below {{'segue.dot_general' op `bias` holds 'bf16', which must be 'f32' as `result`, or f32}}
  %0 = segue.dot_general %a, %b bias %bias : tensor<3xbf16> batch [] x [] contract [1] x [0] : tensor<4x8xf32>, tensor<8x3xf32> -> tensor<4x3xf32>
  return
}

// -----

func.func @attention_c1_rank(%q: tensor<4x16x8xf32>) {
  // expected-error @below {{'segue.attention' op `q` has shape [4, 16, 8]; it must have 4 dimensions: batch, heads, rows and dim}}
  %0:2 = segue.attention %q, %q, %q scale 0.125 : tensor<4x16x8xf32>, tensor<4x16x8xf32> -> tensor<4x16xf32>
  return
}

// -----

func.func @attention_c1_heads(%q: tensor<2x4x16x8xf32>, %k: tensor<2x2x16x8xf32>) {
  // expected-error @below {{'segue.attention' op `q` has heads = 4 (dimension 1), but `k` has 2}}
  %0:2 = segue.attention %q, %k, %k scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x2x16x8xf32> -> tensor<2x4x16xf32>
  return
}

// -----

func.func @attention_c1_dim(%q: tensor<2x4x16x8xf32>, %k: tensor<2x4x16x4xf32>) {
  // expected-error @below {{'segue.attention' op `q` has dim = 8 (dimension 3), but `k` has 4}}
  %0:2 = segue.attention %q, %k, %k scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x4xf32> -> tensor<2x4x16xf32>
  return
}

// -----

func.func @attention_c2_shape(%q: tensor<2x4x16x8xf32>, %k: tensor<2x4x5x8xf32>, %mask: tensor<2x1x16x16xi1>) {
  // expected-error @below {{'segue.attention' op `mask` has shape [2, 1, 16, 16], but the scores have shape [2, 4, 16, 5]; each of its 4 dimensions must be equal or 1}}
  %0:2 = segue.attention %q, %k, %k mask %mask : tensor<2x1x16x16xi1> scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x5x8xf32> -> tensor<2x4x16xf32>
  return
}

// -----

func.func @attention_c2_element(%q: tensor<2x4x16x8xf32>, %mask: tensor<1x1x16x16xi32>) {
  // expected-error @below {{'segue.attention' op `mask` holds 'i32', which must be i1 or a float}}
  %0:2 = segue.attention %q, %q, %q mask %mask : tensor<1x1x16x16xi32> scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
  return
}

// -----

func.func @attention_c3(%q: tensor<2x4x16x8xf32>, %k: tensor<2x4x16x8xbf16>) {
  // expected-error @below {{'segue.attention' op `k` holds 'bf16', but `q` holds 'f32'}}
  %0:2 = segue.attention %q, %k, %k scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xbf16> -> tensor<2x4x16xf32>
  return
}

// -----

func.func @attention_c4(%q: tensor<2x4x16x8xf32>) {
  // expected-error @below {{'segue.attention' op `lse` has shape [2, 4, 8], but [batch, heads, rows] of `q` is [2, 4, 16]}}
  %0:2 = segue.attention %q, %q, %q scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x8xf32>
  return
}

// -----

func.func @attention_c5_range(%q: tensor<2x4x16x8xf32>, %seed: tensor<i64>) {
  // expected-error @below {{'segue.attention' op has `dropout` 1.000000e+00, which must be at least 0 and less than 1}}
  %0:2 = segue.attention %q, %q, %q dropout 1.0 by %seed, %seed id 0 scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
  return
}

// -----

// This probability is 1 as f32.
func.func @attention_grad_c5_range(%q: tensor<2x4x16x8xf32>, %l: tensor<2x4x16xf32>, %seed: tensor<i64>) {
  // expected-error @below {{'segue.attention_grad' op has `dropout` 1.000000e+00, which must be at least 0 and less than 1}}
  %0:3 = segue.attention_grad %q, %q, %q out %q lse %l grad %q dropout 0.99999999999 by %seed, %seed id 0 scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16xf32>
  return
}

// -----

func.func @attention_c5_together(%q: tensor<2x4x16x8xf32>) {
  // expected-error @below {{'segue.attention' op has only some of `dropout`, `seed`, `step` and `id`; they come together}}
  %0:2 = "segue.attention"(%q, %q, %q) {scale = 1.0 : f64, dropout = 0.5 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0>} : (tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>) -> (tensor<2x4x16x8xf32>, tensor<2x4x16xf32>)
  return
}

// -----

func.func @attention_grad_c1(%q: tensor<2x4x16x8xf32>, %l: tensor<2x4x8xf32>) {
  // expected-error @below {{'segue.attention_grad' op `lse` has shape [2, 4, 8], but [batch, heads, rows] of `q` is [2, 4, 16]}}
  %0:3 = segue.attention_grad %q, %q, %q out %q lse %l grad %q scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x8xf32>
  return
}

// -----

func.func @attention_grad_c2(%q: tensor<2x4x16x8xf32>, %l: tensor<2x4x16xf32>) {
  // expected-error @below {{'segue.attention_grad' op failed to verify that all of {q, gradQ} have same type}}
  %0:3 = "segue.attention_grad"(%q, %q, %q, %q, %l, %q) {scale = 1.0 : f64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 1, 1, 1>} : (tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16xf32>, tensor<2x4x16x8xf32>) -> (tensor<2x4x16x9xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>)
  return
}

// -----

func.func @attention_grad_c3(%q: tensor<2x4x16x8xf32>, %k: tensor<2x2x16x8xf32>, %l: tensor<2x4x16xf32>) {
  // expected-error @below {{'segue.attention_grad' op `q` has heads = 4 (dimension 1), but `k` has 2}}
  %0:3 = segue.attention_grad %q, %k, %k out %q lse %l grad %q scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x2x16x8xf32>, tensor<2x4x16xf32>
  return
}

// -----

//===----------------------------------------------------------------------===//
// Normalisations and losses
//===----------------------------------------------------------------------===//

func.func @layer_norm_c1(%x: tensor<4x8xf32>, %g: tensor<4xf32>) {
  // expected-error @below {{'segue.layer_norm' op `gamma` has shape [4], but the last dimension of `input` is [8]}}
  %0:3 = segue.layer_norm %x gamma %g : tensor<4xf32> eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>
  return
}

// -----

func.func @layer_norm_c1_beta(%x: tensor<4x8xf32>, %b: tensor<8x1xf32>) {
  // expected-error @below {{'segue.layer_norm' op `beta` has shape [8, 1], but the last dimension of `input` is [8]}}
  %0:3 = segue.layer_norm %x beta %b : tensor<8x1xf32> eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>
  return
}

// -----

func.func @layer_norm_c2(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.layer_norm' op `mean` has shape [8], but the shape of `input` without its last dimension is [4]}}
  %0:3 = segue.layer_norm %x eps 1.0e-5 : tensor<4x8xf32> -> tensor<8xf32>
  return
}

// -----

func.func @layer_norm_scalar(%x: tensor<f32>) {
  // expected-error @below {{'segue.layer_norm' op `input` is a scalar; it must have a last dimension}}
  %0:3 = segue.layer_norm %x eps 1.0e-5 : tensor<f32> -> tensor<f32>
  return
}

// -----

func.func @rms_norm_c1(%x: tensor<4x8xf32>, %g: tensor<4xf32>) {
  // expected-error @below {{'segue.rms_norm' op `gamma` has shape [4], but the last dimension of `input` is [8]}}
  %0:2 = segue.rms_norm %x gamma %g : tensor<4xf32> eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>
  return
}

// -----

func.func @rms_norm_c2(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.rms_norm' op `rstd` has shape [8], but the shape of `input` without its last dimension is [4]}}
  %0:2 = segue.rms_norm %x eps 1.0e-5 : tensor<4x8xf32> -> tensor<8xf32>
  return
}

// -----

func.func @cumsum_c1(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.cumsum' op `dim` is 2, but `input` of shape [4, 8] has 2 dimensions}}
  %0 = segue.cumsum %x dim 2 : tensor<4x8xf32>
  return
}

// -----

func.func @cummax_c1(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.cummax' op `dim` is 2, but `input` of shape [4, 8] has 2 dimensions}}
  %0 = segue.cummax %x dim 2 : tensor<4x8xf32>
  return
}

// -----

func.func @recurrence_c1(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.recurrence' op `dim` is -1, but `input` of shape [4, 8] has 2 dimensions}}
  %0 = segue.recurrence %x, %x dim -1 : tensor<4x8xf32>
  return
}

// -----

func.func @conv2d_c1(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3xf32>) {
  // expected-error @below {{'segue.conv2d' op `weight` has shape [6, 2, 3]; it must have 4 dimensions}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c2_entries(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d' op `low` has 3 entries, but there are 2 dimensions}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c2_stride(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d' op `strides` is [0, 1]; each must be at least 1 and below 2^31}}
  %0 = segue.conv2d %x, %w strides [0, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c2_padding(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d' op `high` is [1, -1]; each must be at least 0 and below 2^31}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, -1] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c2_groups(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d' op has 0 groups; there must be one at least}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 0 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c3_divides(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d' op has 4 groups, which must divide the 4 channels of `input` and the 6 outputs of `weight`}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 4 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c3_share(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d' op `weight` has 2 channels, but a group of `input` has 4}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 1 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c4_fits(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d' op `weight` spans 13 elements of dimension 3, but the padded `input` has 10}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 6] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c4_shape(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d' op `result` has shape [2, 6, 5, 5], but what the weight passes is [2, 6, 5, 6]}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x5xf32>
  return
}

// -----

func.func @conv2d_c5(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xbf16>) {
  // expected-error @below {{'segue.conv2d' op `weight` holds 'bf16', but `input` holds 'f32'}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xbf16> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c5_empty(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x0x3xf32>) {
  // expected-error @below {{'segue.conv2d' op `weight` has shape [6, 2, 0, 3]; no extent may be 0}}
  %0 = segue.conv2d %x, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x0x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_c6(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>, %b: tensor<2xf32>) {
  // expected-error @below {{'segue.conv2d' op `bias` has shape [2], but one per output is [6]}}
  %0 = segue.conv2d %x, %w bias %b : tensor<2xf32> strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  return
}

// -----

func.func @conv2d_input_grad(%g: tensor<2x6x5x6xf32>, %w: tensor<6x2x3x3xf32>) {
  // expected-error @below {{'segue.conv2d_input_grad' op `weight` has 2 channels, but a group of `result` has 3}}
  %0 = segue.conv2d_input_grad %g, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x6x5x6xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x9x8xf32>
  return
}

// -----

func.func @conv2d_weight_grad(%g: tensor<2x6x5x6xf32>, %x: tensor<2x4x9x8xf32>) {
  // expected-error @below {{'segue.conv2d_weight_grad' op `gradient` has shape [2, 6, 5, 6]}}
  %0 = segue.conv2d_weight_grad %g, %x strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x6x5x6xf32>, tensor<2x4x9x8xf32> -> tensor<6x2x1x3xf32>
  return
}

// -----

func.func @conv3d_c1(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x2x3x3xf32>) {
  // expected-error @below {{'segue.conv3d' op `input` has shape [2, 4, 9, 8]; it must have 5 dimensions}}
  %0 = segue.conv3d %x, %w strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x2x3x3xf32> -> tensor<2x6x3x4x7xf32>
  return
}

// -----

func.func @conv3d_c2(%x: tensor<2x4x5x6x7xf32>, %w: tensor<6x2x2x3x3xf32>) {
  // expected-error @below {{'segue.conv3d' op `high` has 2 entries, but there are 3 dimensions}}
  %0 = segue.conv3d %x, %w strides [2, 1, 1] low [1, 0, 1] high [0, 2] dilations [1, 2, 1] groups 2 : tensor<2x4x5x6x7xf32>, tensor<6x2x2x3x3xf32> -> tensor<2x6x3x4x7xf32>
  return
}

// -----

func.func @conv3d_c4(%x: tensor<2x4x5x6x7xf32>, %w: tensor<6x2x2x3x3xf32>) {
  // expected-error @below {{'segue.conv3d' op `result` has shape [2, 6, 3, 4, 6], but what the weight passes is [2, 6, 3, 4, 7]}}
  %0 = segue.conv3d %x, %w strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x4x5x6x7xf32>, tensor<6x2x2x3x3xf32> -> tensor<2x6x3x4x6xf32>
  return
}

// -----

func.func @conv3d_input_grad(%g: tensor<2x6x3x4x7xf32>, %w: tensor<6x2x2x3x3xf32>) {
  // expected-error @below {{'segue.conv3d_input_grad' op `weight` has 2 channels, but a group of `result` has 3}}
  %0 = segue.conv3d_input_grad %g, %w strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x6x3x4x7xf32>, tensor<6x2x2x3x3xf32> -> tensor<2x6x5x6x7xf32>
  return
}

// -----

func.func @conv3d_weight_grad(%g: tensor<2x6x3x4x7xf32>, %x: tensor<2x4x5x6x7xf32>) {
  // expected-error @below {{'segue.conv3d_weight_grad' op `gradient` has shape [2, 6, 3, 4, 7]}}
  %0 = segue.conv3d_weight_grad %g, %x strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x6x3x4x7xf32>, tensor<2x4x5x6x7xf32> -> tensor<6x2x2x1x3xf32>
  return
}

// -----

func.func @grouped_dot_c1(%r: tensor<7x4xf32>, %m: tensor<4x5xf32>, %e: tensor<3xi32>) {
  // expected-error @below {{'segue.grouped_dot' op `matrices` has shape [4, 5]; it must have 3 dimensions}}
  %0 = segue.grouped_dot %r, %m by %e : tensor<7x4xf32>, tensor<4x5xf32>, tensor<3xi32> -> tensor<7x5xf32>
  return
}

// -----

func.func @grouped_dot_c1_ends(%r: tensor<7x4xf32>, %m: tensor<3x4x5xf32>, %e: tensor<3x1xi32>) {
  // expected-error @below {{'segue.grouped_dot' op `ends` has shape [3, 1]; it must have 1 dimension}}
  %0 = segue.grouped_dot %r, %m by %e : tensor<7x4xf32>, tensor<3x4x5xf32>, tensor<3x1xi32> -> tensor<7x5xf32>
  return
}

// -----

func.func @grouped_dot_c2(%r: tensor<7x4xf32>, %m: tensor<3x4x5xf32>, %e: tensor<2xi32>) {
  // expected-error @below {{'segue.grouped_dot' op `ends` has shape [2], but one per matrix is [3]}}
  %0 = segue.grouped_dot %r, %m by %e : tensor<7x4xf32>, tensor<3x4x5xf32>, tensor<2xi32> -> tensor<7x5xf32>
  return
}

// -----

func.func @grouped_dot_c3(%r: tensor<7x4xf32>, %m: tensor<3x4x5xf32>, %e: tensor<3xi32>) {
  // expected-error @below {{'segue.grouped_dot' op `rows` has 4 columns, but `matrices` of shape [3, 4, 5] transposed has 5 there}}
  %0 = segue.grouped_dot %r, %m transposed by %e : tensor<7x4xf32>, tensor<3x4x5xf32>, tensor<3xi32> -> tensor<7x5xf32>
  return
}

// -----

func.func @grouped_dot_c4(%r: tensor<7x4xf32>, %m: tensor<3x4x5xbf16>, %e: tensor<3xi32>) {
  // expected-error @below {{'segue.grouped_dot' op `matrices` holds 'bf16', but `rows` holds 'f32'}}
  %0 = segue.grouped_dot %r, %m by %e : tensor<7x4xf32>, tensor<3x4x5xbf16>, tensor<3xi32> -> tensor<7x5xf32>
  return
}

// -----

func.func @grouped_dot_c5(%r: tensor<7x4xf32>, %m: tensor<3x4x5xf32>, %e: tensor<3xi32>) {
  // expected-error @below {{'segue.grouped_dot' op `result` has shape [7, 4], but [rows, columns] is [7, 5]}}
  %0 = segue.grouped_dot %r, %m by %e : tensor<7x4xf32>, tensor<3x4x5xf32>, tensor<3xi32> -> tensor<7x4xf32>
  return
}

// -----

func.func @grouped_outer_c1(%a: tensor<7x4x1xf32>, %b: tensor<7x5xf32>, %e: tensor<3xi32>) {
  // expected-error @below {{'segue.grouped_outer' op `lhs` has shape [7, 4, 1]; it must have 2 dimensions}}
  %0 = segue.grouped_outer %a, %b by %e : tensor<7x4x1xf32>, tensor<7x5xf32>, tensor<3xi32> -> tensor<3x4x5xf32>
  return
}

// -----

func.func @grouped_outer_c2(%a: tensor<7x4xf32>, %b: tensor<6x5xf32>, %e: tensor<3xi32>) {
  // expected-error @below {{'segue.grouped_outer' op `lhs` has 7 rows, but `rhs` has 6}}
  %0 = segue.grouped_outer %a, %b by %e : tensor<7x4xf32>, tensor<6x5xf32>, tensor<3xi32> -> tensor<3x4x5xf32>
  return
}

// -----

func.func @grouped_outer_c3(%a: tensor<7x4xf32>, %b: tensor<7x5xf16>, %e: tensor<3xi32>) {
  // expected-error @below {{'segue.grouped_outer' op `rhs` holds 'f16', but `lhs` holds 'f32'}}
  %0 = segue.grouped_outer %a, %b by %e : tensor<7x4xf32>, tensor<7x5xf16>, tensor<3xi32> -> tensor<3x4x5xf32>
  return
}

// -----

func.func @grouped_outer_c4(%a: tensor<7x4xf32>, %b: tensor<7x5xf32>, %e: tensor<3xi64>) {
  // expected-error @below {{'segue.grouped_outer' op `result` has shape [4, 4, 5], but [ends, columns of `lhs`, columns of `rhs`] is [3, 4, 5]}}
  %0 = segue.grouped_outer %a, %b by %e : tensor<7x4xf32>, tensor<7x5xf32>, tensor<3xi64> -> tensor<4x4x5xf32>
  return
}

// -----

func.func @argsort_c1(%x: tensor<f32>) {
  // expected-error @below {{'segue.argsort' op `input` is a scalar; it must have a dimension at least}}
  %0 = segue.argsort %x : tensor<f32> -> tensor<i64>
  return
}

// -----

func.func @argsort_c2(%x: tensor<2147483648xi8>) {
  // expected-error @below {{'segue.argsort' op has rows of 2147483648 elements; they must have one or more, and fewer than 2^31}}
  %0 = segue.argsort %x : tensor<2147483648xi8> -> tensor<3xi64>
  return
}

// -----

func.func @argsort_c2_empty(%x: tensor<4x0xf32>) {
  // expected-error @below {{'segue.argsort' op has rows of 0 elements; they must have one or more, and fewer than 2^31}}
  %0 = segue.argsort %x : tensor<4x0xf32> -> tensor<4x0xi64>
  return
}

// -----

func.func @argsort_c3(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.argsort' op `result` has shape [5, 3], but `input` with the wanted places is [4, 3]}}
  %0 = segue.argsort %x : tensor<4x8xf32> -> tensor<5x3xi64>
  return
}

// -----

func.func @argsort_c3_scalar(%x: tensor<8xf32>) {
  // expected-error @below {{'segue.argsort' op `result` has shape [], but `input` with the wanted places is [8]}}
  %0 = segue.argsort %x : tensor<8xf32> -> tensor<i64>
  return
}

// -----

func.func @argsort_c4(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.argsort' op wants 3 places from 6 on of rows with 8 elements}}
  %0 = segue.argsort %x from 6 : tensor<4x8xf32> -> tensor<4x3xi64>
  return
}

// -----

func.func @argsort_c4_negative(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.argsort' op wants 3 places from -1 on of rows with 8 elements}}
  %0 = segue.argsort %x from -1 : tensor<4x8xf32> -> tensor<4x3xi64>
  return
}

// -----

func.func @softmax_c1(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.softmax' op `dim` is 2, but `input` of shape [4, 8] has 2 dimensions}}
  %0 = segue.softmax %x dim 2 : tensor<4x8xf32>
  return
}

// -----

func.func @log_softmax_c1(%x: tensor<4x8xf32>) {
  // expected-error @below {{'segue.log_softmax' op `dim` is -1, but `input` of shape [4, 8] has 2 dimensions}}
  %0 = segue.log_softmax %x dim -1 : tensor<4x8xf32>
  return
}

// -----

func.func @cross_entropy_c1(%x: tensor<2x4x8xf32>, %t: tensor<2xi64>) {
  // expected-error @below {{'segue.cross_entropy' op `logits` has shape [2, 4, 8]; it must have 2 dimensions: rows and classes}}
  %0:2 = segue.cross_entropy %x, %t ignore_index -100 : tensor<2x4x8xf32>, tensor<2xi64> -> tensor<2xf32>
  return
}

// -----

func.func @cross_entropy_c1_targets(%x: tensor<4x8xf32>, %t: tensor<5xi64>) {
  // expected-error @below {{'segue.cross_entropy' op `targets` has shape [5], but the rows of `logits` is [4]}}
  %0:2 = segue.cross_entropy %x, %t ignore_index -100 : tensor<4x8xf32>, tensor<5xi64> -> tensor<4xf32>
  return
}

// -----

func.func @cross_entropy_c2(%x: tensor<4x8xf32>, %t: tensor<4xi64>) {
  // expected-error @below {{'segue.cross_entropy' op `loss` has shape [], but the rows of `logits` is [4]}}
  %0:2 = segue.cross_entropy %x, %t ignore_index -100 : tensor<4x8xf32>, tensor<4xi64> -> tensor<f32>
  return
}

// -----

//===----------------------------------------------------------------------===//
// Indexing and steps
//===----------------------------------------------------------------------===//

func.func @gather_c1(%t: tensor<f32>, %i: tensor<2xi64>) {
  // expected-error @below {{'segue.gather' op `table` is a scalar; it must have a dimension to index}}
  %0 = segue.gather %t[%i] : tensor<f32>, tensor<2xi64> -> tensor<2xf32>
  return
}

// -----

func.func @gather_c2(%t: tensor<16x8xf32>, %i: tensor<2x4xi64>) {
  // expected-error @below {{'segue.gather' op `result` has shape [2, 4, 16], but the shape of `indices` followed by that of a row of `table` is [2, 4, 8]}}
  %0 = segue.gather %t[%i] : tensor<16x8xf32>, tensor<2x4xi64> -> tensor<2x4x16xf32>
  return
}

// -----

func.func @gather_c2_element(%t: tensor<16x8xf32>, %i: tensor<4xi64>) {
  // expected-error @below {{'segue.gather' op `result` holds 'bf16', but `table` holds 'f32'}}
  %0 = segue.gather %t[%i] : tensor<16x8xf32>, tensor<4xi64> -> tensor<4x8xbf16>
  return
}

// -----

func.func @gather_index_type(%t: tensor<16x8xf32>, %i: tensor<4xi8>) {
  // expected-error @below {{'segue.gather' op operand #1 must be statically shaped tensor of i32 or i64 values, but got 'tensor<4xi8>'}}
  %0 = segue.gather %t[%i] : tensor<16x8xf32>, tensor<4xi8> -> tensor<4x8xf32>
  return
}

// -----

func.func @scatter_add_c1(%u: tensor<2xf32>, %i: tensor<2xi64>) {
  // expected-error @below {{'segue.scatter_add' op `result` is a scalar; it must have a dimension to index}}
  %0 = segue.scatter_add %u[%i] : tensor<2xf32>, tensor<2xi64> -> tensor<f32>
  return
}

// -----

func.func @scatter_add_c2(%u: tensor<2x8xf32>, %i: tensor<3xi64>) {
  // expected-error @below {{'segue.scatter_add' op `updates` has shape [2, 8], but the shape of `indices` followed by that of a row of `result` is [3, 8]}}
  %0 = segue.scatter_add %u[%i] : tensor<2x8xf32>, tensor<3xi64> -> tensor<16x8xf32>
  return
}

// -----

//===----------------------------------------------------------------------===//
// Structure
//===----------------------------------------------------------------------===//

func.func @to_layout_c1(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.to_layout' op `result` holds 'bf16', but `input` holds 'f32'}}
  %0 = segue.to_layout %x : tensor<4xf32> -> tensor<4xbf16>
  return
}

// -----

func.func @fused_c1(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.fused' op has 1 operands, but its body has 0 arguments}}
  "segue.fused"(%x) ({
    "segue.yield"() : () -> ()
  }) : (tensor<4xf32>) -> ()
  return
}

// -----

func.func @fused_c1_type(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.fused' op operand 0 is 'tensor<4xf32>', but argument 0 of the body is 'tensor<5xf32>'}}
  "segue.fused"(%x) ({
  ^bb0(%in: tensor<5xf32>):
    "segue.yield"() : () -> ()
  }) : (tensor<4xf32>) -> ()
  return
}

// -----

func.func @fused_c2(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.fused' op gives ('tensor<5xf32>'), but its body yields ('tensor<4xf32>')}}
  %0 = segue.fused(%in = %x : tensor<4xf32>) -> tensor<5xf32> {
    segue.yield %in : tensor<4xf32>
  }
  return
}

// -----

func.func @launch_c1_module(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op calls `k`, but there is no module `@kernels`}}
  %0 = segue.launch @k(%x) range 4 grain 1 : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @launch_c1_symbol(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op calls `k`, which is not a function in `@kernels`}}
  %0 = segue.launch @k(%x) range 4 grain 1 : (tensor<4xf32>) -> tensor<4xf32>
  return
}
module @kernels {
}

// -----

func.func @launch_c1_signature(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op needs a kernel of 4 arguments (1 operands, 1 results, begin and end), but `k` takes 3}}
  %0 = segue.launch @k(%x) range 4 grain 1 : (tensor<4xf32>) -> tensor<4xf32>
  return
}
module @kernels {
  // expected-note @below {{kernel defined here}}
  func.func private @k(memref<4xf32>, index, index) -> i64
}

// -----

func.func @launch_c4_operand(%x: tensor<4xi64>) {
  // expected-error @below {{'segue.launch' op operand 0 is 'tensor<4xi64>', but argument 0 of `k` is 'memref<?xf32>'}}
  %0 = segue.launch @k(%x) range 4 grain 1 : (tensor<4xi64>) -> tensor<4xf32>
  return
}
module @kernels {
  // expected-note @below {{kernel defined here}}
  func.func private @k(memref<?xf32>, memref<?xf32>, index, index) -> i64
}

// -----

func.func @launch_c4_elements(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op result 0 is 'tensor<5xf32>', but argument 1 of `k` is 'memref<4xf32>'}}
  %0 = segue.launch @k(%x) range 4 grain 1 : (tensor<4xf32>) -> tensor<5xf32>
  return
}
module @kernels {
  // expected-note @below {{kernel defined here}}
  func.func private @k(memref<?xf32>, memref<4xf32>, index, index) -> i64
}

// -----

// A truth value is a byte in memory.
func.func @launch_c4_truth(%x: tensor<4xi1>) {
  // expected-error @below {{'segue.launch' op gives begin and end of its range as index, but argument 3 of `k` is 'i64'}}
  %0 = segue.launch @k(%x) range 4 grain 1 : (tensor<4xi1>) -> tensor<4xi1>
  return
}
module @kernels {
  // expected-note @below {{kernel defined here}}
  func.func private @k(memref<?xi8>, memref<?xi8>, index, i64) -> i64
}

// -----

func.func @launch_c4_status(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op needs a kernel that returns an i64, but `k` returns ()}}
  %0 = segue.launch @k(%x) range 4 grain 1 : (tensor<4xf32>) -> tensor<4xf32>
  return
}
module @kernels {
  // expected-note @below {{kernel defined here}}
  func.func private @k(memref<?xf32>, memref<?xf32>, index, index)
}

// -----

func.func @launch_c2_odd(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op `inPlace` [0] must hold pairs of an operand and a result}}
  %0 = segue.launch @k(%x) range 4 grain 1 {inPlace = array<i64: 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @launch_c2_range(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op `inPlace` pairs operand 1 and result 0, but there are 1 operands and 1 results}}
  %0 = segue.launch @k(%x) range 4 grain 1 {inPlace = array<i64: 1, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @launch_c2_type(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op `inPlace` pairs operand 0, which is 'tensor<4xf32>', and result 0, which is 'tensor<5xf32>'}}
  %0 = segue.launch @k(%x) range 4 grain 1 {inPlace = array<i64: 0, 0>} : (tensor<4xf32>) -> tensor<5xf32>
  return
}

// -----

func.func @launch_c3(%x: tensor<4xf32>) {
  // expected-error @below {{'segue.launch' op has range 4 and grain 0, which must be at least 1}}
  %0 = segue.launch @k(%x) range 4 grain 0 : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @dot_gelu_c1(%a: tensor<f32>, %w: tensor<4x8xf32>) {
  // expected-error @below {{'segue.dot_gelu' op `lhs` is a scalar; it must have a dimension at least}}
  %0 = segue.dot_gelu %a, %w : tensor<f32>, tensor<4x8xf32> -> tensor<8xf32>
  return
}

// -----

func.func @dot_gelu_c1_rhs(%a: tensor<3x4xf32>, %w: tensor<1x4x8xf32>) {
  // expected-error @below {{'segue.dot_gelu' op `rhs` has shape [1, 4, 8]; it must have 2 dimensions}}
  %0 = segue.dot_gelu %a, %w : tensor<3x4xf32>, tensor<1x4x8xf32> -> tensor<3x8xf32>
  return
}

// -----

func.func @dot_gelu_c2(%a: tensor<3x4xf32>, %w: tensor<4x8xf32>) {
  // expected-error @below {{'segue.dot_gelu' op `lhs` has rows of 4, but `rhs` of shape [4, 8] transposed has 8 there}}
  %0 = segue.dot_gelu %a, %w transposed : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x4xf32>
  return
}

// -----

func.func @dot_gelu_c3(%a: tensor<3x4xf32>, %w: tensor<4x8xbf16>) {
  // expected-error @below {{'segue.dot_gelu' op `rhs` holds 'bf16', but `lhs` holds 'f32'}}
  %0 = segue.dot_gelu %a, %w : tensor<3x4xf32>, tensor<4x8xbf16> -> tensor<3x8xf32>
  return
}

// -----

func.func @dot_gelu_c4(%a: tensor<3x4xf32>, %w: tensor<4x8xf32>) {
  // expected-error @below {{'segue.dot_gelu' op `result` has shape [3, 9]}}
  %0 = segue.dot_gelu %a, %w : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x9xf32>
  return
}

// -----

func.func @dot_gelu_c4_sums(%a: tensor<3x4xf32>, %w: tensor<4x8xf32>) {
  // expected-error @below {{'segue.dot_gelu' op `sums` has type 'tensor<3x9xf32>', but the result has 'tensor<3x8xf32>'}}
  %0, %1 = segue.dot_gelu %a, %w : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x8xf32>, tensor<3x9xf32>
  return
}

// -----

func.func @dot_gelu_c5(%a: tensor<3x4xf32>, %w: tensor<4x8xf32>, %b: tensor<4xf32>) {
  // expected-error @below {{'segue.dot_gelu' op `bias` has shape [4]}}
  %0 = segue.dot_gelu %a, %w bias %b : tensor<4xf32> : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x8xf32>
  return
}

// -----

// Sizes that wrap are no sizes: this result has as many elements as an empty tensor, modulo 2^64.
func.func @storable_operands(%x: tensor<4611686018427387904x4xf32>) {
  // expected-error @below {{'segue.reshape' op operand #0 has type 'tensor<4611686018427387904x4xf32>', whose size in bytes is not a number of 62 bits}}
  %0 = segue.reshape %x : tensor<4611686018427387904x4xf32> -> tensor<0xf32>
  return
}

// -----

func.func @storable_results(%x: tensor<f64>) {
  // expected-error @below {{'segue.broadcast' op result #0 has type 'tensor<1152921504606846976xf64>', whose size in bytes is not a number of 62 bits}}
  %0 = segue.broadcast %x dims [] : tensor<f64> -> tensor<1152921504606846976xf64>
  return
}

// -----

func.func @pad_wraps(%x: tensor<6xf32>) {
  // expected-error @below {{'segue.pad' op pads dimension 0 to an extent that is not a number of 63 bits}}
  %0 = segue.pad %x low [9223372036854775807] high [9223372036854775807] interior [0] value 0.0 : f32 : tensor<6xf32> -> tensor<4xf32>
  return
}

// -----

func.func @pad_interior_wraps(%x: tensor<5xf32>) {
  // expected-error @below {{'segue.pad' op pads dimension 0 to an extent that is not a number of 63 bits}}
  %0 = segue.pad %x low [0] high [0] interior [4611686018427387904] value 0.0 : f32 : tensor<5xf32> -> tensor<5xf32>
  return
}

// -----

func.func @constant_c1() {
  // expected-error @below {{'segue.constant' op has a resource of 4 bytes, but 'tensor<4xf32>' has 16}}
  %0 = segue.constant dense_resource<short> : tensor<4xf32>
  return
}
{-# dialect_resources: { builtin: { short: "0x040000000000803F" } } #-}
