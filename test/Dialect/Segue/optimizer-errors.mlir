// RUN: segue-opt %s --split-input-file --segue-optimizer --verify-diagnostics
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=adamw:beta1=1.0 2>&1 | FileCheck %s --check-prefix=BETA
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=adam:decay=-1.0 2>&1 | FileCheck %s --check-prefix=DECAY
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=sgd:nesterov 2>&1 | FileCheck %s --check-prefix=NESTEROV
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=radam:decoupled-weight-decay=2 2>&1 | FileCheck %s --check-prefix=FLAG
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=lion:eps=1 2>&1 | FileCheck %s --check-prefix=CONSTANT
// RUN: not segue-opt %s --split-input-file --segue-optimizer=optimizer=adamax 2>&1 | FileCheck %s --check-prefix=KIND

// BETA: `segue-optimizer` was given beta1 = 1.0; it must be in [0, 1)
// DECAY: `segue-optimizer` was given decay = -1.0; it must be 0 or more
// NESTEROV: `segue-optimizer` was given `nesterov`, which needs a momentum above 0 and dampening 0
// FLAG: `segue-optimizer` was given decoupled-weight-decay = 2; it must be true or false
// CONSTANT: lion has no "eps"; it has beta1, beta2, decay, clip-value, ema
// KIND: unknown optimizer "adamax"; known are adamw, adam, nadam, radam, lion, adagrad, rmsprop, adafactor, sgd and none
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
