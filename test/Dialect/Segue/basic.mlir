// RUN: segue-opt %s --verify-roundtrip | FileCheck %s

// Every op, in the words of the examples of SegueOps.td (examples.test holds
// the two together), survives printing and parsing.

// CHECK-LABEL: func.func @unary
func.func @unary(%x: tensor<4xf32>, %b: tensor<4xi1>) {
  %neg = segue.neg %x : tensor<4xf32>
  %abs = segue.abs %x : tensor<4xf32>
  %sign = segue.sign %x : tensor<4xf32>
  %floor = segue.floor %x : tensor<4xf32>
  %ceil = segue.ceil %x : tensor<4xf32>
  %trunc = segue.trunc %x : tensor<4xf32>
  %round = segue.round %x : tensor<4xf32>
  %exp = segue.exp %x : tensor<4xf32>
  %expm1 = segue.expm1 %x : tensor<4xf32>
  %log = segue.log %x : tensor<4xf32>
  %log1p = segue.log1p %x : tensor<4xf32>
  %sqrt = segue.sqrt %x : tensor<4xf32>
  %rsqrt = segue.rsqrt %x : tensor<4xf32>
  %sin = segue.sin %x : tensor<4xf32>
  %cos = segue.cos %x : tensor<4xf32>
  %tanh = segue.tanh %x : tensor<4xf32>
  %erf = segue.erf %x : tensor<4xf32>
  %sigmoid = segue.sigmoid %x : tensor<4xf32>
  %silu = segue.silu %x : tensor<4xf32>
  %relu = segue.relu %x : tensor<4xf32>
  return
}

func.func @detach(%x: tensor<4xf32>) {
  %y = segue.detach %x : tensor<4xf32>
  return
}

func.func @not(%x: tensor<4xi1>) {
  %y = segue.not %x : tensor<4xi1>
  return
}

func.func @gelu(%x: tensor<4x8xf32>) {
  // CHECK: segue.gelu tanh %{{.*}} : tensor<4x8xf32>
  %y = segue.gelu tanh %x : tensor<4x8xf32>
  %z = segue.gelu erf %x : tensor<4x8xf32>
  return
}

func.func @binary(%a: tensor<4xf32>, %b: tensor<4xf32>) {
  %add = segue.add %a, %b : tensor<4xf32>
  %sub = segue.sub %a, %b : tensor<4xf32>
  %mul = segue.mul %a, %b : tensor<4xf32>
  %div = segue.div %a, %b : tensor<4xf32>
  %max = segue.max %a, %b : tensor<4xf32>
  %min = segue.min %a, %b : tensor<4xf32>
  %pow = segue.pow %a, %b : tensor<4xf32>
  %rem = segue.rem %a, %b : tensor<4xf32>
  %compare = segue.compare lt %a, %b : tensor<4xf32> -> tensor<4xi1>
  return
}

func.func @logic(%a: tensor<4xi1>, %b: tensor<4xi1>) {
  %and = segue.and %a, %b : tensor<4xi1>
  %or = segue.or %a, %b : tensor<4xi1>
  return
}

func.func @predicates(%a: tensor<4xi64>, %b: tensor<4xi64>) {
  %eq = segue.compare eq %a, %b : tensor<4xi64> -> tensor<4xi1>
  %ne = segue.compare ne %a, %b : tensor<4xi64> -> tensor<4xi1>
  %le = segue.compare le %a, %b : tensor<4xi64> -> tensor<4xi1>
  %gt = segue.compare gt %a, %b : tensor<4xi64> -> tensor<4xi1>
  %ge = segue.compare ge %a, %b : tensor<4xi64> -> tensor<4xi1>
  return
}

func.func @select_cast(%c: tensor<4xi1>, %a: tensor<4xf32>, %b: tensor<4xf32>, %x: tensor<4xf32>) {
  %0 = segue.select %c, %a, %b : tensor<4xi1>, tensor<4xf32>
  %1 = segue.cast %x : tensor<4xf32> -> tensor<4xbf16>
  return
}

