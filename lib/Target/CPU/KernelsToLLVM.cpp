//===- KernelsToLLVM.cpp - loops to the LLVM dialect ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A processor's kernels have an entry that takes its arguments from an array, and
// loops that a range may cut anywhere; both are made here.
//
//===----------------------------------------------------------------------===//

#include "KernelsToLLVM.h"
#include "../Kernels/ExpandMath.h"
#include "../Kernels/KernelMemory.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;
using namespace segue;

/// Writes the entry: `i64 name(ptr args, i64 begin, i64 end)`.
static void addEntry(LLVM::LLVMFuncOp kernel, StringRef name) {
  OpBuilder b(kernel->getContext());
  b.setInsertionPointAfter(kernel);
  Location loc = kernel.getLoc();
  auto pointer = LLVM::LLVMPointerType::get(kernel.getContext());
  Type i64 = b.getI64Type();
  auto entry = LLVM::LLVMFuncOp::create(b, loc, name, LLVM::LLVMFunctionType::get(i64, {pointer, i64, i64}));
  Block *block = entry.addEntryBlock(b);
  b.setInsertionPointToStart(block);
  SmallVector<Value> arguments;
  for (unsigned at = 0; at + 2 < kernel.getNumArguments(); ++at) {
    Value slot = LLVM::GEPOp::create(b, loc, pointer, pointer, block->getArgument(0),
                                     ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(at)});
    arguments.push_back(LLVM::LoadOp::create(b, loc, pointer, slot));
  }
  arguments.push_back(block->getArgument(1));
  arguments.push_back(block->getArgument(2));
  auto call = LLVM::CallOp::create(b, loc, kernel, arguments);
  LLVM::ReturnOp::create(b, loc, call.getResult());
}

/// Keeps LLVM from unrolling or vectorising over the rows of a range: a copy of
/// the body for the rest of the range might sum in another order, and then the
/// result would depend on how the range was split.
static void keepRowsAlike(func::FuncOp function) {
  MLIRContext *context = function.getContext();
  auto on = BoolAttr::get(context, true);
  auto vectorize = LLVM::LoopVectorizeAttr::get(context, on, {}, {}, {}, {}, {}, {});
  auto unroll = LLVM::LoopUnrollAttr::get(context, on, {}, {}, {}, {}, {}, {});
  auto annotation = LLVM::LoopAnnotationAttr::get(
      context, /*disableNonforced=*/{}, vectorize, /*interleave=*/{}, unroll, /*unrollAndJam=*/{}, /*licm=*/{},
      /*distribute=*/{}, /*pipeline=*/{}, /*peeled=*/{}, /*unswitch=*/{}, /*mustProgress=*/{}, /*isVectorized=*/{},
      /*startLoc=*/{}, /*endLoc=*/{}, /*parallelAccesses=*/ArrayRef<LLVM::AccessGroupAttr>());
  for (auto loop : function.getOps<scf::ForOp>())
    if (!loop.getBody()->getOps<scf::ForOp>().empty())
      loop->setAttr(kLoopAnnotation, annotation);
}

LogicalResult segue::lowerKernels(ModuleOp module) {
  if (failed(expandMath(module)))
    return failure();
  for (auto function : module.getOps<func::FuncOp>()) {
    keepRowsAlike(function);
    if (failed(lowerMemory(function)))
      return failure();
    function.setName((function.getName() + kBodySuffix).str());
  }
  if (failed(lowerToLLVM(module)))
    return failure();
  for (auto kernel : llvm::to_vector(module.getOps<LLVM::LLVMFuncOp>())) {
    std::string name = kernel.getName().str();
    addEntry(kernel, StringRef(name).drop_back(kBodySuffix.size()));
    kernel.setLinkage(LLVM::Linkage::Internal);
    kernel.setNoInline(true);
  }
  return success();
}
