//===- MinCut.h - minimum cut of a flow network -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Dinic's algorithm on integer capacities. Knows nothing of IR.
//
//   MinCut network;
//   unsigned s = network.addNode(), a = network.addNode(), t = network.addNode();
//   network.addEdge(s, a, 3);
//   network.addEdge(a, t, MinCut::kInfinite);
//   int64_t cost = network.solve(s, t);          // 3
//   network.isOnSourceSide(a);                   // false
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_TRANSFORMS_MINCUT_H
#define SEGUE_DIALECT_SEGUE_TRANSFORMS_MINCUT_H

#include <cstdint>
#include <limits>
#include <vector>

namespace segue {

class MinCut {
public:
  /// An edge that is never cut if there is another way.
  static constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

  unsigned addNode();
  /// Adds an edge. Capacities are not negative, and at most `kInfinite`.
  void addEdge(unsigned from, unsigned to, int64_t capacity);

  /// Finds a cheapest set of edges whose removal parts `source` from `sink`, and
  /// returns its cost; `kInfinite` or more if every cut has an infinite edge.
  int64_t solve(unsigned source, unsigned sink);

  /// Returns true, after `solve`, if `source` still reaches `node`. Of several cheapest
  /// cuts this is the one nearest to the source.
  bool isOnSourceSide(unsigned node) const { return level[node] >= 0; }

private:
  struct Edge {
    unsigned to;
    int64_t left;
  };

  bool findLevels(unsigned source, unsigned sink);
  int64_t pushPath(unsigned source, unsigned sink);

  /// The edges: edge 2k and its reverse 2k + 1.
  std::vector<Edge> edges;
  std::vector<std::vector<unsigned>> outgoing;
  std::vector<int> level;
  /// The first outgoing edge of each node that may still lead on.
  std::vector<unsigned> next;
};

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_TRANSFORMS_MINCUT_H
