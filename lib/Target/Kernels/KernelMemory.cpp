//===- KernelMemory.cpp - buffers of kernels to pointers ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Kernels hold 1-D memrefs that are only loaded from and stored to, so buffers
// become bare pointers here and no memref descriptor is ever made. A kernel
// that allocates or copies is refused.
//
// LLVM is told which buffers may be one, and no more than that. A buffer that is
// in no pair of `segue.in_place` is `noalias`. One that is in a pair is not:
// alias scopes tell it apart from the buffers that it is not paired with, and
// what reads or writes the two of a pair stays in order. The loops vectorise
// without overlap checks all the same, as their accesses are in a group that has
// no dependence across iterations.
//
//===----------------------------------------------------------------------===//

#include "KernelMemory.h"
#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVMPass.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"

using namespace mlir;
using namespace segue;

/// The address space of memory that a block shares, of NVPTX.
constexpr unsigned kSharedSpace = 3;

static Value toI64(OpBuilder &b, Location loc, Value index) {
  return arith::IndexCastOp::create(b, loc, b.getI64Type(), index);
}

namespace {
/// Tells LLVM which buffers an access of one that may be in place leaves alone.
class BufferScopes {
public:
  explicit BufferScopes(func::FuncOp function) {
    auto attribute = function->getAttrOfType<DenseI64ArrayAttr>(kInPlaceAttr);
    auto outputs = function->getAttrOfType<IntegerAttr>("segue.outputs");
    if (!attribute || !outputs)
      return;
    // Behind the buffers come begin and end, or on a GPU the word for faults.
    unsigned others = function->hasAttr(kGpuThreadsAttr) ? 1 : 2;
    unsigned buffers = function.getNumArguments() - others, firstOutput = buffers - outputs.getInt();
    paired.resize(buffers);
    ArrayRef<int64_t> pairs = attribute.asArrayRef();
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      paired[pairs[i]].insert(firstOutput + pairs[i + 1]);
      paired[firstOutput + pairs[i + 1]].insert(pairs[i]);
    }
    auto domain = LLVM::AliasScopeDomainAttr::get(function.getContext(), StringAttr());
    for (unsigned at = 0; at < buffers; ++at)
      scopes.push_back(isPaired(at) ? LLVM::AliasScopeAttr::get(domain, StringAttr()) : LLVM::AliasScopeAttr());
  }

  bool isPaired(unsigned argument) const { return argument < paired.size() && !paired[argument].empty(); }

  void annotate(LLVM::AliasAnalysisOpInterface access, Value buffer) const {
    auto argument = dyn_cast<BlockArgument>(buffer);
    if (!argument || !isPaired(argument.getArgNumber()))
      return;
    unsigned own = argument.getArgNumber();
    SmallVector<Attribute> others;
    for (auto [other, scope] : llvm::enumerate(scopes))
      if (scope && other != own && !paired[own].contains(other))
        others.push_back(scope);
    MLIRContext *context = access->getContext();
    access.setAliasScopes(ArrayAttr::get(context, {scopes[own]}));
    if (!others.empty())
      access.setNoAliasScopes(ArrayAttr::get(context, others));
  }

private:
  SmallVector<llvm::SmallDenseSet<unsigned>> paired;
  SmallVector<LLVM::AliasScopeAttr> scopes;
};
} // namespace

/// The loop around `op` that is marked as parallel and that `op` has a part in:
/// one that stores to the same place in every iteration has none.
static scf::ForOp parallelLoopOf(Operation *op) {
  auto loop = op->getParentOfType<scf::ForOp>();
  if (!loop || !loop->hasAttr(kParallelAttr))
    return {};
  auto store = dyn_cast<memref::StoreOp>(op);
  return store && matchPattern(store.getIndices().front(), m_Constant()) ? scf::ForOp() : loop;
}

