// RUN: segue-opt %s --segue-autodiff --segue-plan-saved --segue-gradient-statistics | FileCheck %s
// RUN: segue-compile %s --gradient-statistics --emit=prog --target=x86-64-v3 | FileCheck %s --check-prefix=PROG

// One result per block with parameters, in forward order; %w of no block and
// the frozen %f of "still" have none.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: tensor<4xf32> {segue.name = "statistics.low", segue.of = "low", segue.role = #segue.role<statistics>}
// CHECK-SAME: tensor<4xf32> {segue.name = "statistics.high", segue.of = "high", segue.role = #segue.role<statistics>}
// CHECK-NOT: statistics.
// CHECK: segue.reduce sum {{.*}} {segue.block = "low"}
// CHECK: segue.reduce max {{.*}} {segue.block = "low"}
// CHECK: segue.constant {segue.block = "low"} dense<1.200000e+01> : tensor<1xf32>
// CHECK: segue.concat {{.*}} dim 0 {segue.block = "low"} : tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32> -> tensor<4xf32>
// CHECK: segue.constant {segue.block = "high"} dense<4.000000e+00> : tensor<1xf32>

// The blocks stay whole.
// PROG-LABEL: prog.program @backward
// PROG-SAME: #prog.value<"statistics.low" statistics tensor<4xf32> of "low"
// PROG: prog.block "high"
// PROG: prog.block "low"
// PROG-NOT: prog.block "high"
// PROG-LABEL: prog.program @inference
func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %a: tensor<4xf32> {segue.name = "a", segue.role = #segue.role<parameter>},
                   %b: tensor<2x4xf32> {segue.name = "b", segue.role = #segue.role<parameter>},
                   %c: tensor<4xbf16> {segue.name = "c", segue.role = #segue.role<parameter>},
                   %w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %f: tensor<4xf32> {segue.name = "f", segue.role = #segue.role<frozen>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.mul %x, %a {segue.block = "low"} : tensor<4xf32>
  %1 = segue.reduce sum %b dims [0] {segue.block = "low"} : tensor<2x4xf32> -> tensor<4xf32>
  %2 = segue.mul %0, %1 {segue.block = "low"} : tensor<4xf32>
  %3 = segue.add %2, %f {segue.block = "still"} : tensor<4xf32>
  %4 = segue.cast %c {segue.block = "high"} : tensor<4xbf16> -> tensor<4xf32>
  %5 = segue.mul %3, %4 {segue.block = "high"} : tensor<4xf32>
  %6 = segue.mul %5, %w : tensor<4xf32>
  return %6 : tensor<4xf32>
}
