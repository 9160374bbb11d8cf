//===- MinCut.cpp - minimum cut of a flow network -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Dinic (1970): breadth-first levels, then paths that go up one level with each
// edge, until no level graph reaches the sink. Walks are iterative: paths of a
// deep model are thousands of edges long.
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/Transforms/MinCut.h"

#include <algorithm>

using namespace segue;

unsigned MinCut::addNode() {
  outgoing.emplace_back();
  return outgoing.size() - 1;
}

void MinCut::addEdge(unsigned from, unsigned to, int64_t capacity) {
  outgoing[from].push_back(edges.size());
  edges.push_back({to, capacity});
  outgoing[to].push_back(edges.size());
  edges.push_back({from, 0});
}

bool MinCut::findLevels(unsigned source, unsigned sink) {
  level.assign(outgoing.size(), -1);
  std::vector<unsigned> queue{source};
  level[source] = 0;
  for (size_t head = 0; head < queue.size(); ++head)
    for (unsigned index : outgoing[queue[head]])
      if (const Edge &edge = edges[index]; edge.left > 0 && level[edge.to] < 0) {
        level[edge.to] = level[queue[head]] + 1;
        queue.push_back(edge.to);
      }
  return level[sink] >= 0;
}

/// Sends what fits along one path of the level graph; 0 if there is none left.
int64_t MinCut::pushPath(unsigned source, unsigned sink) {
  std::vector<unsigned> path;
  unsigned node = source;
  while (node != sink) {
    unsigned &at = next[node];
    while (at < outgoing[node].size() &&
           !(edges[outgoing[node][at]].left > 0 && level[edges[outgoing[node][at]].to] == level[node] + 1))
      ++at;
    if (at < outgoing[node].size()) {
      path.push_back(outgoing[node][at]);
      node = edges[path.back()].to;
      continue;
    }
    if (path.empty())
      return 0;
    // A dead end: go back and try the next edge.
    node = edges[path.back() ^ 1].to;
    path.pop_back();
    ++next[node];
  }
  int64_t amount = kInfinite;
  for (unsigned index : path)
    amount = std::min(amount, edges[index].left);
  for (unsigned index : path) {
    // An infinite edge stays infinite.
    if (edges[index].left < kInfinite)
      edges[index].left -= amount;
    edges[index ^ 1].left = std::min(kInfinite, edges[index ^ 1].left + amount);
  }
  return amount;
}

int64_t MinCut::solve(unsigned source, unsigned sink) {
  int64_t flow = 0;
  while (flow < kInfinite && findLevels(source, sink)) {
    next.assign(outgoing.size(), 0);
    while (int64_t amount = pushPath(source, sink)) {
      flow += amount;
      if (flow >= kInfinite)
        break;
    }
  }
  return flow;
}
