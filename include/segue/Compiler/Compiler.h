//===- Compiler.h - a module and options to the bytes of a file -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What segue-compile and the Python package call:
//
//   CompileOptions options;
//   options.name = "gpt.blocks";
//   options.optimizer = "adamw:beta2=0.95,decay=0.1";
//   std::string diagnostics;
//   llvm::FailureOr<std::string> file = compileText(text, options, diagnostics);
//
// The same text and options give the same bytes. Calls on different contexts
// may run at the same time; compileText makes a context of its own.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_COMPILER_COMPILER_H
#define SEGUE_COMPILER_COMPILER_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Support/Timing.h"
#include "segue/Target/NVPTX/Cubin.h"
#include <string>

namespace mlir {
class PassManager;
}

namespace segue {

/// The form to give: the file, or a stage on the way to it, as text.
enum class Emit {
  /// The training functions in the segue dialect.
  Segue,
  /// The kernels as loops, before LLVM.
  Loops,
  /// The kernels as optimised LLVM IR, and as assembly.
  LLVM,
  Assembly,
  /// The programs.
  Prog,
  /// The kernels of a GPU as what a thread does, as optimised LLVM IR with NVVM intrinsics, and as PTX.
  Gpu,
  NVVM,
  PTX,
  Binary
};

/// The parts that the backward program returns statistics of.
enum class StatisticsPer { Nothing, Block, Layer };

struct CompileOptions {
  /// The module's name for people; kept in the file as the option "name".
  std::string name;
  /// With false, `@forward` alone is compiled.
  bool training = true;
  /// The optimizer as `kind[:key=value,...]` with the options of the pass segue-optimizer,
  /// for example "sgd:momentum=0.9"; "none" makes no optimizer.
  std::string optimizer = "adamw";
  /// The kind of units for each of which `@backward` returns statistics of its gradients.
  StatisticsPer gradientStatistics = StatisticsPer::Nothing;
  /// With true, `@forward` is compiled in pieces too, a program for each block: what
  /// Selective Precision calibrates with. This holds for inference as for training.
  bool blockPrograms = false;
  /// A file that the runtime's `StitchReport::writeHints` wrote: layouts of
  /// inputs and outputs change so that the copies between programs vanish.
  std::string stitchHints;
  /// The storage of frozen matrices that only products read, so that these read the codes:
  /// "int8_row", "int4_group64", ...; empty to store them as elements.
  std::string frozenStorage;
  /// The bytes of device_l1 that a program may take for temporaries; 0 for none. The
  /// program runs on devices without L1, too.
  uint64_t l1Bytes = 0;
  /// With true, layouts that the source leaves open are chosen by cost, between programs
  /// and inside of them; with false they are dense rows. Values are the same.
  bool chooseLayouts = true;
  /// Each choice is a remark, with what it costs.
  bool explainLayouts = false;
  /// The instruction sets that kernels are compiled for.
  bool v3 = true;
  bool v4 = true;
  /// The compute capability that kernels have PTX for, times ten (`gpuCapabilities`); 0 for none.
  unsigned gpuCapability = 0;
  /// The cubins that kernels have beside that PTX; none where no ptxas is named.
  CubinOptions cubins;
  /// A folder for the twins of kernels of a GPU (segue/Target/NVPTX/GpuTwins.h), which a fake driver runs; empty for none.
  /// Their object is called `<XXH3-64 of the PTX, 16 digits>.so`, and the PTX of a cubin `<XXH3-64 of the cubin>.ptx`.
  std::string gpuTwins;
  /// The number of threads that compile kernels.
  unsigned threads = 2;
  Emit emit = Emit::Binary;
};

/// Sets the instruction sets of `options`, and the capabilities of cubins, to `targets`: "x86-64-v3", "x86-64-v4", and
/// GPUs such as "sm_90". PTX is for the lowest of these, which later GPUs run too; a cubin would be for each. Returns
/// what is wrong with them, or nothing.
std::string readTargets(llvm::ArrayRef<std::string> targets, CompileOptions &options);

/// Compiles `module`, which is changed on the way. Errors are emitted as diagnostics.
/// `configure`, if given, sees every pass manager before it runs; `timing` gets a scope for
/// each part.
llvm::FailureOr<std::string> compile(mlir::ModuleOp module, const CompileOptions &options,
                                     llvm::function_ref<llvm::LogicalResult(mlir::PassManager &)> configure = {},
                                     mlir::TimingScope *timing = nullptr);

/// Compiles MLIR text. All diagnostics go to `diagnostics`, with source
/// lines; `source` is how they call the text.
llvm::FailureOr<std::string> compileText(llvm::StringRef text, const CompileOptions &options, std::string &diagnostics,
                                         llvm::StringRef source = "<module>");

} // namespace segue

#endif // SEGUE_COMPILER_COMPILER_H
