//===- ClusterGraph.cpp - an acyclic graph whose nodes merge --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ClusterGraph.h"
#include "llvm/ADT/STLExtras.h"
#include <numeric>

using namespace segue;

/// The number of nodes that one search may see.
constexpr size_t kSearchLimit = 4096;
/// A position that holds no node any more.
constexpr unsigned kNobody = ~0u;

ClusterGraph::ClusterGraph(unsigned size)
    : parents(size), positions(size), nodeAt(size), successors(size), visited(size, 0) {
  std::iota(parents.begin(), parents.end(), 0);
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(nodeAt.begin(), nodeAt.end(), 0);
}

void ClusterGraph::addEdge(unsigned from, unsigned to) {
  if (from != to && !llvm::is_contained(successors[from], to))
    successors[from].push_back(to);
}

unsigned ClusterGraph::leader(unsigned node) {
  while (parents[node] != node)
    node = parents[node] = parents[parents[node]];
  return node;
}

bool ClusterGraph::reach(unsigned from, unsigned limit, llvm::SmallVectorImpl<unsigned> &reached, bool &hitsLimit,
                         unsigned skip) {
  hitsLimit = false;
  ++visit;
  llvm::SmallVector<unsigned> work = {from};
  while (!work.empty()) {
    unsigned node = work.pop_back_val();
    for (unsigned raw : successors[node]) {
      unsigned next = leader(raw);
      if (next == from || (node == from && next == skip))
        continue;
      if (next == skip)
        hitsLimit = true;
      if (positions[next] >= limit || visited[next] == visit)
        continue;
      visited[next] = visit;
      reached.push_back(next);
      if (reached.size() > kSearchLimit)
        return false;
      work.push_back(next);
    }
  }
  return true;
}

bool ClusterGraph::canMerge(unsigned a, unsigned b) {
  if (positions[a] > positions[b])
    std::swap(a, b);
  llvm::SmallVector<unsigned> reached;
  bool cycle = false;
  return reach(a, positions[b], reached, cycle, b) && !cycle;
}

unsigned ClusterGraph::merge(unsigned a, unsigned b) {
  if (positions[a] > positions[b])
    std::swap(a, b);
  llvm::SmallVector<unsigned> reached;
  bool cycle = false;
  reach(a, positions[b], reached, cycle, b);

  // The nodes between the two are ordered: first those that do not depend on `a`, then the
  // merged node, then those that do.
  unsigned low = positions[a], high = positions[b];
  llvm::SmallVector<unsigned> before, after, slots;
  for (unsigned at = low; at <= high; ++at) {
    unsigned node = nodeAt[at];
    if (node == kNobody)
      continue;
    slots.push_back(at);
    nodeAt[at] = kNobody;
    if (node == a || node == b)
      continue;
    (visited[node] == visit ? after : before).push_back(node);
  }
  parents[a] = b;
  successors[b].append(successors[a].begin(), successors[a].end());
  successors[a].clear();
  // Targets that merged meanwhile are one edge now.
  for (unsigned &target : successors[b])
    target = leader(target);
  llvm::sort(successors[b]);
  successors[b].erase(std::unique(successors[b].begin(), successors[b].end()), successors[b].end());
  llvm::erase(successors[b], b);

  before.push_back(b);
  before.append(after.begin(), after.end());
  for (auto [node, at] : llvm::zip(before, slots)) {
    positions[node] = at;
    nodeAt[at] = node;
  }
  return b;
}

llvm::SmallVector<unsigned> ClusterGraph::order() const {
  llvm::SmallVector<unsigned> nodes;
  for (unsigned node : nodeAt)
    if (node != kNobody)
      nodes.push_back(node);
  return nodes;
}
