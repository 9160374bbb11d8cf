// RUN: segue-opt %s --split-input-file --segue-training-pipeline="optimizer=adamw" --segue-layout-pipeline --segue-kernel-pipeline \
// RUN:   --segue-program-pipeline="in-forward=true" | FileCheck %s
// RUN: segue-opt %s --split-input-file --segue-training-pipeline="optimizer=adafactor" --segue-layout-pipeline --segue-kernel-pipeline \
// RUN:   --segue-program-pipeline="in-forward=true" | FileCheck %s --check-prefix=FACTOR
// RUN: segue-opt %s --split-input-file --segue-training-pipeline="optimizer=adamw" --segue-layout-pipeline --segue-kernel-pipeline \
// RUN:   --segue-program-pipeline | FileCheck %s --implicit-check-not=@forward_updating --check-prefix=WITHOUT
// RUN: not segue-opt %s --split-input-file --segue-training-pipeline="optimizer=none" --segue-layout-pipeline --segue-kernel-pipeline \
// RUN:   --segue-program-pipeline="in-forward=true" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not segue-opt %s --split-input-file --segue-training-pipeline="optimizer=adamw:in-forward=true,in-backward=true" 2>&1 | FileCheck %s --check-prefix=BOTH

// WITHOUT: prog.program @optimizer
// NONE: `prog-update-in-forward` needs a program `@optimizer`, but the module has none
// BOTH: in-backward and in-forward: a parameter is updated in one place, give one of them

// The update of each parameter is the first that its block does; what forward reads then is what was written in place. The
// scalars of the update have names of their own.
// CHECK-LABEL: prog.program @forward_updating
// CHECK-SAME: inputs [#prog.value<"x" input {{.*}}#prog.value<"w1" parameter tensor<6x16xf32>>, {{.*}}#prog.value<"grad.w1" gradient {{.*}}#prog.value<"update.lr" hyper
// CHECK-SAME: outputs [#prog.value<"loss" output {{.*}}"saved.0" saved {{.*}}#prog.value<"w1" parameter
// CHECK-SAME: aliases [#prog.alias<output 3 = input 1 required>
// CHECK-SAME: save_points
// CHECK-NEXT: ^bb0(%in: memref<8x6xf32>, %[[W1:in_[0-9]+]]: memref<6x16xf32>, %[[W2:in_[0-9]+]]: memref<16x6xf32>, %[[G1:in_[0-9]+]]: memref<6x16xf32>
// CHECK: prog.phase forward {
// CHECK-NEXT: prog.block "b0" {
// CHECK-NEXT: prog.launch @{{[a-z0-9_]+}}(%[[G1]], {{.*}}%[[W1]],
// CHECK: prog.view %[[W1]]
// CHECK: prog.matmul
// CHECK: prog.block "b1" {
// CHECK-NEXT: prog.launch {{.*}}%[[W2]],
// CHECK: prog.view %[[W2]]
// CHECK: prog.matmul
// CHECK: prog.save

// Several commands with temporaries between them stay together.
// FACTOR-LABEL: prog.program @forward_updating
// FACTOR: prog.alloc
// FACTOR: prog.block "b0" {
// FACTOR-COUNT-2: prog.launch
// FACTOR: prog.matmul
// FACTOR: prog.block "b1" {
// FACTOR-COUNT-2: prog.launch
// FACTOR: prog.matmul
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

// A matrix that two blocks read is updated once, before the first of them; what no block reads first has a block of its own.
// CHECK-LABEL: prog.program @forward_updating
// CHECK: prog.block "b0" {
// CHECK-NEXT: prog.launch {{.*}}%[[W:in_[0-9]+]],
// CHECK: prog.view %[[W]]
// CHECK: prog.block "b1" {
// CHECK-NOT: prog.launch @k{{[0-9]+}}_sqrt
// CHECK: prog.view %[[W]]
func.func @forward(%x: tensor<8x6xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<6x6xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] {segue.block = "b0"} : tensor<8x6xf32>, tensor<6x6xf32> -> tensor<8x6xf32>
  %1 = segue.tanh %0 {segue.block = "b0"} : tensor<8x6xf32>
  %2 = segue.dot_general %1, %w batch [] x [] contract [1] x [0] {segue.block = "b1"} : tensor<8x6xf32>, tensor<6x6xf32> -> tensor<8x6xf32>
  %3 = segue.mul %2, %2 {segue.block = "b1"} : tensor<8x6xf32>
  %4 = segue.reduce sum %3 dims [0, 1] {segue.block = "b1"} : tensor<8x6xf32> -> tensor<f32>
  return %4 : tensor<f32>
}
