//===- ClusterGraph.h - an acyclic graph whose nodes merge ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Keeps a topological order while nodes are merged, as Pearce and Kelly keep it
// while edges are added (J. Exp. Algorithmics 11, 2006): a merge looks only at
// the nodes between the two in the order.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_CLUSTERGRAPH_H
#define SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_CLUSTERGRAPH_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include <vector>

namespace segue {

class ClusterGraph {
public:
  /// Makes a graph of nodes 0 to `size` - 1, in topological order.
  explicit ClusterGraph(unsigned size);

  /// An edge from an earlier to a later node; again is harmless.
  void addEdge(unsigned from, unsigned to);
  /// The node that `node` is part of by now.
  unsigned leader(unsigned node);
  /// Returns true if merging two leaders leaves the graph acyclic. Gives up, with false, on
  /// very large searches, so that forming kernels stays linear.
  bool canMerge(unsigned a, unsigned b);
  /// Merges two leaders for which `canMerge` holds; gives the new leader.
  unsigned merge(unsigned a, unsigned b);
  /// Returns the position of a leader in the topological order.
  unsigned position(unsigned node) const { return positions[node]; }
  /// All leaders in topological order.
  llvm::SmallVector<unsigned> order() const;

private:
  /// Finds the nodes after `from` and before `limit` that `from` leads to, by position.
  /// Returns false if there are too many.
  bool reach(unsigned from, unsigned limit, llvm::SmallVectorImpl<unsigned> &reached, bool &hitsLimit, unsigned skip);

  std::vector<unsigned> parents, positions, nodeAt;
  std::vector<llvm::SmallVector<unsigned, 4>> successors;
  std::vector<unsigned> visited;
  unsigned visit = 0;
};

} // namespace segue

#endif // SEGUE_LIB_DIALECT_SEGUE_TRANSFORMS_CLUSTERGRAPH_H
