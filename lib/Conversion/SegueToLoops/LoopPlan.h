//===- LoopPlan.h - which loops a kernel has --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Decides, before anything is written, how rows and columns are split in
// loops, which values of an earlier level are kept in a row buffer, and how each
// operand is accessed. It walks the region as the element builder will.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CONVERSION_SEGUETOLOOPS_LOOPPLAN_H
#define SEGUE_LIB_CONVERSION_SEGUETOLOOPS_LOOPPLAN_H

#include "segue/Conversion/SegueToLoops/IndexSpace.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include <set>

namespace segue {

/// Finds where the op that makes an element reads its operands, by the interface of the op.
/// Returns false if a loop must be split first.
bool readsOf(mlir::Operation *op, IndexSpace &space, const IndexExpr &index, llvm::SmallVectorImpl<KernelRead> &reads);

class LoopPlan {
public:
  struct Loop {
    unsigned variable;
    int64_t extent;
    /// The indices at which the loop is cut in segments: 0, ..., extent.
    llvm::SmallVector<int64_t> bounds;
  };
  struct Access {
    std::set<IndexExpr> indices;
    int64_t lastLevel = 0;
  };
  enum class ResultKind { Element, Row, Chunk };
  /// Nested loops are what a processor walks through: a loop is split or cut where an index needs it. Threads divide a flat
  /// index instead, and keep nothing of a row, so that there is one loop over rows and one over columns.
  enum class Form { Nested, Threads };

  static mlir::FailureOr<LoopPlan> make(FusedOp fused, Form form = Form::Nested);

  Form form = Form::Nested;
  KernelShape shape;
  /// A Map whose columns are the range itself: no rows, one loop, no extent.
  bool flat = false;
  IndexSpace space;
  llvm::SmallVector<Loop> rowLoops, columnLoops;
  /// The index of the row; of the element at (row, column); of the column alone.
  IndexExpr row, element, column;

  int64_t levels = 1;
  llvm::DenseMap<mlir::Value, int64_t> level;
  /// The values that are kept in a row buffer, written by the level given and read by later ones.
  llvm::MapVector<mlir::Value, int64_t> buffered;
  /// The results that later levels read back.
  llvm::DenseMap<mlir::Value, unsigned> stored;
  llvm::DenseMap<mlir::Value, Access> accesses;
  llvm::SmallVector<ResultKind> results;
  llvm::DenseSet<mlir::Value> dependsOnReduce;

  /// Row reductions, and reductions over the rows of a chunk or of all rows.
  llvm::SmallVector<ReduceOp> rowReduces, columnReduces;

private:
  mlir::LogicalResult classify(FusedOp fused);
  bool coversAll() const;
  void makeSpace(llvm::ArrayRef<int64_t> rowExtents, llvm::ArrayRef<int64_t> columnExtents);
  /// One walk over all that is computed; false if the loops must change.
  bool walk(mlir::Block &body);
  bool walkSegments(mlir::Block &body, size_t loop);
  bool walkRoots(mlir::Block &body);
  bool visit(mlir::Value value, const IndexExpr &index);
  int64_t cost(mlir::Value value);

  std::map<unsigned, std::set<int64_t>> wantedBounds;
  std::map<unsigned, std::set<int64_t>> columnBounds;
  std::set<std::pair<const void *, IndexExpr>> seen;
  /// The values at `element` and the level that computes them first.
  llvm::DenseMap<mlir::Value, int64_t> firstLevel;
  int64_t currentLevel = 0;
  llvm::DenseMap<mlir::Value, int64_t> costs;
};

} // namespace segue

#endif // SEGUE_LIB_CONVERSION_SEGUETOLOOPS_LOOPPLAN_H
