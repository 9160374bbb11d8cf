//===- KernelBuilder.h - writes the loops of a kernel -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// LoopBuilder.cpp writes loops, reductions and stores, GpuLoops.cpp what of them
// threads of a GPU share; ElementBuilder.cpp writes the computation of one element
// of a value at an index, as the ops of the region say in KernelModels.cpp. What does
// not depend on the variable of a loop is written before that loop.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOLOOPS_KERNELBUILDER_H
#define SEGUE_LIB_CONVERSION_SEGUETOLOOPS_KERNELBUILDER_H

#include "GpuSchedule.h"
#include "LoopPlan.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

namespace segue {

class KernelBuilder {
public:
  /// With a schedule the kernel is that of a thread of a GPU, without one that of a task of a processor.
  KernelBuilder(FusedOp fused, LoopPlan plan, std::optional<GpuSchedule> gpu = std::nullopt)
      : fused(fused), body(*fused.getBody().begin()), plan(std::move(plan)), gpu(gpu) {}

  mlir::FailureOr<LoopKernel> build(llvm::StringRef name, mlir::OpBuilder &builder);

  // For ops that say how they are computed: KernelModels.cpp, OwnLoops.cpp.

  /// A block that is being written, with what is known in it.
  struct Scope {
    explicit Scope(mlir::OpBuilder builder) : builder(builder) {}
    mlir::OpBuilder builder;
    std::map<std::pair<const void *, IndexExpr>, mlir::Value> elements;
    std::map<unsigned, mlir::Value> fallbacks;
    /// The indices that were brought inside, by index and extent: the variable of each, and whether it was inside before.
    std::map<std::pair<IndexExpr, int64_t>, std::pair<unsigned, mlir::Value>> clamped;
    std::map<int64_t, mlir::Value> constants;
    /// True inside of a condition, out of which nothing may move.
    bool guarded = false;
  };

  /// The element of `value` at the flat `index`, written where it is known first.
  /// Null once anything failed.
  mlir::Value element(mlir::Value value, const IndexExpr &index);
  /// The element that a reduction of this kernel has summed up.
  mlir::Value reducedElement(mlir::Operation *op, const IndexExpr &index, size_t scope);
  /// The element of the first of `reads` whose guards hold, or `otherwise`, known
  /// in scope number `scope`.
  mlir::Value chosenElement(llvm::ArrayRef<KernelRead> reads, mlir::Type type, size_t scope,
                            llvm::function_ref<mlir::Value(mlir::OpBuilder &)> otherwise);
  /// A checked index of a table with `rows` rows: 0 and an error status if bad.
  mlir::Value checkedIndex(mlir::Value indices, const IndexExpr &at, int64_t rows, size_t scope);
  /// A variable of indices whose value was found in `scope`, below `extent`.
  unsigned addVariable(mlir::Value value, int64_t extent, size_t scope);
  /// Brings `index` between 0 and `extent`. Returns the variable that it is there, and true, at run time, where it was
  /// inside. Null where the innermost loop walks along it: its elements would lie apart.
  std::optional<std::pair<unsigned, mlir::Value>> clampedIndex(const IndexExpr &index, int64_t extent);
  size_t scopeOf(mlir::Value value, const IndexExpr &index);
  mlir::Value materialize(const IndexExpr &index, size_t scope);
  mlir::Value constantIndex(int64_t value);
  mlir::OpBuilder &builderOf(size_t scope) { return scopes[scope]->builder; }
  /// Returns the builder for constants, which go before all loops.
  mlir::OpBuilder &front() { return scopes.front()->builder; }
  Scope &top() { return *scopes.back(); }
  size_t innermost() const { return scopes.size() - 1; }
  mlir::Value load(unsigned argument, mlir::Value index, mlir::Type type, mlir::OpBuilder &b);
  void store(mlir::Value value, unsigned argument, mlir::Value index, mlir::OpBuilder &b);
  /// True, at run time, where two arguments are one buffer; written before all loops.
  mlir::Value isSameBuffer(unsigned argument, unsigned other);
  /// Writes a loop in the innermost scope and its body in a new one. `parallel`
  /// marks it with `kParallelAttr`.
  llvm::SmallVector<mlir::Value>
  loop(mlir::Value low, mlir::Value high, int64_t step, mlir::ValueRange initial,
       llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::Value, mlir::ValueRange)> write, bool parallel = false);
  /// Defines the variables that a row index, or a column, stands for.
  void defineRow(mlir::Value row);
  void defineColumn(mlir::Value column);
  mlir::Value identity(ReduceKind kind, mlir::Type type, mlir::OpBuilder &b);
  mlir::Value combine(ReduceKind kind, mlir::Value sum, mlir::Value value, mlir::OpBuilder &b);
  /// The arguments of the kernel that `value` is stored to.
  llvm::SmallVector<unsigned> resultArgumentsOf(mlir::Value value);
  const LoopPlan &getPlan() const { return plan; }
  /// The tasks of one call: [begin, end).
  std::pair<mlir::Value, mlir::Value> getRange() const { return {begin, end}; }
  mlir::Location getLoc() const { return loc; }
  IndexSpace &getSpace() { return plan.space; }
  /// Notes that a value was asked for at an index that no loop can take apart.
  void fail() { failedToBuild = true; }
  bool hasFailed() const { return failedToBuild; }

private:
  //===--- ElementBuilder.cpp ---===//
  mlir::Value computeElement(mlir::Value value, const IndexExpr &index, size_t scope);
  mlir::Value choose(llvm::ArrayRef<KernelRead> reads, mlir::Type type,
                     llvm::function_ref<mlir::Value(mlir::OpBuilder &)> otherwise);
  size_t scopeOf(const IndexExpr &index);
  mlir::Value variableIn(unsigned variable, size_t scope);

