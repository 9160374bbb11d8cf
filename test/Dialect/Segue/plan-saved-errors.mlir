// RUN: segue-opt %s --split-input-file --segue-plan-saved --verify-diagnostics
// RUN: not segue-opt %s --split-input-file --segue-plan-saved=flops-per-byte=0 2>&1 | FileCheck %s

// CHECK: `segue-plan-saved` needs `flops-per-byte` of at least 1 and `max-recompute-flops` of at least 0, but was given 0 and 0
// expected-error @+1 {{`segue-plan-saved` needs a function `@backward`, but the module has none}}
module {
  func.func @forward() { return }
}

// -----

func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>}) { return }
// expected-error @+1 {{argument 0 of `@backward` is "saved.0", but `@forward` has no such saved result}}
func.func @backward(%s: tensor<4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>}) { return }

// -----

func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>}) { return }
// expected-error @+1 {{argument 0 of `@backward` is "z", but `@forward` has no such argument}}
func.func @backward(%z: tensor<4xf32> {segue.name = "z", segue.role = #segue.role<input>}) { return }

// -----

func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>}) { return }
// expected-error @+1 {{argument 0 of `@backward`, "x", is 'tensor<5xf32>', but 'tensor<4xf32>' in `@forward`}}
func.func @backward(%x: tensor<5xf32> {segue.name = "x", segue.role = #segue.role<input>}) { return }