// Every element type, and tensors without dimensions or elements.
func.func @types(%a: tensor<bf16>, %b: tensor<2xf16>, %c: tensor<2xi32>, %d: tensor<2xi8>, %e: tensor<0x3xf32>) {
  %0 = segue.exp %a : tensor<bf16>
  %1 = segue.exp %b : tensor<2xf16>
  %2 = segue.add %c, %c : tensor<2xi32>
  %3 = segue.add %d, %d : tensor<2xi8>
  %4 = segue.exp %e : tensor<0x3xf32>
  return
}

// CHECK-LABEL: func.func @sources
func.func @sources(%seed: tensor<i64>, %step: tensor<i64>) {
  // CHECK: segue.constant dense<1.000000e+00> : tensor<4xf32>
  %c = segue.constant dense<1.0> : tensor<4xf32>
  %i = segue.iota dim 1 : tensor<4x8xi32>
  // CHECK: segue.random %{{.*}}, %{{.*}} id 3 : tensor<4x8xf32>
  %u = segue.random %seed, %step id 3 : tensor<4x8xf32>
  return
}

func.func @shapes(%x: tensor<4x6xf32>, %b: tensor<8xf32>) {
  %0 = segue.reshape %x : tensor<4x6xf32> -> tensor<2x12xf32>
  %1 = segue.transpose %x [1, 0] : tensor<4x6xf32> -> tensor<6x4xf32>
  %2 = segue.broadcast %b dims [2] : tensor<8xf32> -> tensor<2x4x8xf32>
  %3 = segue.slice %x [0, 2] to [4, 6] by [1, 2] : tensor<4x6xf32> -> tensor<4x2xf32>
  // CHECK: segue.pad %{{.*}} low [0, 1] high [0, 2] interior [0, 0] value 0.000000e+00 : f32 : tensor<4x6xf32> -> tensor<4x9xf32>
  %4 = segue.pad %x low [0, 1] high [0, 2] interior [0, 0] value 0.0 : f32 : tensor<4x6xf32> -> tensor<4x9xf32>
  return
}

func.func @concat(%a: tensor<4x2xf32>, %b: tensor<4x3xf32>) {
  %y = segue.concat %a, %b dim 1 : tensor<4x2xf32>, tensor<4x3xf32> -> tensor<4x5xf32>
  return
}

func.func @reduce(%x: tensor<2x4x8xf32>) {
  %0 = segue.reduce sum %x dims [0, 2] : tensor<2x4x8xf32> -> tensor<4xf32>
  %1 = segue.reduce max %x dims [0, 1, 2] : tensor<2x4x8xf32> -> tensor<f32>
  %2 = segue.reduce min %x dims [] : tensor<2x4x8xf32> -> tensor<2x4x8xf32>
  %3 = segue.reduce mean %x dims [1] : tensor<2x4x8xf32> -> tensor<2x8xf32>
  return
}

func.func @dot_general(%a: tensor<2x4x8xf32>, %b: tensor<2x8x3xf32>, %bias: tensor<3xf32>) {
  %c = segue.dot_general %a, %b batch [0] x [0] contract [2] x [1] : tensor<2x4x8xf32>, tensor<2x8x3xf32> -> tensor<2x4x3xf32>
  // CHECK: segue.dot_general %{{.*}}, %{{.*}} bias %{{.*}} : tensor<3xf32> batch [0] x [0] contract [2] x [1]
  %d = segue.dot_general %a, %b bias %bias : tensor<3xf32> batch [0] x [0] contract [2] x [1] : tensor<2x4x8xf32>, tensor<2x8x3xf32> -> tensor<2x4x3xf32>
  return
}

// bf16 operands may accumulate into an f32 result.
func.func @dot_general_widens(%a: tensor<4x8xbf16>, %b: tensor<8x3xbf16>) {
  %c = segue.dot_general %a, %b batch [] x [] contract [1] x [0] : tensor<4x8xbf16>, tensor<8x3xbf16> -> tensor<4x3xf32>
  return
}

