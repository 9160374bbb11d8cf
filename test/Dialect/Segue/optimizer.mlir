// RUN: segue-opt %s --segue-autodiff --segue-optimizer=optimizer=adamw:decay=0.25,beta2=0.75 | FileCheck %s --check-prefixes=CHECK,ADAMW
// RUN: segue-opt %s --segue-autodiff --segue-optimizer=optimizer=sgd:momentum=0.5,nesterov | FileCheck %s --check-prefixes=CHECK,SGD
// RUN: segue-opt %s --segue-autodiff --segue-optimizer=optimizer=sgd:dampening=0.5 | FileCheck %s --check-prefixes=CHECK,PLAIN
// RUN: sed 's/segue.name = "b",/segue.name = "b", segue.optimizer = "lion:beta1=0.5",/' %s | segue-opt --segue-autodiff --segue-optimizer=optimizer=muon:ns-steps=1,own-steps | FileCheck %s --check-prefix=MUON

// A vector has an optimizer of its own beside muon, and a group that counts its own steps. The products are taken over
// the longer dimension, of bf16 into f32.
// MUON-LABEL: func.func @optimizer
// MUON-SAME: segue.name = "u.w"
// MUON-SAME: segue.name = "m.b", segue.of = "b"
// MUON-SAME: segue.name = "lr",
// MUON-SAME: segue.name = "lr.2",
// MUON-SAME: tensor<i64> {segue.name = "step",
// MUON-SAME: tensor<i64> {segue.name = "step.2",
// MUON-SAME: segue.name = "clip",
// MUON: %[[GRAM:.*]] = segue.dot_general %[[X:.*]], %[[X]] batch [] x [] contract [1] x [1] {segue.block = "head"} : tensor<2x3xbf16>, tensor<2x3xbf16> -> tensor<2x2xf32>
// MUON: segue.dot_general {{.*}} contract [1] x [0] {{.*}} : tensor<2x2xbf16>, tensor<2x2xbf16> -> tensor<2x2xf32>
// MUON: segue.dot_general %{{.*}}, %[[X]] batch [] x [] contract [1] x [0] {{.*}} : tensor<2x2xbf16>, tensor<2x3xbf16> -> tensor<2x3xf32>
// MUON-NOT: segue.dot_general
// MUON-LABEL: func.func @grad_norm

// Every trained parameter brings its value, its gradient and its states; the
// results replace these arguments. State is f32, also for a bf16 parameter.
// Frozen values and inputs are not there. A parameter may have its own decay
// and the learning rate of a group, and its step is written in ops of the block of its first use.
// CHECK-LABEL: func.func @optimizer
// ADAMW-SAME: (%[[W:[a-z0-9]+]]: tensor<2x3xbf16> {segue.name = "w", segue.role = #segue.role<parameter>},
// ADAMW-SAME: %[[GW:[a-z0-9]+]]: tensor<2x3xbf16> {segue.name = "grad.w", segue.of = "w", segue.role = #segue.role<gradient>},
// ADAMW-SAME: %[[M:[a-z0-9]+]]: tensor<2x3xf32> {segue.name = "m.w", segue.of = "w", segue.role = #segue.role<state>},
// ADAMW-SAME: %[[V:[a-z0-9]+]]: tensor<2x3xf32> {segue.name = "v.w", segue.of = "w", segue.role = #segue.role<state>},
// ADAMW-SAME: tensor<3xbf16> {segue.name = "b", segue.role = #segue.role<parameter>},
// ADAMW-SAME: %[[LR:[a-z0-9]+]]: tensor<f32> {segue.name = "lr", segue.role = #segue.role<hyper>},
// ADAMW-SAME: %[[LR2:[a-z0-9]+]]: tensor<f32> {segue.name = "lr.2", segue.role = #segue.role<hyper>},
// ADAMW-SAME: %[[STEP:[a-z0-9]+]]: tensor<i64> {segue.name = "step", segue.role = #segue.role<hyper>},
// ADAMW-SAME: %[[CLIP:[a-z0-9]+]]: tensor<f32> {segue.name = "clip", segue.role = #segue.role<hyper>}) ->
// ADAMW-SAME: (tensor<2x3xbf16> {segue.alias = 0 : i64, segue.name = "w", segue.role = #segue.role<parameter>},
// ADAMW-SAME: tensor<2x3xf32> {segue.alias = 2 : i64, segue.name = "m.w", segue.of = "w", segue.role = #segue.role<state>},
// ADAMW-SAME: tensor<2x3xf32> {segue.alias = 3 : i64, segue.name = "v.w", segue.of = "w", segue.role = #segue.role<state>},
// ADAMW-SAME: tensor<3xbf16> {segue.alias = 4 : i64, segue.name = "b", segue.role = #segue.role<parameter>},
// ADAMW: %[[P:.*]] = segue.cast %[[W]] {segue.block = "head"}
// ADAMW: %[[G:.*]] = segue.cast %[[GW]]
// ADAMW: %[[FACTOR:.*]] = segue.broadcast %[[CLIP]] dims []
// ADAMW: segue.mul %[[G]], %[[FACTOR]] {segue.block = "head"}
// ADAMW: segue.cast %[[STEP]] {{.*}} -> tensor<f32>
// ADAMW: segue.div %[[LR]], %
// ADAMW: segue.mul %[[M]], %
// ADAMW: segue.constant {segue.block = "head"} dense<7.500000e-01> : tensor<2x3xf32>
// ADAMW-NEXT: segue.mul %[[V]], %
// ADAMW: segue.mul %[[LR]], %
// ADAMW: segue.mul %[[P]], %
// ADAMW: segue.div {{.*}} {segue.block = "head"} : tensor<2x3xf32>
// ADAMW: segue.cast {{.*}} {segue.block = "head"} : tensor<2x3xf32> -> tensor<2x3xbf16>
// ADAMW: segue.div %[[LR2]], %
// ADAMW: segue.div {{.*}} : tensor<3xf32>
// ADAMW-NOT: segue.div
// SGD-SAME: %[[U:[a-z0-9]+]]: tensor<2x3xf32> {segue.name = "u.w", segue.of = "w", segue.role = #segue.role<state>}
// SGD: segue.constant {segue.block = "head"} dense<5.000000e-01> : tensor<2x3xf32>
// SGD-NEXT: segue.mul %[[U]], %
// SGD-NEXT: segue.add
// Without momentum nothing is kept, and a dampening has nothing to dampen.
// PLAIN-NOT: role<state>
// PLAIN: segue.sub {{.*}} {segue.block = "head"} : tensor<2x3xf32>
// PLAIN-NOT: segue.select

