// RUN: segue-opt %s --verify-diagnostics --split-input-file -o /dev/null

// The attributes of the training signature: SegueDialect.td has the table.

// expected-error @below {{'func.func' op argument 1 has the name "x", as argument 0 has; names are unique}}
func.func @twice(%a: tensor<4xf32> {segue.name = "x"}, %b: tensor<4xf32> {segue.name = "x"}) {
  return
}

// -----

// Results have names of their own: the one of an argument may come again.
func.func @argument_and_result(%a: tensor<4xf32> {segue.name = "x"}) -> (tensor<4xf32> {segue.name = "x"}) {
  return %a : tensor<4xf32>
}

// -----

// expected-error @below {{'func.func' op result 1 has the name "y", as result 0 has; names are unique}}
func.func @results(%a: tensor<4xf32>) -> (tensor<4xf32> {segue.name = "y"}, tensor<4xf32> {segue.name = "y"}) {
  return %a, %a : tensor<4xf32>, tensor<4xf32>
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.name` = "", which must be a string that is not empty}}
func.func @empty(%a: tensor<4xf32> {segue.name = ""}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.role` = "input", which must be `#segue.role<...>` with}}
func.func @role(%a: tensor<4xf32> {segue.name = "x", segue.role = "input"}) {
  return
}

// -----

// expected-error @+2 {{expected one of [input, parameter, frozen, output, saved, gradient, state, hyper, statistics] for what a value is to a training step, got: weight}}
// expected-error @+1 {{failed to parse Segue_RoleAttr parameter 'value'}}
func.func @unknown_role(%a: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<weight>}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.role` but no `segue.name`}}
func.func @nameless(%a: tensor<4xf32> {segue.role = #segue.role<input>}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.role` and type 'tensor<?xf32>'; only tensors of a static shape take part in a step}}
func.func @dynamic(%a: tensor<?xf32> {segue.name = "x", segue.role = #segue.role<input>}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.of`, which belongs to the roles `gradient`, `state` and `statistics`}}
func.func @of(%a: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.of = "y"}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.of` = 1 : i64, which must be a string}}
func.func @of_type(%a: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<state>, segue.of = 1 : i64}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.rolle`, which the dialect does not know here; known are `segue.name`}}
func.func @unknown(%a: tensor<4xf32> {segue.rolle = #segue.role<input>}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.requires_grad` = 0 : i64, which must be `true` or `false`}}
func.func @requires_grad(%a: tensor<4xf32> {segue.name = "x", segue.requires_grad = 0}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.rate_group` = -1 : i64, which must be an integer from 0 to 1023}}
func.func @rate_group(%a: tensor<4xf32> {segue.name = "x", segue.rate_group = -1 : i64}) {
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.weight_decay` = 0 : i64, which must be a float}}
func.func @weight_decay(%a: tensor<4xf32> {segue.name = "x", segue.weight_decay = 0}) {
  return
}

// -----

// expected-error @below {{'func.func' op result 0 has `segue.alias` = 1 : i64, which must be one of the 1 arguments}}
func.func @alias(%a: tensor<4xf32>) -> (tensor<4xf32> {segue.alias = 1 : i64}) {
  return %a : tensor<4xf32>
}

// -----

// expected-error @below {{'func.func' op result 0 is 'tensor<4xf32>', but the argument in `segue.alias` is 'tensor<5xf32>'}}
func.func @alias_type(%a: tensor<5xf32>, %b: tensor<4xf32>) -> (tensor<4xf32> {segue.alias = 0 : i64}) {
  return %b : tensor<4xf32>
}

// -----

// expected-error @below {{'func.func' op result 0 has `segue.recompute_flops` = -1 : i64, which must be an integer that is not negative}}
func.func @flops(%a: tensor<4xf32>) -> (tensor<4xf32> {segue.recompute_flops = -1 : i64}) {
  return %a : tensor<4xf32>
}

// -----

func.func @block(%a: tensor<4xf32>) {
  // expected-error @below {{'segue.exp' op has `segue.block` = 3 : i64, which must be a string}}
  %0 = segue.exp %a {segue.block = 3} : tensor<4xf32>
  return
}

// -----

func.func @name_on_op(%a: tensor<4xf32>) {
  // expected-error @below {{'segue.exp' op has `segue.name`, which belongs on arguments and results of functions}}
  %0 = segue.exp %a {segue.name = "x"} : tensor<4xf32>
  return
}

// -----

// expected-error @below {{'func.func' op argument 0 has `segue.optimizer` = 3 : i64, which must be a string}}
func.func @optimizer(%a: tensor<4xf32> {segue.name = "x", segue.optimizer = 3 : i64}) {
  return
}