// CHECK-LABEL: func.func @attention
func.func @attention(%q: tensor<2x4x16x8xf32>, %k: tensor<2x4x16x8xf32>, %v: tensor<2x4x16x8xf32>,
                     %o: tensor<2x4x16x8xf32>, %l: tensor<2x4x16xf32>, %g: tensor<2x4x16x8xf32>,
                     %mask: tensor<2x1x1x16xi1>, %added: tensor<1x4x16x16xf32>, %seed: tensor<i64>, %step: tensor<i64>) {
  %out, %lse = segue.attention %q, %k, %v causal scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
  // CHECK: segue.attention %{{.*}}, %{{.*}}, %{{.*}} mask %{{.*}} : tensor<2x1x1x16xi1> scale
  %1:2 = segue.attention %q, %k, %v mask %mask : tensor<2x1x1x16xi1> scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
  %2:2 = segue.attention %q, %k, %v mask %added : tensor<1x4x16x16xf32> causal scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
  %dq, %dk, %dv = segue.attention_grad %q, %k, %v out %o lse %l grad %g causal scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16xf32>
  // CHECK: segue.attention_grad %{{.*}}, %{{.*}}, %{{.*}} mask %{{.*}} : tensor<2x1x1x16xi1> out %{{.*}} lse %{{.*}} grad
  %3:3 = segue.attention_grad %q, %k, %v mask %mask : tensor<2x1x1x16xi1> out %o lse %l grad %g scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16xf32>
  // CHECK: segue.attention %{{.*}}, %{{.*}}, %{{.*}} dropout 2.500000e-01 by %[[SEED:.*]], %[[STEP:.*]] id 3 causal scale
  %4:2 = segue.attention %q, %k, %v dropout 0.25 by %seed, %step id 3 causal scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
  // CHECK: segue.attention_grad {{.*}} mask %{{.*}} : tensor<2x1x1x16xi1> out %{{.*}} lse %{{.*}} grad %{{.*}} dropout 2.500000e-01 by %[[SEED]], %[[STEP]] id 3 scale
  %5:3 = segue.attention_grad %q, %k, %v mask %mask : tensor<2x1x1x16xi1> out %o lse %l grad %g dropout 0.25 by %seed, %step id 3 scale 0.125 : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32>, tensor<2x4x16xf32>
  return
}

// CHECK-LABEL: func.func @convolution
func.func @convolution(%x: tensor<2x4x9x8xf32>, %w: tensor<6x2x3x3xf32>, %b: tensor<6xf32>, %g: tensor<2x6x5x6xf32>,
                       %h: tensor<1x3x1x1xbf16>, %v: tensor<2x3x1x1xbf16>) {
  %y = segue.conv2d %x, %w bias %b : tensor<6xf32> strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x4x9x8xf32>, tensor<6x2x3x3xf32> -> tensor<2x6x5x6xf32>
  // CHECK: segue.conv2d %{{.*}}, %{{.*}} strides [1, 1]
  %z = segue.conv2d %h, %v strides [1, 1] low [0, 0] high [0, 0] dilations [1, 1] groups 1 : tensor<1x3x1x1xbf16>, tensor<2x3x1x1xbf16> -> tensor<1x2x1x1xbf16>
  %dx = segue.conv2d_input_grad %g, %w strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x6x5x6xf32>, tensor<6x2x3x3xf32> -> tensor<2x4x9x8xf32>
  %dw = segue.conv2d_weight_grad %g, %x strides [2, 1] low [1, 0] high [1, 2] dilations [1, 2] groups 2 : tensor<2x6x5x6xf32>, tensor<2x4x9x8xf32> -> tensor<6x2x3x3xf32>
  return
}