/// Gives every parallel loop an access group. Such loops are innermost, so
/// `keepRowsAlike` has annotated none of them.
static llvm::DenseMap<Operation *, LLVM::AccessGroupAttr> addAccessGroups(func::FuncOp function) {
  llvm::DenseMap<Operation *, LLVM::AccessGroupAttr> groups;
  MLIRContext *context = function.getContext();
  function.walk([&](scf::ForOp loop) {
    if (!loop->hasAttr(kParallelAttr))
      return;
    auto group = groups[loop] = LLVM::AccessGroupAttr::get(context);
    loop->setAttr(kLoopAnnotation, LLVM::LoopAnnotationAttr::get(context, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {},
                                                                 {}, {}, {}, {group}));
  });
  return groups;
}

/// The type by which memory of `element` is accessed. bf16 is moved as the integer that its bits are: where all that a loop
/// stores is one of two constants, LLVM would choose between bf16 vectors, and for that call the runtime library of compilers.
static Type accessedAs(Type element) {
  return element.isBF16() ? IntegerType::get(element.getContext(), 16) : element;
}

static Value asType(OpBuilder &b, Location loc, Value value, Type type) {
  return value.getType() == type ? value : arith::BitcastOp::create(b, loc, type, value);
}

/// Memory that the threads of a block share: a variable of the module that nobody begins.
static Value sharedMemory(memref::AllocaOp allocation, OpBuilder &b) {
  auto module = allocation->getParentOfType<ModuleOp>();
  MemRefType type = allocation.getType();
  auto array = LLVM::LLVMArrayType::get(type.getElementType(), type.getNumElements());
  auto function = allocation->getParentOfType<func::FuncOp>();
  unsigned number = 0;
  std::string name;
  do
    name = (function.getName() + "_shared" + Twine(number++)).str();
  while (module.lookupSymbol(name));
  OpBuilder outer = OpBuilder::atBlockBegin(module.getBody());
  // LLVM joins neighbouring accesses to one of 16 bytes, and relies on the variable for that.
  auto global = LLVM::GlobalOp::create(outer, allocation.getLoc(), array, /*isConstant=*/false, LLVM::Linkage::Internal, name,
                                       Attribute(), /*alignment=*/16, kSharedSpace);
  return LLVM::AddressOfOp::create(b, allocation.getLoc(), global);
}

