// RUN: segue-opt %s --segue-update-in-backward --split-input-file --verify-diagnostics -o /dev/null
// RUN: not segue-opt %s --segue-update-in-backward --split-input-file 2> /dev/null | FileCheck %s

// An optimizer is read as `segue-optimizer` writes it; one that somebody else wrote may be another.

func.func @backward() -> (tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}) {
  %0 = segue.constant dense<1.0> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
// expected-error @below {{argument 0 of `@optimizer`, "grad.w", has no `segue.of`, which names its parameter}}
func.func @optimizer(%g: tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>}) { return }
func.func @grad_norm() { return }

// -----

func.func @backward() { return }
// expected-error @below {{argument 0 of `@optimizer`, "grad.w", is a gradient of "w" of type 'tensor<4xf32>', which `@backward` does not return}}
func.func @optimizer(%g: tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}) { return }
func.func @grad_norm() { return }

// -----

func.func @backward() -> (tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}) {
  %0 = segue.constant dense<1.0> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
// expected-error @below {{argument 1 of `@optimizer`, "again", is a second gradient of "w"}}
func.func @optimizer(%g: tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"},
                     %h: tensor<4xf32> {segue.name = "again", segue.role = #segue.role<gradient>, segue.of = "w"}) { return }
func.func @grad_norm() { return }

// -----

func.func @backward() { return }
// expected-error @below {{argument 0 of `@optimizer`, "lr", has role `input`; an optimizer takes parameters, gradients, states and hyper alone}}
func.func @optimizer(%lr: tensor<f32> {segue.name = "lr"}) { return }
func.func @grad_norm() { return }

// -----

func.func @backward() -> (tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}) {
  %0 = segue.constant dense<1.0> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
// expected-error @below {{result 0 of `@optimizer`, "w", lies in the place of a gradient, which is gone after `segue-update-in-backward`}}
func.func @optimizer(%g: tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"})
    -> (tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>, segue.alias = 0 : i64}) {
  return %g : tensor<4xf32>
}
func.func @grad_norm() { return }

// -----

// A float called "lr" is given to the model, too.
// expected-error @below {{`segue-update-in-backward` would call two arguments of `@backward` "lr"; call the value of `@forward` that has this name otherwise}}
func.func @backward(%x: tensor<4xf32> {segue.name = "lr", segue.role = #segue.role<input>}) { return }
func.func @optimizer(%lr: tensor<f32> {segue.name = "lr", segue.role = #segue.role<hyper>}) { return }
func.func @grad_norm() { return }

// -----

// The norm has the gradient of a parameter that no op updates, too.
// CHECK-LABEL: func.func @backward
// CHECK: segue.reduce sum %{{.*}} {segue.update = "w"}
// CHECK: return %{{.*}}, %{{.*}} : tensor<4xf32>, tensor<1xf32>
func.func @backward() -> (tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"}) {
  %0 = segue.constant dense<1.0> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @optimizer(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                     %g: tensor<4xf32> {segue.name = "grad.w", segue.role = #segue.role<gradient>, segue.of = "w"})
    -> (tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>, segue.alias = 0 : i64}) {
  return %w : tensor<4xf32>
}
func.func @grad_norm() { return }
