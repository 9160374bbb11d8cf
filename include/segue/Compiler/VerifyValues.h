//===- VerifyValues.h - kernels against the interpreter ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// For people who suspect a wrong result: runs the functions of a module in the
// reference interpreter and, wherever that comes to a kernel, calls the compiled
// kernel with the same operands. The first one whose results differ by more than
// rounding explains is named.
//
// What it sees are kernels alone, apart, also with each result over each operand
// that it may take the place of. It does not see the library calls (products, convolutions,
// attention) or what the runtime makes of a program. It is as slow as the
// interpreter is: seconds for a small model, and not meant for a large one.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_COMPILER_VERIFYVALUES_H
#define SEGUE_COMPILER_VERIFYVALUES_H

#include "segue/Compiler/Compiler.h"
#include "segue/Dialect/Segue/Interpreter/Interpreter.h"
#include "llvm/ADT/StringMap.h"
#include <optional>

namespace segue {

/// Values by the names of arguments.
using NamedTensors = llvm::StringMap<HostTensor>;

/// The tensors of a file in the safetensors format. An error for bytes that are
/// none, and for element types that no argument has.
llvm::Expected<NamedTensors> readSafetensors(llvm::StringRef bytes, mlir::MLIRContext *context);

/// A kernel that gives something else than the interpreter.
struct KernelDifference {
  /// The function that launches it, and the number of the launch in it.
  std::string function;
  unsigned launch = 0;
  std::string kernel;
  /// The index of the result, the op that makes it, and its place in the source.
  unsigned result = 0;
  std::string op, location;
  /// The instruction set, and what worked in place, if anything.
  std::string variant;
  /// The element that is furthest out, and what both say.
  std::vector<int64_t> index;
  double actual = 0, expected = 0, allowed = 0;
  int64_t wrong = 0, elements = 0;

  /// All of it, as a sentence or two.
  std::string str() const;
};

struct VerifiedValues {
  unsigned kernels = 0, launches = 0, calls = 0;
  std::optional<KernelDifference> difference;
};

struct VerifyOptions {
  /// The arguments of `@forward` and of the other functions. Those that are missing are
  /// drawn from `seed`; values that functions give each other by name are passed on.
  NamedTensors values;
  uint64_t seed = 1;
  /// A function that sees the kernels as loops before they are compiled. Tests put faults in.
  std::function<void(mlir::ModuleOp kernels)> edit;
};

/// Compiles `module`, which is changed on the way, by `options`, and calls every
/// kernel of every function for all instruction sets that this machine can run, and
/// where a GPU is among the targets the twin of its kernel, in three orders of blocks
/// and threads (segue/Target/NVPTX/GpuTwins.h).
/// Stops at the first difference. Fails, with diagnostics, where the module does
/// not compile or cannot be interpreted with these values.
///
/// A float may differ from the exact result by two units of its own type, plus
/// eight times what rounding inside of the kernel can do to it: that is measured,
/// by interpreting the kernel six times with every intermediate value disturbed
/// (`InterpreterOptions::disturb`), sums by their length. Integers and truth
/// values must be equal, unless one of those runs gives another one too.
llvm::FailureOr<VerifiedValues> verifyValues(mlir::ModuleOp module, const CompileOptions &options,
                                             const VerifyOptions &verify = {});

/// Verifies MLIR text, with the values of a file in the safetensors format.
/// All diagnostics go to `diagnostics`; `source` is how they call the text.
llvm::FailureOr<VerifiedValues> verifyText(llvm::StringRef text, const CompileOptions &options,
                                           llvm::StringRef safetensors, std::string &diagnostics,
                                           llvm::StringRef source = "<module>");

} // namespace segue

#endif // SEGUE_COMPILER_VERIFYVALUES_H
