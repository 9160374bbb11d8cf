// RUN: segue-opt %s --segue-autodiff --segue-plan-saved --segue-gradient-statistics=per-layer | FileCheck %s
// RUN: segue-compile %s --gradient-statistics=layer --emit=prog --target=x86-64-v3 | FileCheck %s --check-prefix=PROG

// Adapters count for the frozen layer beside them, "h.0.fc.base" and
// "h.0.proj"; a trained layer counts for itself with its bias; the norm of the
// block, near to three layers at once, for none.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: tensor<4xf32> {segue.name = "statistics.h.0.fc.base", segue.of = "h.0.fc.base", segue.role = #segue.role<statistics>}
// CHECK-SAME: tensor<4xf32> {segue.name = "statistics.h.0.proj", segue.of = "h.0.proj", segue.role = #segue.role<statistics>}
// CHECK-SAME: tensor<4xf32> {segue.name = "statistics.h.0.out", segue.of = "h.0.out", segue.role = #segue.role<statistics>}
// CHECK-NOT: statistics.
// Both adapters of fc: 4 + 4 elements. One of proj: 4. Out: 4 + 2.
// CHECK: segue.constant {segue.block = "h.0"} dense<8.000000e+00> : tensor<1xf32>
// CHECK: segue.constant {segue.block = "h.0"} dense<4.000000e+00> : tensor<1xf32>
// CHECK: segue.constant {segue.block = "h.0"} dense<6.000000e+00> : tensor<1xf32>
// PROG-LABEL: prog.program @backward
// PROG-SAME: #prog.value<"statistics.h.0.proj" statistics tensor<4xf32> of "h.0.proj"
func.func @forward(%x: tensor<2x2xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %norm: tensor<2xf32> {segue.name = "h.0.norm.weight", segue.role = #segue.role<parameter>},
                   %fc: tensor<2x2xf32> {segue.name = "h.0.fc.base.weight", segue.role = #segue.role<frozen>},
                   %fa: tensor<2x2xf32> {segue.name = "h.0.fc.a.weight", segue.role = #segue.role<parameter>},
                   %fb: tensor<2x2xf32> {segue.name = "h.0.fc.b.weight", segue.role = #segue.role<parameter>},
                   %proj: tensor<2x2xf32> {segue.name = "h.0.proj.weight", segue.role = #segue.role<frozen>},
                   %pa: tensor<2x2xf32> {segue.name = "h.0.proj.lora", segue.role = #segue.role<parameter>},
                   %out: tensor<2x2xf32> {segue.name = "h.0.out.weight", segue.role = #segue.role<parameter>},
                   %bias: tensor<2xf32> {segue.name = "h.0.out.bias", segue.role = #segue.role<parameter>})
    -> (tensor<2x2xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %n = segue.broadcast %norm dims [1] {segue.block = "h.0"} : tensor<2xf32> -> tensor<2x2xf32>
  %0 = segue.mul %x, %n {segue.block = "h.0"} : tensor<2x2xf32>
  %1 = segue.mul %0, %fc {segue.block = "h.0"} : tensor<2x2xf32>
  %2 = segue.mul %1, %fa {segue.block = "h.0"} : tensor<2x2xf32>
  %3 = segue.mul %2, %fb {segue.block = "h.0"} : tensor<2x2xf32>
  %4 = segue.mul %3, %proj {segue.block = "h.0"} : tensor<2x2xf32>
  %5 = segue.mul %4, %pa {segue.block = "h.0"} : tensor<2x2xf32>
  %6 = segue.mul %5, %out {segue.block = "h.0"} : tensor<2x2xf32>
  %b = segue.broadcast %bias dims [1] {segue.block = "h.0"} : tensor<2xf32> -> tensor<2x2xf32>
  %7 = segue.add %6, %b {segue.block = "h.0"} : tensor<2x2xf32>
  return %7 : tensor<2x2xf32>
}
