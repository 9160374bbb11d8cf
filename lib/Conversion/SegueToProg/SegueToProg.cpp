//===- SegueToProg.cpp - from tensors to programs -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The pass: declares the kernels, lowers each function, stores the constants,
// and tells the services what forward saves for backward.
//
//===----------------------------------------------------------------------===//

#include "segue/Conversion/SegueToProg/SegueToProg.h"
#include "FunctionLowering.h"
#include "mlir/IR/AsmState.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "segue/Dialect/Prog/IR/ProgBuffers.h"
#include "segue/Dialect/Segue/IR/WholeText.h"
#include "llvm/Support/xxhash.h"

namespace segue {
#define GEN_PASS_DEF_SEGUETOPROG
#include "segue/Conversion/SegueToProg/Passes.h.inc"
} // namespace segue

using namespace mlir;
using namespace segue;

/// Returns a hash of what a kernel does, whatever it is called.
static uint64_t hashKernel(func::FuncOp func) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << func.getFunctionType() << func->getDiscardableAttrDictionary();
  for (Operation &op : func.getBody().front())
    op.print(os, wholeText());
  return llvm::xxh3_64bits(text);
}

static LogicalResult declareKernel(OpBuilder &builder, func::FuncOp func) {
  auto outputs = func->getAttrOfType<IntegerAttr>("segue.outputs");
  auto fixed = func->getAttrOfType<DenseI64ArrayAttr>("segue.fixed_bytes");
  auto perUnit = func->getAttrOfType<DenseI64ArrayAttr>("segue.bytes_per_unit");
  if (!outputs || !fixed || !perUnit || func.isExternal() || func.getNumArguments() < 2)
    return func.emitError() << "kernel @" << func.getName()
                            << " needs a body, buffers, a range, and the attributes `segue.outputs`, "
                               "`segue.fixed_bytes` and `segue.bytes_per_unit`";
  auto flops = func->getAttrOfType<IntegerAttr>("segue.flops_per_unit");
  auto unsigned64 = [&](uint64_t value) {
    return builder.getIntegerAttr(builder.getIntegerType(64, /*isSigned=*/false), APInt(64, value));
  };
  // All arguments but the range are buffers.
  prog::KernelOp::create(builder, func.getLoc(), func.getNameAttr(),
                         builder.getUI32IntegerAttr(func.getNumArguments() - 2),
                         builder.getUI32IntegerAttr(outputs.getInt()), fixed, perUnit, unsigned64(hashKernel(func)),
                         ArrayAttr(), unsigned64(flops ? flops.getInt() : 0));
  return success();
}

static void storeConstants(OpBuilder &builder, Location loc, StringRef bytes) {
  auto type = RankedTensorType::get({static_cast<int64_t>(bytes.size())}, builder.getI8Type());
  AsmResourceBlob blob = HeapAsmResourceBlob::allocateAndCopyWithAlign(ArrayRef<char>(bytes.data(), bytes.size()),
                                                                       prog::kAlignment, /*dataIsMutable=*/false);
  auto data = DenseResourceElementsAttr::get(type, "segment0", std::move(blob));
  prog::SegmentOp::create(builder, loc, "segment0", prog::SegmentKind::Constants, prog::kAlignment, data);
}

namespace {
/// The positions of the commands at which `backward` reads each of its inputs.
struct InputReads {
  explicit InputReads(prog::ProgramOp backward) {
    for (unsigned i = 0; i < backward.getNumInputs(); ++i)
      inputs[backward.getInput(i).getName()] = backward.getInputBuffer(i);
    unsigned position = 0;
    backward.walk<WalkOrder::PreOrder>([&](Operation *op) {
      ++position;
      if (auto restore = dyn_cast<prog::RestoreOp>(op))
        restored[restore.getBuffer()] = position;
      if (isa<prog::ViewOp, prog::RestoreOp, prog::FreeOp>(op))
        return;
      for (Value operand : op->getOperands()) {
        auto view = operand.getDefiningOp<prog::ViewOp>();
        lastRead[view ? view.getSource() : operand] = position;
        firstUse.try_emplace(view ? view.getSource() : operand, position);
      }
    });
    for (auto alias : backward.getAliases().value_or(ArrayAttr::get(backward.getContext(), {})).getAsRange<prog::AliasAttr>())
      overwritten[backward.getInputBuffer(alias.getInput())] =
          firstUse.lookup(backward.getOutputBuffer(alias.getOutput()));
  }

  /// Returns true if all inputs of `recompute` are still there when the first of its
  /// outputs is restored, and none is written over before the last is.
  bool serve(func::FuncOp recompute) const {
    auto attribute = [](DictionaryAttr attrs, StringRef name) { return attrs ? attrs.get(name) : Attribute(); };
    unsigned first = ~0u, last = 0;
    for (unsigned i = 0; i < recompute.getNumResults(); ++i) {
      auto name = dyn_cast_if_present<StringAttr>(attribute(recompute.getResultAttrDict(i), SegueDialect::kNameAttr));
      Value buffer = name ? inputs.lookup(name) : Value();
      if (!buffer || !restored.contains(buffer))
        return false;
      first = std::min(first, restored.lookup(buffer));
      last = std::max(last, restored.lookup(buffer));
    }
    for (unsigned i = 0; i < recompute.getNumArguments(); ++i) {
      auto name = dyn_cast_if_present<StringAttr>(attribute(recompute.getArgAttrDict(i), SegueDialect::kNameAttr));
      auto role = dyn_cast_if_present<RoleAttr>(attribute(recompute.getArgAttrDict(i), SegueDialect::kRoleAttr));
      Value buffer = name ? inputs.lookup(name) : Value();
      if (role && (role.getValue() == Role::Parameter || role.getValue() == Role::Frozen)) {
        if (auto written = overwritten.find(buffer); written != overwritten.end() && written->second < last)
          return false;
        continue;
      }
      if (!buffer || lastRead.lookup(buffer) <= first)
        return false;
    }
    return true;
  }