// CHECK-LABEL: func.func @convolution_3d
func.func @convolution_3d(%x: tensor<2x4x5x6x7xf32>, %w: tensor<6x2x2x3x3xf32>, %b: tensor<6xf32>, %g: tensor<2x6x3x4x7xf32>) {
  %y = segue.conv3d %x, %w bias %b : tensor<6xf32> strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x4x5x6x7xf32>, tensor<6x2x2x3x3xf32> -> tensor<2x6x3x4x7xf32>
  %dx = segue.conv3d_input_grad %g, %w strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x6x3x4x7xf32>, tensor<6x2x2x3x3xf32> -> tensor<2x4x5x6x7xf32>
  %dw = segue.conv3d_weight_grad %g, %x strides [2, 1, 1] low [1, 0, 1] high [0, 2, 1] dilations [1, 2, 1] groups 2 : tensor<2x6x3x4x7xf32>, tensor<2x4x5x6x7xf32> -> tensor<6x2x2x3x3xf32>
  return
}

// CHECK-LABEL: func.func @grouped
func.func @grouped(%r: tensor<7x4xf32>, %m: tensor<3x5x4xf32>, %a: tensor<7x4xf32>, %b: tensor<7x5xf32>, %n: tensor<3x4x2xf32>,
                   %e: tensor<3xi32>) {
  %0 = segue.grouped_dot %r, %m transposed by %e : tensor<7x4xf32>, tensor<3x5x4xf32>, tensor<3xi32> -> tensor<7x5xf32>
  // CHECK: segue.grouped_dot %{{.*}}, %{{.*}} by %{{.*}} : tensor<7x4xf32>, tensor<3x4x2xf32>
  %1 = segue.grouped_dot %r, %n by %e : tensor<7x4xf32>, tensor<3x4x2xf32>, tensor<3xi32> -> tensor<7x2xf32>
  %2 = segue.grouped_outer %a, %b by %e : tensor<7x4xf32>, tensor<7x5xf32>, tensor<3xi32> -> tensor<3x4x5xf32>
  return
}

// CHECK-LABEL: func.func @argsort
func.func @argsort(%x: tensor<4x8xf32>, %b: tensor<5xi1>) {
  // CHECK: segue.argsort %{{.*}} descending from 1 : tensor<4x8xf32> -> tensor<4x3xi64>
  %i = segue.argsort %x descending from 1 : tensor<4x8xf32> -> tensor<4x3xi64>
  // CHECK: segue.argsort %{{.*}} : tensor<5xi1> -> tensor<5xi64>
  %j = segue.argsort %b : tensor<5xi1> -> tensor<5xi64>
  return
}

// CHECK-LABEL: func.func @dot_gelu
func.func @dot_gelu(%x: tensor<2x3x4xf32>, %v: tensor<8x4xf32>, %b: tensor<8xf32>, %g: tensor<3x4xf32>, %w: tensor<4x8xf32>) {
  // CHECK: %{{.*}}, %{{.*}} = segue.dot_gelu %{{.*}}, %{{.*}} transposed bias %{{.*}} : tensor<8xf32> : tensor<2x3x4xf32>, tensor<8x4xf32> -> tensor<2x3x8xf32>, tensor<2x3x8xf32>
  %y, %sums = segue.dot_gelu %x, %v transposed bias %b : tensor<8xf32> : tensor<2x3x4xf32>, tensor<8x4xf32> -> tensor<2x3x8xf32>, tensor<2x3x8xf32>
  // CHECK: %{{.*}} = segue.dot_gelu %{{.*}}, %{{.*}} : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x8xf32>{{$}}
  %z = segue.dot_gelu %g, %w : tensor<3x4xf32>, tensor<4x8xf32> -> tensor<3x8xf32>
  return
}

func.func @cumulative(%x: tensor<4x8xf32>, %n: tensor<4x8xi64>, %a: tensor<4x8xf32>) {
  %0 = segue.cumsum %x dim 1 reverse : tensor<4x8xf32>
  %1 = segue.cumsum %n dim 0 : tensor<4x8xi64>
  %2 = segue.cummax %x dim 1 : tensor<4x8xf32>
  %3 = segue.cummax %n dim 0 : tensor<4x8xi64>
  %4 = segue.recurrence %a, %x dim 1 reverse : tensor<4x8xf32>
  %5 = segue.recurrence %a, %x dim 0 : tensor<4x8xf32>
  return
}

