//===- GpuKernelsToLLVM.cpp - kernels of threads to LLVM ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Functions are computed by the same arithmetic as on a processor, so that no
// library of a toolkit is linked and both agree to the last places.
//
//===----------------------------------------------------------------------===//

#include "GpuKernelsToLLVM.h"
#include "../Kernels/ExpandMath.h"
#include "../Kernels/KernelMemory.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/NVVM/NVVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"

using namespace mlir;
using namespace segue;

/// The mask of all threads of a warp, and the clamp of a shuffle by exclusive or.
static constexpr int32_t kWholeWarp = -1, kWarpClamp = 31;

static Value shuffledWord(OpBuilder &b, Location loc, Value word, Value offset) {
  Value mask = LLVM::ConstantOp::create(b, loc, b.getI32IntegerAttr(kWholeWarp));
  Value clamp = LLVM::ConstantOp::create(b, loc, b.getI32IntegerAttr(kWarpClamp));
  return NVVM::ShflOp::create(b, loc, word.getType(), mask, word, offset, clamp, NVVM::ShflKind::bfly, UnitAttr());
}

/// Returns the `value` of another thread of the warp. Words of 64 bits go in halves.
static Value shuffled(OpBuilder &b, Location loc, Value value, Value offset) {
  Type type = value.getType(), i32 = b.getI32Type(), i64 = b.getI64Type();
  if (type.getIntOrFloatBitWidth() == 32)
    return shuffledWord(b, loc, value, offset);
  Value bits = type == i64 ? value : arith::BitcastOp::create(b, loc, i64, value).getResult();
  Value by = arith::ConstantOp::create(b, loc, b.getI64IntegerAttr(32));
  Value low = arith::TruncIOp::create(b, loc, i32, bits);
  Value high = arith::TruncIOp::create(b, loc, i32, arith::ShRUIOp::create(b, loc, bits, by).getResult());
  low = arith::ExtUIOp::create(b, loc, i64, shuffledWord(b, loc, low, offset));
  high = arith::ExtUIOp::create(b, loc, i64, shuffledWord(b, loc, high, offset));
  bits = arith::OrIOp::create(b, loc, low, arith::ShLIOp::create(b, loc, high, by).getResult());
  return type == i64 ? bits : arith::BitcastOp::create(b, loc, type, bits).getResult();
}

static LogicalResult lowerThreads(func::FuncOp function) {
  SmallVector<Operation *> ops;
  function.walk([&](Operation *op) {
    if (isa_and_nonnull<gpu::GPUDialect>(op->getDialect()))
      ops.push_back(op);
  });
  for (Operation *op : ops) {
    OpBuilder b(op);
    Location loc = op->getLoc();
    auto asIndex = [&](Value number) {
      op->getResult(0).replaceAllUsesWith(arith::IndexCastUIOp::create(b, loc, b.getIndexType(), number).getResult());
    };
    if (isa<gpu::ThreadIdOp>(op))
      asIndex(NVVM::ThreadIdXOp::create(b, loc, b.getI32Type()));
    else if (isa<gpu::BlockIdOp>(op))
      asIndex(NVVM::BlockIdXOp::create(b, loc, b.getI32Type()));
    else if (isa<gpu::BarrierOp>(op))
      NVVM::Barrier0Op::create(b, loc);
    else if (auto shuffle = dyn_cast<gpu::ShuffleOp>(op); shuffle && shuffle.getMode() == gpu::ShuffleMode::XOR)
      shuffle.getShuffleResult().replaceAllUsesWith(shuffled(b, loc, shuffle.getValue(), shuffle.getOffset()));
    else
      return op->emitOpError("has no place in a kernel of a GPU");
    op->erase();
  }
  return success();
}

std::unique_ptr<llvm::Module> segue::gpuKernelsToLLVM(ModuleOp module, llvm::LLVMContext &llvmContext) {
  MLIRContext *context = module.getContext();
  DialectRegistry registry;
  registerBuiltinDialectTranslation(registry);
  registerLLVMDialectTranslation(registry);
  registerNVVMDialectTranslation(registry);
  registry.insert<LLVM::LLVMDialect, NVVM::NVVMDialect>();
  context->appendDialectRegistry(registry);
  context->loadDialect<LLVM::LLVMDialect, NVVM::NVVMDialect>();

  OwningOpRef<ModuleOp> lowered = module.clone();
  if (failed(expandMath(*lowered)))
    return nullptr;
  llvm::StringMap<int32_t> threads;
  for (auto function : lowered->getOps<func::FuncOp>()) {
    auto given = function->getAttrOfType<IntegerAttr>(kGpuThreadsAttr);
    if (!given)
      return function.emitOpError("does not say how many threads a block has"), nullptr;
    threads[function.getName()] = given.getInt();
    if (failed(lowerThreads(function)) || failed(lowerMemory(function)))
      return nullptr;
    Builder b(context);
    unsigned fault = function.getNumArguments() - 1;
    // Accesses of several elements rely on it.
    auto alignments = function->getAttrOfType<DenseI64ArrayAttr>(kGpuAlignmentsAttr);
    for (unsigned at = 0; at < fault; ++at)
      function.setArgAttr(at, LLVM::LLVMDialect::getAlignAttrName(),
                          b.getI64IntegerAttr(alignments ? alignments[at] : kGpuAlignment));
    // Others of the convention are told their range and piece; this kernel knows its grid.
    for (int i = 0; i < 2; ++i)
      if (failed(function.insertArgument(fault, b.getI64Type(), DictionaryAttr(), function.getLoc())))
        return nullptr;
  }
  if (failed(lowerToLLVM(*lowered)))
    return nullptr;
  for (auto kernel : lowered->getOps<LLVM::LLVMFuncOp>()) {
    auto known = threads.find(kernel.getName());
    if (known == threads.end())
      continue;
    Builder b(context);
    kernel->setAttr(NVVM::NVVMDialect::getKernelFuncAttrName(), b.getUnitAttr());
    kernel->setAttr(NVVM::NVVMDialect::getMaxntidAttrName(), b.getDenseI32ArrayAttr({known->second}));
  }
  std::unique_ptr<llvm::Module> translated = translateModuleToLLVMIR(*lowered, llvmContext, "kernels");
  if (!translated)
    module.emitError("kernels of a GPU could not be translated");
  else
    // Subnormal numbers of f32 are flushed, as on a processor.
    for (llvm::Function &function : *translated)
      if (!function.isDeclaration())
        function.addFnAttr("denormal-fp-math-f32", "preserve-sign,preserve-sign");
  return translated;
}
