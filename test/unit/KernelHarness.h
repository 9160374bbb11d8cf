//===- KernelHarness.h - compiles and runs kernels in a test ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Takes a function `@f` through segue-expand, segue-form-kernels and
// segue-outline-kernels, compiles its kernels, loads the object and plays the
// launches: once over whole ranges and once in uneven pieces. Buffers are
// filled with garbage and followed by a zone that nobody may touch.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_UNIT_KERNELHARNESS_H
#define SEGUE_TEST_UNIT_KERNELHARNESS_H

#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/Interpreter/Interpreter.h"
#include "segue/Target/CPU/LoadedKernels.h"
#include "segue/Target/NVPTX/GpuTwins.h"
#include <optional>

namespace segue::test {

class Kernels {
public:
  /// Compiles, with `gpu` the twins of kernels of a GPU; `ok()` tells, and failures are reported to GoogleTest.
  explicit Kernels(const std::string &text, bool gpu = false);
  bool ok() const { return loaded; }
  const std::string &getText() const { return text; }
  mlir::MLIRContext &getContext() { return context; }

  /// Returns what the reference interpreter says.
  mlir::FailureOr<llvm::SmallVector<HostTensor>> interpret(llvm::ArrayRef<HostTensor> arguments);
  /// Plays the launches with the `isa` variants ("v3", "v4"), or those of a GPU in the order that `isa` says ("forward",
  /// "reverse", "shuffled"); `pieces` splits ranges unevenly, of processors alone. With `place`, every launch that has more than `place` pairs
  /// in `inPlace` works in place by that pair. A status that is not 0 ends the
  /// run and is kept.
  llvm::SmallVector<HostTensor> run(llvm::ArrayRef<HostTensor> arguments, llvm::StringRef isa, bool pieces,
                                    std::optional<size_t> place = std::nullopt);
  int64_t status() const { return lastStatus; }
  /// Microseconds of all launches of one run, the least of `repetitions`.
  double time(llvm::ArrayRef<HostTensor> arguments, llvm::StringRef isa, int repetitions);

  llvm::SmallVector<mlir::RankedTensorType> argumentTypes();
  size_t launches();
  /// The most pairs that a launch may work in place by.
  size_t places();
  size_t distinctKernels();
  const std::string &elf() const { return compiled.kernels().elf; }

private:
  using Bytes = std::vector<char>;
  LoadedKernels::Function symbol(llvm::StringRef kernel, llvm::StringRef isa);
  int64_t call(LaunchOp launch, llvm::ArrayRef<void *> pointers, llvm::StringRef isa, bool pieces);
  mlir::func::FuncOp function(mlir::ModuleOp module);

  mlir::MLIRContext context;
  mlir::OwningOpRef<mlir::ModuleOp> source, lowered;
  std::string text;
  LoadedKernels compiled;
  GpuTwins twins;
  bool gpu, loaded = false;
  int64_t lastStatus = 0;
};

/// The text of a function `@f` that makes a step of the optimizer `spec` on parameters of these types ("3x4xf32").
std::string optimizerText(const std::string &spec, llvm::ArrayRef<std::string> types);

/// Returns the names of the elementwise ops ("segue.tanh"), and of those that are written in others, that take `operands`
/// values of `type` and nothing else, and give one of it.
std::vector<std::string> elementwiseOps(unsigned operands, const std::string &type);

/// Instruction sets that this machine can run.
llvm::SmallVector<llvm::StringRef> instructionSets();

/// How far a kernel's result may be from the interpreter's.
struct Tolerance {
  double absolute = 2e-6, relative = 2e-6;
  /// The distance for results of i8, which are codes of a state: rounding may turn over.
  double codes = 0;
};

std::vector<HostTensor> randomArguments(Kernels &kernels, uint64_t seed = 1);
/// Fails unless kernels give what the interpreter gives, with each instruction set, and the same bits in pieces and in
/// place; and so do those of a GPU, in each order of blocks and threads.
void expectParity(Kernels &kernels, const std::vector<HostTensor> &arguments, Tolerance tolerance = {});
void expectParity(const std::string &text, Tolerance tolerance = {});

} // namespace segue::test

#endif // SEGUE_TEST_UNIT_KERNELHARNESS_H
