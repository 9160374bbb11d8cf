// RUN: segue-opt %s --split-input-file --segue-autodiff --verify-diagnostics

// expected-error @+1 {{`segue-autodiff` needs a function `@forward`, but the module has none}}
module {
  func.func @other() { return }
}

// -----

// expected-error @+1 {{`segue-autodiff` needs a body of one block, but `@forward` has 0}}
func.func private @forward(tensor<4xf32>) -> tensor<4xf32>

// -----

// The second derivative of attention is not there; the op and the operand that
// asks for it are named.
func.func @forward(
    %q: tensor<1x1x2x4xf32> {segue.name = "q", segue.role = #segue.role<parameter>}, // expected-note {{this operand wants a gradient}}
    %l: tensor<1x1x2xf32> {segue.name = "l", segue.role = #segue.role<frozen>})
    -> (tensor<1x1x2x4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  // expected-error @+1 {{'segue.attention_grad' op has no derivative, but lies on the way from a value that wants a gradient to an output}}
  %a, %b, %c = segue.attention_grad %q, %q, %q out %q lse %l grad %q scale 1.0 : tensor<1x1x2x4xf32>, tensor<1x1x2x4xf32>, tensor<1x1x2xf32>
  return %a : tensor<1x1x2x4xf32>
}

// -----

// expected-error @+1 {{`@forward` has no float output, so "w" can get no gradient; make it `frozen` or return a float}}
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4xi1> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.compare eq %w, %w : tensor<4xf32> -> tensor<4xi1>
  return %0 : tensor<4xi1>
}

// -----

// expected-error @+1 {{argument 0 of `@forward` has no `segue.name`, by which gradients are called}}
func.func @forward(%w: tensor<4xf32>)
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  return %w : tensor<4xf32>
}

// -----

// expected-error @+1 {{result 0 of `@forward` has no `segue.name`}}
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>}) -> tensor<4xf32> {
  return %w : tensor<4xf32>
}

// -----

// expected-error @+1 {{result 0 of `@forward` has role `gradient`; before `segue-autodiff` all results are outputs}}
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<gradient>}) {
  return %w : tensor<4xf32>
}

// -----

func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  return %w : tensor<4xf32>
}
// expected-error @+1 {{`segue-autodiff` makes `@backward`, but the module has one}}
func.func @backward() { return }
