//===- Passes.td - passes that interpret -------------------*- tablegen -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_INTERPRETER_PASSES_TD
#define SEGUE_DIALECT_SEGUE_INTERPRETER_PASSES_TD

include "mlir/Pass/PassBase.td"

def Interpret : Pass<"segue-interpret", "::mlir::ModuleOp"> {
  let summary = "runs a function in the reference interpreter";
  let description = [{
    Tests of meaning: the function computes and states with `check.*` ops what
    must come out; the pass fails at the first statement that does not hold.
    The module stays as it is.

    ```mlir
    // segue-opt --segue-interpret
    func.func @main() {
      %x = segue.constant dense<[1.0, -2.0]> : tensor<2xf32>
      %y = segue.abs %x : tensor<2xf32>
      check.expect_close_const %y, dense<[1.0, 2.0]> : tensor<2xf32>
      return
    }
    ```

    Arguments are filled with pseudo-random values that depend on `fill-seed`
    and the position of the argument alone: floats from [-1, 1), integers from
    [0, 4). With `print`, results go to stdout, one line each:
    `main result 0: f32[2] 1 2`. Two runs with `all print`, before and after a
    pass, give equal text if the pass changed no meaning.
  }];
  let options = [
    Option<"entry", "entry", "std::string", "\"main\"", "The function to run">,
    Option<"all", "all", "bool", "false", "Run every function that has a body instead">,
    Option<"fillSeed", "fill-seed", "int64_t", "0", "Seed of the values of arguments">,
    Option<"print", "print", "bool", "false", "Print the results to stdout">
  ];
}

def CheckEquivalent : Pass<"segue-check-equivalent", "::mlir::ModuleOp"> {
  let summary = "compares two functions on the same pseudo-random inputs";
  let description = [{
    What a pass made out of a function must compute what the function did. A
    test keeps a copy, runs the pass, and compares both with the reference
    interpreter; arguments are filled as by `segue-interpret`. The functions
    take and give equal types. The module stays as it is.

    ```mlir
    // segue-opt --canonicalize --segue-check-equivalent="a=before b=after"
    ```
  }];
  let options = [
    Option<"a", "a", "std::string", "\"before\"", "One function">,
    Option<"b", "b", "std::string", "\"after\"", "The other function">,
    Option<"fillSeed", "fill-seed", "int64_t", "0", "Seed of the values of arguments">,
    Option<"trials", "trials", "unsigned", "3", "How many inputs to try, with seeds from fill-seed on">,
    Option<"atol", "atol", "double", "1e-6", "Absolute difference that is allowed">,
    Option<"rtol", "rtol", "double", "1e-5", "Difference that is allowed relative to the value of b">
  ];
}

#endif // SEGUE_DIALECT_SEGUE_INTERPRETER_PASSES_TD
