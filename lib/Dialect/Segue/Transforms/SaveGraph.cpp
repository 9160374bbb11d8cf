//===- SaveGraph.cpp - the choice of what to save, as plain data ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A choice is a cut of this network. A value has two nodes: `made` on the sink
// side says that backward makes it, `used` there says that backward has it. To
// have a value without making it is to keep it: the edge made -> used costs its
// bytes. An op on the sink side is run again: the edge source -> op costs its
// flops. Infinite edges say what follows from what: a made value runs its op,
// a run op uses its operands, a needed value is used.
//
//===----------------------------------------------------------------------===//

#include "segue/Dialect/Segue/Transforms/SaveGraph.h"

#include "segue/Dialect/Segue/Transforms/MinCut.h"

#include "llvm/ADT/STLExtras.h"

using namespace segue;

/// Returns a * b, or the largest finite capacity.
static int64_t finiteProduct(int64_t a, int64_t b) {
  constexpr int64_t limit = MinCut::kInfinite / (1 << 20);
  return b != 0 && a > limit / b ? limit : a * b;
}

std::vector<bool> segue::chooseSaved(const SaveGraph &graph, int64_t flopsPerByte) {
  MinCut network;
  unsigned source = network.addNode(), sink = network.addNode();
  std::vector<unsigned> made, used, run;
  for (const SaveGraph::Value &value : graph.values) {
    made.push_back(network.addNode());
    used.push_back(network.addNode());
    network.addEdge(made.back(), used.back(), finiteProduct(value.bytes, flopsPerByte));
    if (value.needed)
      network.addEdge(used.back(), sink, MinCut::kInfinite);
    if (value.producer < 0)
      network.addEdge(source, made.back(), MinCut::kInfinite);
  }
  for (const SaveGraph::Op &op : graph.ops) {
    run.push_back(network.addNode());
    network.addEdge(source, run.back(), op.mayRecompute ? finiteProduct(op.flops, 1) : MinCut::kInfinite);
    for (unsigned operand : op.operands)
      network.addEdge(used[operand], run.back(), MinCut::kInfinite);
  }
  for (auto [index, value] : llvm::enumerate(graph.values))
    if (value.producer >= 0)
      network.addEdge(run[value.producer], made[index], MinCut::kInfinite);

  network.solve(source, sink);
  // The cut also parts what nobody needs, where that is free. Walk back from
  // what is needed and keep what is met.
  std::vector<bool> kept(graph.values.size()), visited(graph.values.size());
  std::vector<unsigned> work;
  for (size_t index = 0; index < graph.values.size(); ++index)
    if (graph.values[index].needed)
      work.push_back(index);
  while (!work.empty()) {
    unsigned index = work.back();
    work.pop_back();
    if (visited[index])
      continue;
    visited[index] = true;
    if (network.isOnSourceSide(made[index]))
      kept[index] = true;
    else
      llvm::append_range(work, graph.ops[graph.values[index].producer].operands);
  }
  return kept;
}