// CHECK-LABEL: func.func @norms
func.func @norms(%x: tensor<4x8xf32>, %g: tensor<8xf32>, %b: tensor<8xf32>, %t: tensor<4xi64>) {
  %0, %m0, %r0 = segue.layer_norm %x gamma %g : tensor<8xf32> beta %b : tensor<8xf32> eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>
  // CHECK: segue.layer_norm %{{.*}} eps
  %1, %m1, %r1 = segue.layer_norm %x eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>
  %2, %r2 = segue.rms_norm %x gamma %g : tensor<8xf32> eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>
  %3, %r3 = segue.rms_norm %x eps 1.0e-5 : tensor<4x8xf32> -> tensor<4xf32>
  %4 = segue.softmax %x dim 1 : tensor<4x8xf32>
  %5 = segue.log_softmax %x dim 1 : tensor<4x8xf32>
  %l, %s = segue.cross_entropy %x, %t ignore_index -100 : tensor<4x8xf32>, tensor<4xi64> -> tensor<4xf32>
  return
}

func.func @indexing(%wte: tensor<16x8xf32>, %ids: tensor<2x4xi64>, %u: tensor<2x4x8xf32>) {
  %e = segue.gather %wte[%ids] : tensor<16x8xf32>, tensor<2x4xi64> -> tensor<2x4x8xf32>
  %t = segue.scatter_add %u[%ids] : tensor<2x4x8xf32>, tensor<2x4xi64> -> tensor<16x8xf32>
  %s = segue.scatter_add %u[%ids] into %wte : tensor<2x4x8xf32>, tensor<2x4xi64> -> tensor<16x8xf32>
  return
}

// CHECK-LABEL: func.func @structure
func.func @structure(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = segue.fused(%in = %x : tensor<4xf32>) -> tensor<4xf32> {
    %e = segue.exp %in : tensor<4xf32>
    segue.yield %e : tensor<4xf32>
  }
  // CHECK: segue.fused() -> (tensor<2xf32>, tensor<2xf32>) attributes {segue.block = "h.0"}
  %z:2 = segue.fused() -> (tensor<2xf32>, tensor<2xf32>) attributes {segue.block = "h.0"} {
    %c = segue.constant dense<1.0> : tensor<2xf32>
    segue.yield %c, %c : tensor<2xf32>, tensor<2xf32>
  }
  // CHECK: segue.fused() -> () {
  segue.fused() -> () {
    segue.yield
  }
  return %y : tensor<4xf32>
}

func.func @launch(%x: tensor<4xf32>) {
  %y = segue.launch @k(%x) range 4 grain 1 : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: {inPlace = array<i64: 0, 0>}
  %z = segue.launch @k(%x) range 4 grain 1 {inPlace = array<i64: 0, 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return
}
module @kernels {
  func.func private @k(memref<4xf32>, memref<4xf32>, index, index) -> i64
}

func.func @to_layout(%x: tensor<4x8xf32>) {
  %y = segue.to_layout %x : tensor<4x8xf32> -> tensor<4x8xf32, #segue.layout<strides = [1, 4]>>
  return
}

// The signature of a training function.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: segue.name = "w", segue.rate_group = 1 : i64, segue.role = #segue.role<parameter>
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>, segue.weight_decay = 0.0 : f64, segue.rate_group = 1 : i64},
                   %x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>, segue.alias = 0 : i64},
        tensor<4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>, segue.recompute_flops = 4 : i64, segue.block = "h.0"}) {
  // CHECK: {segue.block = "h.0"}
  %0 = segue.mul %w, %x {segue.block = "h.0"} : tensor<4xf32>
  return %0, %0 : tensor<4xf32>, tensor<4xf32>
}
