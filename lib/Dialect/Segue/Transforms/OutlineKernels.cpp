//===- OutlineKernels.cpp - fused regions to kernel functions -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Equal kernels are found twice: regions that print alike are not built again,
// and functions that print alike are stored once, which joins kernels that
// differ in extents that no loop contains. Printing leaves out locations.
//
//===----------------------------------------------------------------------===//

#include "EmptyTensors.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/GPU/IR/GPUDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "segue/Dialect/Segue/IR/SegueDialect.h"
#include "segue/Dialect/Segue/IR/WholeText.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace segue;

namespace segue {
#define GEN_PASS_DEF_SEGUEOUTLINEKERNELS
#include "segue/Dialect/Segue/Transforms/Passes.h.inc"
} // namespace segue

/// The text of an op without what does not change its meaning.
static std::string textOf(Operation *op) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  op->print(stream, wholeText().printGenericOpForm());
  return text;
}

/// Returns true for functions of one operand that cost something, and for ops that are more than elementwise.
static bool isTelling(Operation *op) {
  if (isa<ScalarOpInterface>(op))
    return op->getNumOperands() == 1 && elementCostOf(op) >= kCostWorthKeeping;
  return kernelRoleOf(op) == KernelRole::Member || isa<TransposeOp>(op);
}

/// A name that tells people what a kernel does: its most telling ops.
static std::string nameOf(FusedOp fused, unsigned number) {
  SmallVector<StringRef> words;
  for (Operation &op : *fused.getBody().begin())
    if (isTelling(&op)) {
      StringRef word = op.getName().stripDialect();
      if (!llvm::is_contained(words, word) && words.size() < 3)
        words.push_back(word);
    }
  if (words.empty())
    for (Operation &op : llvm::reverse(*fused.getBody().begin()))
      if (isa<ScalarOpInterface>(op)) {
        words.push_back(op.getName().stripDialect());
        break;
      }
  if (words.empty())
    words.push_back("copy");
  return ("k" + Twine(number) + "_" + llvm::join(words, "_")).str();
}

/// Returns what one unit of the range costs, rounded up.
static int64_t flopsPerUnit(FusedOp fused, int64_t range) {
  int64_t flops = 0;
  for (Operation &op : fused.getBody().front().without_terminator())
    flops += flopsOf(&op);
  return llvm::divideCeil(static_cast<uint64_t>(flops), static_cast<uint64_t>(std::max<int64_t>(range, 1)));
}

/// Drops the pairs of `pairs` that `others` lacks: a launch is the same for both forms of a kernel.
static void keepCommonPairs(SmallVectorImpl<int64_t> &pairs, ArrayRef<int64_t> others) {
  SmallVector<int64_t> kept;
  for (size_t i = 0; i < pairs.size(); i += 2)
    for (size_t j = 0; j < others.size(); j += 2)
      if (pairs[i] == others[j] && pairs[i + 1] == others[j + 1])
        kept.append({pairs[i], pairs[i + 1]});
  pairs.assign(kept.begin(), kept.end());
}

namespace {

struct KnownKernel {
  std::string name;
  int64_t range, grain;
  SmallVector<int64_t> inPlace;
};

struct OutlineKernelsPass : segue::impl::SegueOutlineKernelsBase<OutlineKernelsPass> {
  using SegueOutlineKernelsBase::SegueOutlineKernelsBase;
  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (failed(refuseEmptyTensors(module)))
      return signalPassFailure();
    SmallVector<FusedOp> regions;
    module.walk([&](FusedOp fused) { regions.push_back(fused); });
    auto moduleOf = [&](StringRef name) {
      auto found = module.lookupSymbol<ModuleOp>(name);
      OpBuilder b = OpBuilder::atBlockEnd(module.getBody());
      return found ? found : ModuleOp::create(b, module.getLoc(), name);
    };
    ModuleOp kernels = moduleOf(SegueDialect::kKernelsModule);
    OpBuilder builder = OpBuilder::atBlockEnd(kernels.getBody());
    std::optional<OpBuilder> gpuBuilder;
    if (gpu)
      gpuBuilder = OpBuilder::atBlockEnd(moduleOf(kGpuKernelsModule).getBody());

    llvm::StringMap<KnownKernel> byRegion;
    llvm::StringMap<std::string> byFunction;
    unsigned number = std::distance(kernels.getOps().begin(), kernels.getOps().end());
    for (FusedOp fused : regions) {
      ++launches;
      auto [known, isNew] = byRegion.try_emplace(regionText(fused));
      if (isNew) {
        FailureOr<LoopKernel> kernel = buildLoops(fused, "kernel", builder);
        if (failed(kernel))
          return signalPassFailure();
        std::string name = nameOf(fused, number), text = textOf(kernel->function);
        func::FuncOp gpuFunction;
        if (gpu) {
          FailureOr<LoopKernel> gpuKernel = buildGpuLoops(fused, "kernel", *gpuBuilder);
          if (failed(gpuKernel))
            return signalPassFailure();
          gpuFunction = gpuKernel->function;
          text += textOf(gpuFunction);
          keepCommonPairs(kernel->inPlace, gpuKernel->inPlace);
        }
        auto [stored, isNewFunction] = byFunction.try_emplace(text, name);
        if (gpuFunction && isNewFunction)
          gpuFunction.setName(name);
        else if (gpuFunction)
          gpuFunction.erase();
        if (isNewFunction) {
          kernel->function.setName(name);
          kernel->function->setAttr("segue.flops_per_unit",
                                    builder.getI64IntegerAttr(flopsPerUnit(fused, kernel->range)));
          ++number;
          ++distinct;
        } else {
          kernel->function.erase();
        }
        known->second = KnownKernel{stored->second, kernel->range, kernel->grain, kernel->inPlace};
      }
      const KnownKernel &kernel = known->second;
      OpBuilder b(fused);
      auto launch = LaunchOp::create(b, fused.getLoc(), fused.getResultTypes(), kernel.name, fused.getInputs(),
                                     kernel.range, kernel.grain, kernel.inPlace);
      for (StringRef name : {StringRef(SegueDialect::kBlockAttr), StringRef(SegueDialect::kBlocksAttr)})
        if (Attribute value = fused->getAttr(name))
          launch->setAttr(name, value);
      fused->replaceAllUsesWith(launch.getResults());
      fused.erase();
    }
  }

private:
  /// Returns a region as text, with operands by type alone: which values they are is not part of the kernel.
  static std::string regionText(FusedOp fused) {
    std::string text;
    llvm::raw_string_ostream stream(text);
    llvm::DenseMap<Value, unsigned> numbers;
    Block &body = *fused.getBody().begin();
    for (BlockArgument argument : body.getArguments()) {
      numbers[argument] = numbers.size();
      stream << argument.getType() << ",";
    }
    for (Operation &op : body) {
      stream << op.getName() << "(";
      for (Value operand : op.getOperands())
        stream << numbers.lookup(operand) << ",";
      stream << ")";
      for (NamedAttribute attribute : op.getAttrs())
        if (attribute.getName() != SegueDialect::kBlockAttr)
          stream << attribute.getName().getValue() << "=" << attribute.getValue() << ",";
      for (Value result : op.getResults()) {
        numbers[result] = numbers.size();
        stream << result.getType() << ";";
      }
    }
    return text;
  }
};

} // namespace
