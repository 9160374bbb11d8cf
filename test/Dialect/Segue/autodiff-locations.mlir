// RUN: segue-opt %s --segue-autodiff --mlir-print-debuginfo --mlir-print-local-scope | FileCheck %s

// Every op of backward has the source line and the block of the op whose
// derivative it is: errors, traces and the memory services speak of those.
// CHECK-LABEL: func.func @backward
// CHECK: segue.cos {{.*}} {segue.block = "h.1"} {{.*}} loc("model.py":7:3)
// CHECK: segue.mul {{.*}} {segue.block = "h.1"} {{.*}} loc("model.py":7:3)
// CHECK: segue.mul {{.*}} {segue.block = "h.0"} {{.*}} loc("model.py":5:3)
// CHECK-LABEL: func.func @inference
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.exp %w {segue.block = "h.0"} : tensor<4xf32> loc("model.py":5:3)
  %1 = segue.sin %0 {segue.block = "h.1"} : tensor<4xf32> loc("model.py":7:3)
  return %1 : tensor<4xf32>
}
