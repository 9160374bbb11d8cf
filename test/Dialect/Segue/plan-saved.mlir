// RUN: segue-opt %s --split-input-file --segue-autodiff --segue-plan-saved | FileCheck %s --check-prefixes=CHECK,CHEAP
// RUN: segue-opt %s --split-input-file --segue-autodiff --segue-plan-saved=recompute=none | FileCheck %s --check-prefixes=CHECK,NONE
// RUN: segue-opt %s --split-input-file --segue-autodiff --segue-plan-saved=recompute=all | FileCheck %s --check-prefixes=CHECK,ALL
// RUN: segue-opt %s --split-input-file --segue-autodiff --segue-plan-saved=max-recompute-flops=1000 | FileCheck %s --check-prefixes=CHECK,LIMIT

// An MLP. Saved are the results of matmuls, never what follows from them
// elementwise: the gelu is done again in backward, in front of the matmul that
// uses it. Without recomputation both are saved. `all` keeps nothing: even the
// matmul is done again. A limit below the flops of the gelu keeps its result.
// The bias is added again or not: the sum is saved, so that the matmul's own
// result need never be there.
// CHECK-LABEL: func.func @forward
// CHEAP-SAME: -> (tensor<8x4xf32> {segue.name = "y", {{[^}]*}}}, tensor<8x64xf32> {segue.block = "h.0", segue.name = "saved.0", segue.recompute_bytes = 10496 : i64, segue.recompute_flops = 8704 : i64, segue.role = #segue.role<saved>}) {
// NONE-SAME: "saved.0"
// NONE-SAME: "saved.1"
// ALL-NOT: "saved.
// LIMIT-SAME: "saved.0"
// LIMIT-SAME: "saved.1"
// CHECK: %[[H:.*]] = segue.add
// CHECK: %[[A:.*]] = segue.gelu
// CHEAP: return %{{.*}}, %[[H]] :
// NONE: return %{{.*}}, %[[H]], %[[A]] :
// LIMIT: return %{{.*}}, %[[H]], %[[A]] :
// CHECK-LABEL: func.func @backward
// CHEAP-SAME: (%[[SAVED:[a-z0-9]+]]: tensor<8x64xf32> {segue.name = "saved.0"
// CHEAP: %[[AGAIN:.*]] = segue.gelu erf %[[SAVED]]
// CHEAP-NEXT: segue.dot_general %{{.*}}, %[[AGAIN]]
// NONE-NOT: segue.gelu
// LIMIT-NOT: segue.gelu
// ALL: segue.dot_general %{{.*}}, %{{.*}} batch [] x [] contract [1] x [1]
// CHECK-LABEL: func.func @inference
func.func @forward(%x: tensor<8x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w1: tensor<64x8xf32> {segue.name = "w1", segue.role = #segue.role<parameter>},
                   %b1: tensor<64xf32> {segue.name = "b1", segue.role = #segue.role<parameter>},
                   %w2: tensor<4x64xf32> {segue.name = "w2", segue.role = #segue.role<parameter>})
    -> (tensor<8x4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w1 batch [] x [] contract [1] x [1] {segue.block = "h.0"} : tensor<8x8xf32>, tensor<64x8xf32> -> tensor<8x64xf32>
  %b = segue.broadcast %b1 dims [1] {segue.block = "h.0"} : tensor<64xf32> -> tensor<8x64xf32>
  %h = segue.add %0, %b {segue.block = "h.0"} : tensor<8x64xf32>
  %a = segue.gelu erf %h {segue.block = "h.0"} : tensor<8x64xf32>
  %y = segue.dot_general %a, %w2 batch [] x [] contract [1] x [1] : tensor<8x64xf32>, tensor<4x64xf32> -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}

// -----

// A dropout mask is drawn again from its seed: the op is marked by its id, so it
// gives the same mask, and no mask is saved.
// CHECK-LABEL: func.func @forward
// CHEAP-NOT: segue.role<saved>
// NONE: segue.role<saved>
// CHECK-LABEL: func.func @backward
// CHEAP-SAME: segue.name = "seed"
// CHEAP-SAME: segue.name = "step"
// CHEAP: segue.random %{{.*}}, %{{.*}} id 7 : tensor<4x8xf32>
// CHEAP: segue.compare ge
// NONE-NOT: segue.random
// CHECK-LABEL: func.func @inference
func.func @forward(%w: tensor<4x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %seed: tensor<i64> {segue.name = "seed", segue.role = #segue.role<hyper>},
                   %step: tensor<i64> {segue.name = "step", segue.role = #segue.role<hyper>})
    -> (tensor<4x8xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %u = segue.random %seed, %step id 7 : tensor<4x8xf32>
  %p = segue.constant dense<0.1> : tensor<4x8xf32>
  %zero = segue.constant dense<0.0> : tensor<4x8xf32>
  %keep = segue.compare ge %u, %p : tensor<4x8xf32> -> tensor<4x8xi1>
  %y = segue.select %keep, %w, %zero : tensor<4x8xi1>, tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// q, k and v are cut out of one projection: that is saved, once, and not three
// slices of it, nor their transposes. Attention is never done twice by default:
// its result and the logarithms of its sums are saved.
// CHECK-LABEL: func.func @forward
// CHEAP: %[[QKV:.*]] = segue.dot_general
// CHEAP: %[[O:.*]], %[[LSE:.*]] = segue.attention
// CHEAP: return %{{.*}}, %[[QKV]], %[[O]], %[[LSE]] :
// CHECK-LABEL: func.func @backward
// CHEAP-NOT: segue.attention %
// CHEAP-COUNT-3: segue.slice
// CHEAP: segue.attention_grad
// CHEAP-NOT: segue.attention %
// ALL: segue.attention %
// CHECK-LABEL: func.func @inference
func.func @forward(%x: tensor<1x4x8xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %w: tensor<24x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<1x2x4x4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %qkv = segue.dot_general %x, %w batch [] x [] contract [2] x [1] : tensor<1x4x8xf32>, tensor<24x8xf32> -> tensor<1x4x24xf32>
  %q0 = segue.slice %qkv [0, 0, 0] to [1, 4, 8] by [1, 1, 1] : tensor<1x4x24xf32> -> tensor<1x4x8xf32>
  %k0 = segue.slice %qkv [0, 0, 8] to [1, 4, 16] by [1, 1, 1] : tensor<1x4x24xf32> -> tensor<1x4x8xf32>
  %v0 = segue.slice %qkv [0, 0, 16] to [1, 4, 24] by [1, 1, 1] : tensor<1x4x24xf32> -> tensor<1x4x8xf32>
  %q1 = segue.reshape %q0 : tensor<1x4x8xf32> -> tensor<1x4x2x4xf32>
  %k1 = segue.reshape %k0 : tensor<1x4x8xf32> -> tensor<1x4x2x4xf32>
  %v1 = segue.reshape %v0 : tensor<1x4x8xf32> -> tensor<1x4x2x4xf32>
  %q = segue.transpose %q1 [0, 2, 1, 3] : tensor<1x4x2x4xf32> -> tensor<1x2x4x4xf32>
  %k = segue.transpose %k1 [0, 2, 1, 3] : tensor<1x4x2x4xf32> -> tensor<1x2x4x4xf32>
  %v = segue.transpose %v1 [0, 2, 1, 3] : tensor<1x4x2x4xf32> -> tensor<1x2x4x4xf32>
  %o, %lse = segue.attention %q, %k, %v causal scale 0.5 : tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32> -> tensor<1x2x4xf32>
  return %o : tensor<1x2x4x4xf32>
}

// -----

// bf16 in front of f32: the narrow one is saved and widened again.
// CHECK-LABEL: func.func @forward
// CHEAP-SAME: tensor<8x64xbf16> {segue.name = "saved.0"
// CHEAP-NOT: "saved.1"
// CHECK-LABEL: func.func @backward
// CHEAP: segue.cast %{{.*}} : tensor<8x64xbf16> -> tensor<8x64xf32>
// CHECK-LABEL: func.func @inference
func.func @forward(%x: tensor<8x8xbf16> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %w: tensor<64x8xbf16> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<8x64xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [1] : tensor<8x8xbf16>, tensor<64x8xbf16> -> tensor<8x64xbf16>
  %1 = segue.cast %0 : tensor<8x64xbf16> -> tensor<8x64xf32>
  %2 = segue.sin %1 : tensor<8x64xf32>
  return %2 : tensor<8x64xf32>
}