  llvm::DenseMap<StringAttr, Value> inputs;
  llvm::DenseMap<Value, unsigned> restored, lastRead, firstUse;
  /// The position at which an input begins to be written over, in backward that updates parameters.
  llvm::DenseMap<Value, unsigned> overwritten;
};
} // namespace

/// Describes what `forward` saves, in the order in which `backward` wants it.
static void describeSaved(prog::ProgramOp forward, func::FuncOp source, prog::ProgramOp backward,
                          ArrayRef<unsigned> restoreOrder, ArrayRef<prog::ProgramOp> recomputing) {
  llvm::DenseMap<StringAttr, std::pair<FlatSymbolRefAttr, unsigned>> again;
  for (prog::ProgramOp program : recomputing)
    for (unsigned i = 0; i < program.getNumOutputs(); ++i)
      again[program.getOutput(i).getName()] = {FlatSymbolRefAttr::get(program), i};
  llvm::StringMap<unsigned> inputs;
  for (unsigned i = 0; i < backward.getNumInputs(); ++i)
    if (backward.getInput(i).getRole() == Role::Saved)
      inputs[backward.getInput(i).getName()] = i;
  // Inputs that no command reads come last.
  llvm::DenseMap<unsigned, unsigned> order;
  for (unsigned input : restoreOrder)
    order.try_emplace(input, order.size());
  for (unsigned i = 0; i < backward.getNumInputs(); ++i)
    if (backward.getInput(i).getRole() == Role::Saved)
      order.try_emplace(i, order.size());

  SmallVector<Attribute> points;
  for (unsigned i = 0; i < forward.getNumOutputs(); ++i) {
    auto input = inputs.find(forward.getOutput(i).getName());
    if (forward.getOutput(i).getRole() != Role::Saved || input == inputs.end())
      continue;
    auto cost = [&](StringRef name) {
      auto attr = source.getResultAttrOfType<IntegerAttr>(i, name);
      return attr ? attr.getValue().getZExtValue() : 0;
    };
    uint64_t bytes = *prog::viewBytes(cast<MemRefType>(forward.getOutputBuffer(i).getType()));
    points.push_back(prog::SavePointAttr::get(
        forward.getContext(), i, /*aliases_input=*/false, input->second, order[input->second], bytes,
        cost("segue.recompute_flops"), source.getResultAttrOfType<StringAttr>(i, SegueDialect::kBlockAttr),
        cost("segue.recompute_bytes"), again.lookup(forward.getOutput(i).getName()).first,
        again.lookup(forward.getOutput(i).getName()).second));
  }
  if (!points.empty())
    forward.setSavePointsAttr(ArrayAttr::get(forward.getContext(), points));
}

namespace {
struct SegueToProgPass : segue::impl::SegueToProgBase<SegueToProgPass> {
  using SegueToProgBase::SegueToProgBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (failed(declareKernels(module)) || failed(lowerFunctions(module)))
      return signalPassFailure();
    for (auto func : llvm::make_early_inc_range(module.getOps<func::FuncOp>()))
      func.erase();
  }

private:
  LogicalResult declareKernels(ModuleOp module) {
    auto kernels = module.lookupSymbol<ModuleOp>("kernels");
    if (!kernels)
      return success();
    OpBuilder builder(kernels);
    for (auto func : kernels.getOps<func::FuncOp>())
      if (func.isPublic() && failed(declareKernel(builder, func)))
        return failure();
    return success();
  }

  LogicalResult lowerFunctions(ModuleOp module) {
    ConstantPool constants;
    LoweringCounts counts;
    struct Lowered {
      func::FuncOp source;
      prog::ProgramOp program;
      SmallVector<unsigned> restoreOrder;
    };
    llvm::StringMap<Lowered> programs;
    auto functions = llvm::to_vector(module.getOps<func::FuncOp>());
    Operation *last = &module.getBody()->back();
    std::optional<InputReads> reads;
    SmallVector<prog::ProgramOp> recomputing;
    for (func::FuncOp func : functions) {
      bool recomputes = func.getName().starts_with(SegueDialect::kRecomputePrefix);
      if (auto backward = programs.find(SegueDialect::kBackward); recomputes && backward != programs.end()) {
        if (!reads)
          reads.emplace(backward->second.program);
        if (!reads->serve(func))
          continue;
      }
      FunctionLowering lowering(func, constants, counts, chooseOrders, explain);
      FailureOr<prog::ProgramOp> program = lowering.run(last);
      if (failed(program))
        return failure();
      last = *program;
      if (recomputes)
        recomputing.push_back(*program);
      programs[func.getName()] = {func, *program, SmallVector<unsigned>(lowering.restoreOrder())};
    }
    if (!constants.bytes().empty()) {
      OpBuilder builder = OpBuilder::atBlockBegin(module.getBody());
      storeConstants(builder, builder.getUnknownLoc(), constants.bytes());
    }
    auto forward = programs.find(SegueDialect::kForward), backward = programs.find(SegueDialect::kBackward);
    if (forward != programs.end() && backward != programs.end())
      describeSaved(forward->second.program, forward->second.source, backward->second.program,
                    backward->second.restoreOrder, recomputing);
    copies += counts.copies;
    copiedBytes += counts.copiedBytes;
    placed += counts.placed;
    ordered += counts.ordered;
    orderedBytes += counts.orderedBytes;
    fused += counts.fused;
    return success();
  }
};
} // namespace
