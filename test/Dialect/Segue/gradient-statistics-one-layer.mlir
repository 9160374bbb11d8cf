// RUN: segue-opt %s --segue-autodiff --segue-plan-saved --segue-gradient-statistics=per-layer | FileCheck %s

// Where a block is a linear layer with its adapters, their names lead to the
// block itself: the matrices count for its only layer, the norm for none.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: tensor<4xf32> {segue.name = "statistics.h.0.base", segue.of = "h.0.base", segue.role = #segue.role<statistics>}
// CHECK-NOT: statistics.
// CHECK: segue.constant {segue.block = "h.0"} dense<8.000000e+00> : tensor<1xf32>
func.func @forward(%x: tensor<2x2xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %norm: tensor<2xf32> {segue.name = "h.0.norm.weight", segue.role = #segue.role<parameter>},
                   %base: tensor<2x2xf32> {segue.name = "h.0.base.weight", segue.role = #segue.role<frozen>},
                   %a: tensor<2x2xf32> {segue.name = "h.0.a.weight", segue.role = #segue.role<parameter>},
                   %b: tensor<2x2xf32> {segue.name = "h.0.b.weight", segue.role = #segue.role<parameter>})
    -> (tensor<2x2xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %n = segue.broadcast %norm dims [1] {segue.block = "h.0"} : tensor<2xf32> -> tensor<2x2xf32>
  %0 = segue.mul %x, %n {segue.block = "h.0"} : tensor<2x2xf32>
  %1 = segue.mul %0, %base {segue.block = "h.0"} : tensor<2x2xf32>
  %2 = segue.mul %1, %a {segue.block = "h.0"} : tensor<2x2xf32>
  %3 = segue.mul %2, %b {segue.block = "h.0"} : tensor<2x2xf32>
  return %3 : tensor<2x2xf32>
}