  //===--- LoopBuilder.cpp ---===//
  /// Sums are what loops over columns add up: each begins with its identity, and `join` adds two of each.
  struct Sums {
    llvm::ArrayRef<mlir::Value> identities;
    llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::ValueRange, mlir::ValueRange)> join;
  };
  llvm::SmallVector<mlir::Value> columnLoop(size_t at, mlir::ValueRange initial,
                                            llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::ValueRange)> write,
                                            const Sums *sums = nullptr);
  void define(unsigned variable, mlir::Value value);
  void buildFlat();
  void buildRows();
  void buildRow(mlir::Value row, mlir::Value chunk);
  void buildLevel(int64_t level, mlir::Value chunk);
  void buildColumns();
  /// Stores all results of a column whose sums are known.
  void storeColumn(mlir::Value column);
  void buildOwn();
  void buildShape();
  /// Calls `write` for each of the columns that one iteration of a column loop computes: on a processor one. What is known of
  /// one column is forgotten before the next.
  void eachLane(llvm::function_ref<void()> write);
  unsigned resultArgument(unsigned result) { return fused.getInputs().size() + result; }
  void describe(LoopKernel &kernel);

  //===--- GpuLoops.cpp ---===//
  void beginOnGpu();
  void endOnGpu();
  void buildColumnsOnGpu();
  llvm::SmallVector<mlir::Value> threadLoop(mlir::ValueRange initial,
                                            llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::ValueRange)> write);
  /// The combination of one value of each thread of a team, in each of them; the order is the same on every run.
  mlir::Value teamReduce(ReduceKind kind, mlir::Value value);
  /// Waits until the threads of a team have come here, and what they wrote is seen.
  void teamBarrier();
  mlir::Value shared(int64_t elements, mlir::Type type);
  /// Writes what is done where `condition` holds alone.
  void where(mlir::Value condition, llvm::function_ref<void()> write);

  FusedOp fused;
  mlir::Block &body;
  LoopPlan plan;
  std::optional<GpuSchedule> gpu;
  mlir::func::FuncOp function;
  mlir::Location loc = fused.getLoc();
  llvm::SmallVector<Scope *> scopes;
  size_t rowScope = 0;
  int64_t currentLevel = 0;
  mlir::Value begin, end;
  /// On a GPU: the block, the thread in it and the thread in its team; and the first column of an iteration.
  mlir::Value block, thread, member, laneBase;
  /// One i64 that the first checked index makes.
  mlir::Value status;
  llvm::DenseMap<unsigned, size_t> variableScope;
  llvm::DenseMap<unsigned, mlir::Value> variableValue;
  llvm::DenseMap<mlir::Value, mlir::Value> buffers;
  /// The sums of column reductions in a block of columns from `blockStart`.
  llvm::DenseMap<mlir::Value, mlir::Value> columnSums;
  mlir::Value blockStart;
  bool columnEpilogue = false;
  bool failedToBuild = false;
  /// The products that were written for tensors of one element.
  llvm::SmallPtrSet<mlir::Operation *, 16> scalarProducts;
};

/// Returns the type as which an element is stored: i8 for i1.
mlir::Type memoryType(mlir::Type element);

/// The element type of a tensor.
inline mlir::Type elementOf(mlir::Value tensor) {
  return mlir::cast<mlir::RankedTensorType>(tensor.getType()).getElementType();
}

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOLOOPS_KERNELBUILDER_H