// Gradients of parameters alone, in f32, rows first, in the blocks of the
// parameters: their squares together, and each by itself.
// CHECK-LABEL: func.func @grad_norm
// CHECK-SAME: (%[[GW:[a-z0-9]+]]: tensor<2x3xbf16> {segue.name = "grad.w", segue.of = "w", segue.role = #segue.role<gradient>},
// CHECK-SAME: %[[GB:[a-z0-9]+]]: tensor<3xbf16> {segue.name = "grad.b", {{[^}]*}}}) -> (tensor<2xf32> {segue.name = "grad_norm_squares", segue.role = #segue.role<output>},
// CHECK-SAME: tensor<1xf32> {segue.name = "grad_norm_squares.w", segue.role = #segue.role<output>},
// CHECK-SAME: tensor<1xf32> {segue.name = "grad_norm_squares.b", segue.role = #segue.role<output>}) {
// CHECK: %[[WIDE:.*]] = segue.cast %[[GW]] {segue.block = "head"} : tensor<2x3xbf16> -> tensor<2x3xf32>
// CHECK: %[[SQUARE:.*]] = segue.mul %[[WIDE]], %[[WIDE]]
// CHECK: %[[ROWS:.*]] = segue.reduce sum %[[SQUARE]] dims [1]
// CHECK: %[[A:.*]] = segue.reduce sum %[[ROWS]] dims [0] {segue.block = "head"} : tensor<2xf32> -> tensor<f32>
// CHECK: %[[W:.*]] = segue.reshape %[[A]] {segue.block = "head"} : tensor<f32> -> tensor<1xf32>
// CHECK: %[[SUM:.*]] = segue.reduce sum %{{.*}} dims [0] : tensor<3xf32> -> tensor<f32>
// CHECK: %[[B:.*]] = segue.reshape %[[SUM]]
// CHECK: %[[ALL:.*]] = segue.concat %[[W]], %[[B]] dim 0 : tensor<1xf32>, tensor<1xf32> -> tensor<2xf32>
// CHECK: return %[[ALL]], %[[W]], %[[B]]
func.func @forward(%x: tensor<4x2xbf16> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<2x3xbf16> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %b: tensor<3xbf16> {segue.name = "b", segue.role = #segue.role<parameter>, segue.rate_group = 2 : i64, segue.weight_decay = 0.0 : f64},
                   %f: tensor<4x3xbf16> {segue.name = "f", segue.role = #segue.role<frozen>})
    -> (tensor<4x3xbf16> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] {segue.block = "head"} : tensor<4x2xbf16>, tensor<2x3xbf16> -> tensor<4x3xbf16>
  %1 = segue.broadcast %b dims [1] : tensor<3xbf16> -> tensor<4x3xbf16>
  %2 = segue.add %0, %1 : tensor<4x3xbf16>
  %3 = segue.add %2, %f : tensor<4x3xbf16>
  return %3 : tensor<4x3xbf16>
}
