// RUN: segue-opt %s --split-input-file --segue-training-pipeline="optimizer=sgd:momentum=0.9,dampening=0.5,in-backward=true" | FileCheck %s
// RUN: segue-opt %s --split-input-file --segue-training-pipeline="optimizer=sgd:momentum=0.9,in-backward=true" --segue-layout-pipeline \
// RUN:   --segue-kernel-pipeline --segue-program-pipeline | FileCheck %s --check-prefix=PROG
// RUN: segue-opt %s --split-input-file --segue-training-pipeline="optimizer=sgd:in-backward=false" | FileCheck %s --check-prefix=APART
// RUN: not segue-opt %s --split-input-file --segue-training-pipeline="optimizer=sgd:in-backward=perhaps" 2>&1 \
// RUN:   | FileCheck %s --check-prefix=VALUE
// RUN: not segue-opt %s --split-input-file --segue-autodiff --segue-update-in-backward 2>&1 | FileCheck %s --check-prefix=ORDER

// VALUE: in-backward of an optimizer is true or false, not "perhaps"
// ORDER: `segue-update-in-backward` needs a function `@optimizer`, but the module has none
// APART: func.func @optimizer

// All updates come last, marked, and no gradient of a parameter is left over; that of
// the input is. Squares of gradients come in the order of @forward's parameters.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: %[[W1:arg[0-9]+]]: tensor<6x16xf32> {segue.name = "w1", segue.role = #segue.role<parameter>}
// CHECK-SAME: %[[W2:arg[0-9]+]]: tensor<16x6xf32> {segue.name = "w2", segue.role = #segue.role<parameter>}
// CHECK-SAME: %[[U1:arg[0-9]+]]: tensor<6x16xf32> {segue.name = "u.w1", segue.of = "w1", segue.role = #segue.role<state>}
// CHECK-SAME: {segue.name = "lr", segue.role = #segue.role<hyper>}
// CHECK-SAME: -> (tensor<8x6xf32> {segue.name = "grad.x", segue.of = "x", segue.role = #segue.role<gradient>},
// CHECK-SAME: tensor<6x16xf32> {segue.alias = {{[0-9]+}} : i64, segue.name = "w1", segue.role = #segue.role<parameter>}
// CHECK-SAME: tensor<2xf32> {segue.name = "grad_norm_squares", segue.role = #segue.role<output>})
// CHECK: %[[G2:.*]] = segue.dot_general %{{.*}} {segue.block = "b1"} : {{.*}} -> tensor<16x6xf32>
// CHECK: %[[G1:.*]] = segue.dot_general %{{.*}} {segue.block = "b0"} : {{.*}} -> tensor<6x16xf32>
// CHECK: segue.mul %[[G1]], %[[G1]] {segue.block = "b0", segue.update = "w1"}
// CHECK: segue.mul %[[G1]], {{.*}} {segue.block = "b0", segue.update = "w1"}
// CHECK: segue.cast {{.*}} {segue.block = "b0", segue.update = "w1"} : tensor<i64> -> tensor<f32>
// CHECK: segue.select {{.*}} {segue.block = "b0", segue.update = "w1"} : tensor<i1>, tensor<f32>
// CHECK: segue.mul %[[U1]], {{.*}} {segue.block = "b0", segue.update = "w1"}
// CHECK: segue.sub %[[W1]], {{.*}} {segue.block = "b0", segue.update = "w1"}
// CHECK: segue.mul %[[G2]], {{.*}} {segue.block = "b1", segue.update = "w2"}
// CHECK: segue.sub %[[W2]], {{.*}} {segue.block = "b1", segue.update = "w2"}
// CHECK: segue.concat
// CHECK-NOT: @optimizer
// CHECK-NOT: @grad_norm

// In programs they are kernels of their own that write in place, in their block, and so before what follows.
// PROG-LABEL: prog.program @backward
// PROG: prog.block "b1" {
// PROG: prog.matmul
// PROG: prog.matmul
// PROG: prog.launch @{{.*}}
// PROG: prog.block "b0" {
// PROG: prog.matmul
// PROG: prog.matmul
// PROG: prog.launch
// PROG-NOT: prog.to_layout
// PROG-LABEL: prog.program @inference
func.func @forward(%x: tensor<8x6xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w1: tensor<6x16xf32> {segue.name = "w1", segue.role = #segue.role<parameter>},
                   %w2: tensor<16x6xf32> {segue.name = "w2", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w1 batch [] x [] contract [1] x [0] {segue.block = "b0"} : tensor<8x6xf32>, tensor<6x16xf32> -> tensor<8x16xf32>
  %1 = segue.tanh %0 {segue.block = "b0"} : tensor<8x16xf32>
  %2 = segue.dot_general %1, %w2 batch [] x [] contract [1] x [0] {segue.block = "b1"} : tensor<8x16xf32>, tensor<16x6xf32> -> tensor<8x6xf32>
  %3 = segue.mul %2, %2 {segue.block = "b1"} : tensor<8x6xf32>
  %4 = segue.reduce sum %3 dims [0, 1] {segue.block = "b1"} : tensor<8x6xf32> -> tensor<f32>
  return %4 : tensor<f32>
}

// -----

// A matrix that two blocks use is updated once, behind both, though a view of it is what is read.
// PROG-LABEL: prog.program @backward
// PROG: prog.block "b1" {
// PROG-COUNT-2: prog.matmul
// PROG: prog.block "b0" {
// PROG-COUNT-2: prog.matmul
// PROG: prog.launch {{.*}} %[[OUT:out[0-9_]*]]
// PROG-NOT: prog.to_layout
// PROG-LABEL: prog.program @inference
func.func @forward(%x: tensor<8x6xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<6x6xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] {segue.block = "b0"} : tensor<8x6xf32>, tensor<6x6xf32> -> tensor<8x6xf32>
  %1 = segue.tanh %0 {segue.block = "b0"} : tensor<8x6xf32>
  %t = segue.transpose %w [1, 0] {segue.block = "b1"} : tensor<6x6xf32> -> tensor<6x6xf32>
  %2 = segue.dot_general %1, %t batch [] x [] contract [1] x [0] {segue.block = "b1"} : tensor<8x6xf32>, tensor<6x6xf32> -> tensor<8x6xf32>
  %3 = segue.mul %2, %2 {segue.block = "b1"} : tensor<8x6xf32>
  %4 = segue.reduce sum %3 dims [0, 1] {segue.block = "b1"} : tensor<8x6xf32> -> tensor<f32>
  return %4 : tensor<f32>
}
