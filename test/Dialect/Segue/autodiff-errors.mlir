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

// -----

// What reads a value within a region of another op is not found in the block of the function.
func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<parameter>}, %c: i1 {segue.name = "c"})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  // expected-error @below {{'scf.if' op has regions, which `segue-autodiff` does not look into; write the body of `@forward` without them}}
  %0 = scf.if %c -> tensor<4xf32> {
    %1 = segue.exp %x : tensor<4xf32>
    scf.yield %1 : tensor<4xf32>
  } else {
    scf.yield %x : tensor<4xf32>
  }
  %2 = segue.mul %0, %x : tensor<4xf32>
  return %2 : tensor<4xf32>
}

// -----

// expected-error @below {{argument 0 of `@forward` wants a gradient, but 'tensor<?xf32>' is no tensor that a program holds}}
func.func @forward(%x: tensor<?xf32> {segue.name = "x"}) -> (tensor<f32> {segue.name = "y"}) {
  %0 = segue.constant dense<1.0> : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// expected-error @below {{`segue-autodiff` would call two results of `@forward` "saved.0"; call the value of `@forward` that has this name otherwise}}
func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<parameter>})
    -> (tensor<4xf32> {segue.name = "saved.0", segue.role = #segue.role<output>}) {
  %0 = segue.tanh %x : tensor<4xf32>
  %1 = segue.tanh %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}
