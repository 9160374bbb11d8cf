//===- Pipelines.h - passes in their order ----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The way from a module with `@forward` to programs, in the parts that tools
// stop at. By name in segue-opt: `segue-training-pipeline`,
// `segue-layout-pipeline`, `segue-kernel-pipeline`, `segue-program-pipeline`.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_COMPILER_PIPELINES_H
#define SEGUE_COMPILER_PIPELINES_H

#include "mlir/Pass/PassManager.h"
#include "segue/Compiler/Compiler.h"

namespace segue {

/// Makes a function of each block of `@forward`, where that is asked for.
void buildBlockPipeline(mlir::OpPassManager &pm, bool blockPrograms);

/// Derives `@backward`, plans what is saved, and makes `@optimizer` by a spec
/// as in CompileOptions. Fails, with a message in `error`, for a bad spec.
llvm::LogicalResult buildTrainingPipeline(mlir::OpPassManager &pm, llvm::StringRef optimizer, std::string &error,
                                          StatisticsPer statistics = StatisticsPer::Nothing);

/// Gives inputs and outputs the layouts that are asked for, by `stitchHints` unless
/// empty; stores frozen weights as `frozenStorage` says, unless empty.
void buildLayoutPipeline(mlir::OpPassManager &pm, llvm::StringRef stitchHints, llvm::StringRef frozenStorage);

/// Expands composite ops and joins all but library calls in `segue.fused`: the
/// last form that the reference interpreter knows. With `gpu` products take what comes
/// behind them first, as far as a GPU's library does.
void buildFusionPipeline(mlir::OpPassManager &pm, bool gpu = false);

/// Says how layouts that nobody asked for are decided, as in CompileOptions.
struct OpenLayouts {
  bool choose = true, explain = false;
};

/// Runs the fusion pipeline, then moves what is joined into `@kernels` and chooses the layouts
/// between programs.
void buildKernelPipeline(mlir::OpPassManager &pm, OpenLayouts layouts = {}, bool gpu = false);

/// Returns true if the spec of an optimizer asks for updates in the next forward.
bool updatesInForward(llvm::StringRef optimizer);

/// Makes programs of what is left, plans their memory, and lists what layouts
/// their inputs and outputs could have. Temporaries take `l1Bytes` of device_l1. With `updatesInForward`
/// a forward that updates its parameters first is one of the programs.
void buildProgramPipeline(mlir::OpPassManager &pm, uint64_t l1Bytes = 0, OpenLayouts layouts = {},
                          bool updatesInForward = false);

void registerSeguePipelines();

} // namespace segue

#endif // SEGUE_COMPILER_PIPELINES_H
