//===- KernelClusters.h - which ops share a kernel --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Decides which ops of a block are computed by one kernel. Ops are of four kinds:
//
//   member   computed by exactly one kernel
//   view     reshape, transpose, broadcast, slice: part of whoever reads it
//   free     constants, counts and scalars of arguments: computed by each reader
//   barrier  all others: library calls, launches, terminators
//
// Members merge along the values between them, where a kernel of both has one
// shape and the order of the block stays possible.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_KERNELCLUSTERS_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_KERNELCLUSTERS_H

#include "ClusterGraph.h"
#include "mlir/IR/Block.h"
#include "segue/Conversion/SegueToLoops/SegueToLoops.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

namespace segue {

class KernelClusters {
public:
  enum class OpKind { Member, View, Free, Barrier };

  explicit KernelClusters(mlir::Block &block);

  /// Merges what may be merged.
  void run();

  /// A kernel, or a barrier, in an order in which they can be executed.
  struct Cluster {
    /// Ops in the order of the block.
    llvm::SmallVector<mlir::Operation *> ops;
    bool isBarrier = false;
  };
  llvm::SmallVector<Cluster> clusters();
  OpKind kindOf(mlir::Operation *op) const { return kinds.lookup(op); }

private:
  /// The relation of a reader's index to that of what it reads.
  enum class Relation {
    /// The element itself.
    Same,
    /// The row of the element, for rows of `cols`.
    Row,
    /// Any other, known when compiling.
    Other,
    /// The place is found in memory.
    Dynamic,
  };
  struct Read {
    mlir::Value source;
    Relation relation = Relation::Same;
    int64_t cols = 1;
    /// The number of elements of the reader's index.
    int64_t elements = 1;
  };
  struct Node {
    llvm::SmallVector<mlir::Operation *> ops;
    KernelShape shape;
    bool isBarrier = false;
    /// The values that its ops join, each of which is an input.
    size_t joined = 0;
    /// True if it has nothing but elementwise ops.
    bool isElementwise = true;
    /// The parameter that its ops update; null for others. The two share no kernel: an update
    /// writes over what others read, in the block of its parameter.
    Attribute update;
    /// Reads rows of a parameter that are found by an index. Its ops share no kernel with ops of
    /// another block, in which all of that parameter would have to be.
    bool readsTable = false;
  };
  using Edge = std::pair<mlir::Operation *, Read>;

  void classify(mlir::Operation *op);
  bool isFreeScalar(mlir::Operation *op);
  KernelShape shapeOf(mlir::Operation *op);
  Read readOf(mlir::Operation *reader, unsigned operand);
  mlir::Value throughViews(mlir::Value value);
  Relation relate(mlir::OpOperand &operand, mlir::Value &source, int64_t elements, int64_t &cols);
  unsigned leaderOf(mlir::Operation *op) { return graph->leader(numbers.lookup(op)); }
  /// The members and barriers that read a value, through views and free ops.
  llvm::SmallVector<mlir::Operation *> readersOf(mlir::Value value);

  llvm::SmallVector<Edge> edgesBetween(unsigned from, unsigned to);
  static bool isOfTable(const Read &read);
  /// Returns true unless something other than shape and order keeps two nodes apart.
  static bool mayShare(const Node &a, const Node &b);
  bool tryMerge(unsigned producer, unsigned consumer);
  bool tryMergeSiblings(unsigned a, unsigned b);
  /// The shape of a kernel of both; `inlined` tells that the producer is
  /// computed at the indices of its readers.
  std::optional<KernelShape> joinAlong(unsigned producer, unsigned consumer, llvm::ArrayRef<Edge> edges,
                                       bool &isInlined);
  static std::optional<KernelShape> joinRows(const KernelShape &a, const KernelShape &b);
  bool escapes(unsigned producer, unsigned consumer);
  void merge(unsigned a, unsigned b, const KernelShape &shape);
  void mergeSiblings();

  mlir::Block &block;
  llvm::DenseMap<mlir::Operation *, OpKind> kinds;
  llvm::DenseMap<mlir::Operation *, unsigned> numbers;
  /// Members and barriers in the order of the block.
  llvm::SmallVector<mlir::Operation *> ops;
  std::vector<Node> nodes;
  /// Ops that are computed at other indices than those of their kernel.
  llvm::DenseSet<mlir::Operation *> inlinedOps;
  std::vector<llvm::SmallVector<Read, 3>> reads;
  std::optional<ClusterGraph> graph;
};

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_KERNELCLUSTERS_H