LogicalResult segue::lowerMemory(func::FuncOp function) {
  BufferScopes scopes(function);
  auto groups = addAccessGroups(function);
  auto pointer = LLVM::LLVMPointerType::get(function.getContext());
  llvm::DenseMap<Value, Value> pointers;
  SmallVector<Type> types;
  for (auto [at, argument] : llvm::enumerate(function.getArguments())) {
    if (auto type = dyn_cast<MemRefType>(argument.getType())) {
      if (type.getRank() != 1)
        return function.emitOpError("argument ") << at << " must be a memref of rank 1";
      if (!scopes.isPaired(at))
        function.setArgAttr(at, LLVM::LLVMDialect::getNoAliasAttrName(), UnitAttr::get(function.getContext()));
      types.push_back(pointer);
    } else {
      types.push_back(argument.getType());
    }
  }
  SmallVector<Operation *> ops;
  function.walk([&](Operation *op) {
    if (isa_and_nonnull<memref::MemRefDialect>(op->getDialect()))
      ops.push_back(op);
  });
  SmallVector<Operation *> dead;
  for (Operation *op : ops) {
    OpBuilder b(op);
    Location loc = op->getLoc();
    auto address = [&](Value buffer, Value index) -> Value {
      Value base = pointers.count(buffer) ? pointers.lookup(buffer) : buffer;
      Type element = accessedAs(cast<MemRefType>(buffer.getType()).getElementType());
      Value at = toI64(b, loc, index);
      Type type = isa<LLVM::LLVMPointerType>(base.getType()) ? base.getType() : Type(pointer);
      return LLVM::GEPOp::create(b, loc, type, element, base, ArrayRef<LLVM::GEPArg>{at}, LLVM::GEPNoWrapFlags::inbounds);
    };
    auto annotate = [&](auto access, Value buffer) {
      scopes.annotate(access, buffer);
      if (scf::ForOp loop = parallelLoopOf(op))
        access.setAccessGroups(b.getArrayAttr({groups.lookup(loop)}));
    };
    if (auto load = dyn_cast<memref::LoadOp>(op)) {
      Value at = address(load.getMemref(), load.getIndices().front());
      auto lowered = LLVM::LoadOp::create(b, loc, accessedAs(load.getType()), at);
      annotate(lowered, load.getMemref());
      load.replaceAllUsesWith(asType(b, loc, lowered, load.getType()));
    } else if (auto store = dyn_cast<memref::StoreOp>(op)) {
      Value at = address(store.getMemref(), store.getIndices().front());
      Value value = asType(b, loc, store.getValueToStore(), accessedAs(store.getValueToStore().getType()));
      annotate(LLVM::StoreOp::create(b, loc, value, at), store.getMemref());
    } else if (auto minimum = dyn_cast<memref::AtomicRMWOp>(op); minimum && minimum.getKind() == arith::AtomicRMWKind::minu) {
      Value at = address(minimum.getMemref(), minimum.getIndices().front());
      auto lowered = LLVM::AtomicRMWOp::create(b, loc, LLVM::AtomicBinOp::umin, at, minimum.getValue(),
                                               LLVM::AtomicOrdering::monotonic);
      minimum.replaceAllUsesWith(lowered.getResult());
    } else if (auto allocation = dyn_cast<memref::AllocaOp>(op); allocation && allocation.getType().getMemorySpace()) {
      pointers[allocation.getResult()] = sharedMemory(allocation, b);
    } else if (auto allocation = dyn_cast<memref::AllocaOp>(op)) {
      Value count = LLVM::ConstantOp::create(b, loc, b.getI64IntegerAttr(allocation.getType().getNumElements()));
      pointers[allocation.getResult()] =
          LLVM::AllocaOp::create(b, loc, pointer, allocation.getType().getElementType(), count, /*alignment=*/64);
    } else if (auto extract = dyn_cast<memref::ExtractAlignedPointerAsIndexOp>(op)) {
      Value number = LLVM::PtrToIntOp::create(b, loc, b.getI64Type(), extract.getSource());
      extract.replaceAllUsesWith(arith::IndexCastOp::create(b, loc, b.getIndexType(), number).getResult());
    } else {
      return op->emitOpError("has no place in a kernel: kernels allocate and copy nothing");
    }
    dead.push_back(op);
  }
  for (Operation *op : llvm::reverse(dead))
    op->erase();
  for (auto [argument, type] : llvm::zip_equal(function.getArguments(), types))
    argument.setType(type);
  OpBuilder b(function.getContext());
  function.setFunctionType(b.getFunctionType(types, function.getResultTypes()));
  return success();
}

LogicalResult segue::lowerToLLVM(ModuleOp module) {
  PassManager passes(module.getContext(), ModuleOp::getOperationName());
  passes.enableVerifier(false);
  passes.addPass(createSCFToControlFlowPass());
  passes.addPass(createConvertMathToLLVMPass());
  passes.addPass(createConvertFuncToLLVMPass());
  passes.addPass(createArithToLLVMConversionPass());
  passes.addPass(createConvertControlFlowToLLVMPass());
  passes.addPass(createReconcileUnrealizedCastsPass());
  if (failed(passes.run(module)))
    return failure();
  // The passes carry the annotation along as an attribute that the translation
  // to LLVM IR does not know; on the branch it has its own place.
  module.walk([](LLVM::BrOp branch) {
    if (auto annotation = branch->getAttrOfType<LLVM::LoopAnnotationAttr>(kLoopAnnotation)) {
      branch->removeAttr(kLoopAnnotation);
      branch.setLoopAnnotationAttr(annotation);
    }
  });
  return success();
}
