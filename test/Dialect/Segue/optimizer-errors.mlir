// RUN: segue-opt %s --split-input-file --segue-optimizer --verify-diagnostics
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=adamw:beta1=1.0 2>&1 | FileCheck %s --check-prefix=BETA
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=adam:decay=-1.0 2>&1 | FileCheck %s --check-prefix=DECAY
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=sgd:nesterov 2>&1 | FileCheck %s --check-prefix=NESTEROV
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=radam:decoupled-weight-decay=2 2>&1 | FileCheck %s --check-prefix=FLAG
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=lion:eps=1 2>&1 | FileCheck %s --check-prefix=CONSTANT
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=muon:ns-steps=2.5 2>&1 | FileCheck %s --check-prefix=STEPS
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=muon 2>&1 | FileCheck %s --check-prefix=MATRIX
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=adamw:state-bits=4 2>&1 | FileCheck %s --check-prefix=BITS
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=sgd:state-bits=8 2>&1 | FileCheck %s --check-prefix=CODES
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=adamx 2>&1 | FileCheck %s --check-prefix=KIND
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=adamw:decay=0.1,decay=0.2 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not segue-opt %s --split-input-file --segue-training-pipeline=optimizer=adamw:in-backward=1,in-backward=0 2>&1 | FileCheck %s --check-prefix=PLACE
// RUN: not segue-opt %s --segue-optimizer="optimizer=adamw optimizer=sgd" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: not segue-opt %s --pass-pipeline='builtin.module(func.func(canonicalize{max-iterations=1}),segue-optimizer{optimizer=adamw:eps=1 optimizer=sgd})' 2>&1 | FileCheck %s --check-prefix=OPTION

// BETA: `segue-optimizer` was given beta1 = 1.0; it must be in [0, 1)
// DECAY: `segue-optimizer` was given decay = -1.0; it must be 0 or more
// NESTEROV: `segue-optimizer` was given `nesterov`, which needs a momentum above 0 and dampening 0
// FLAG: `segue-optimizer` was given decoupled-weight-decay = 2; it must be true or false
// CONSTANT: lion has no "eps"; it has beta1, beta2, decay, clip-value, ema, own-steps, state-bits
// KIND: unknown optimizer "adamx"; known are adamw, adam, {{.*}} and none
// TWICE: `segue-optimizer` was given decay twice
// PLACE: segue-training-pipeline: an optimizer was given in-backward twice
// OPTION: segue-opt: --segue-optimizer: the option "optimizer" is given twice
// BITS: `segue-optimizer` was given state-bits = 4; it must be 32 or 8
// CODES: `segue-optimizer` was given state-bits = 8; sgd has no state with a code of 8 bits, as it is set
// STEPS: `segue-optimizer` was given `ns-steps`, which must be a whole number below 100
// MATRIX: parameter "b", {{.*}}tensor<5xf32>{{.*}}: muon is for matrices, of two dimensions; `segue.optimizer` gives it another (in Python a group: Group("b", optimizer=AdamW()))
func.func @forward() { return }
func.func @backward() { return }
// expected-error @+1 {{`segue-optimizer` makes `@grad_norm`, but the module has one}}
func.func @grad_norm() { return }

// -----

// expected-error @+1 {{`segue-optimizer` needs a function `@backward`, but the module has none}}
module {
  func.func @forward() { return }
}

// -----

func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>}) { return }
// expected-error @+1 {{result 0 of `@backward` is the gradient of "w" and has type 'tensor<5xf32>', but the parameter has 'tensor<4xf32>'}}
func.func @backward() -> (tensor<5xf32> {segue.name = "grad.w", segue.of = "w", segue.role = #segue.role<gradient>}) {
  %0 = segue.constant dense<0.0> : tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

// A matrix and a vector; the vector alone is in the way of muon.
func.func @forward(%w: tensor<4x5xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %b: tensor<5xf32> {segue.name = "b", segue.role = #segue.role<parameter>}) { return }
func.func @backward() -> (tensor<4x5xf32> {segue.name = "grad.w", segue.of = "w", segue.role = #segue.role<gradient>},
                          tensor<5xf32> {segue.name = "grad.b", segue.of = "b", segue.role = #segue.role<gradient>}) {
  %0 = segue.constant dense<0.0> : tensor<4x5xf32>
  %1 = segue.constant dense<0.0> : tensor<5xf32>
  return %0, %1 : tensor<4x5xf32>, tensor<5xf32>
}

// -----

func.func @forward(%w: tensor<5xf32> {segue.name = "w", segue.role = #segue.role<parameter>, segue.optimizer = "sgd:lr=1"}) { return }
// expected-error @-1 {{sgd has no "lr"; it has momentum, dampening, nesterov, decay, clip-value, ema, own-steps, state-bits; `segue.optimizer` gives it another}}
func.func @backward() -> (tensor<5xf32> {segue.name = "grad.w", segue.of = "w", segue.role = #segue.role<gradient>}) {
  %0 = segue.constant dense<0.0> : tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----

func.func @forward(%w: tensor<4xf64> {segue.name = "w", segue.role = #segue.role<parameter>}) { return }
// expected-error @+1 {{parameter "w" is f64, but learning rates and states of optimizers are f32}}
func.func @backward() -> (tensor<4xf64> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}) {
  %g = segue.constant dense<1.0> : tensor<4xf64>
  return %g : tensor<4xf64>
}

// -----

func.func @forward(%w: tensor<4xi64> {segue.name = "w", segue.role = #segue.role<parameter>}) { return }
// expected-error @+1 {{result 0 of `@backward` is the gradient of "w", which holds 'i64'; only parameters of floats are trained}}
func.func @backward() -> (tensor<4xi64> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}) {
  %g = segue.constant dense<1> : tensor<4xi64>
  return %g : tensor<4xi64>
}

// -----

// The state "m" of "w" has the name of a parameter.
// expected-error @below {{`segue-optimizer` would call two arguments of `@optimizer` "m.w"; call the value of `@forward` that has this name otherwise}}
module {
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %m: tensor<4xf32> {segue.name = "m.w", segue.role = #segue.role<parameter>}) { return }
func.func @backward() -> (tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"},
                          tensor<4xf32> {segue.name = "grad.m.w", segue.role = #segue.role<gradient>, segue.of = "m.w"}) {
  %g = segue.constant dense<1.0> : tensor<4xf32>
  return %g, %g : tensor<4xf32>, tensor<4xf32>
}
}
