//===- SaveGraph.h - the choice of what to save, as plain data --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The middle of `segue-plan-saved`: a graph of values and ops in, a set of
// values out. No IR, so that the choice is tested by itself, against all
// subsets of small graphs.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_DIALECT_SEGUE_TRANSFORMS_SAVEGRAPH_H
#define SEGUE_DIALECT_SEGUE_TRANSFORMS_SAVEGRAPH_H

#include <cstdint>
#include <vector>

namespace segue {

struct SaveGraph {
  struct Value {
    /// The bytes that keeping it costs; 0 for what is there anyway.
    int64_t bytes = 0;
    /// The op that makes it; -1 for an argument, which cannot be recomputed.
    int producer = -1;
    /// True if backward uses it.
    bool needed = false;
  };
  struct Op {
    int64_t flops = 0;
    bool mayRecompute = true;
    /// The indices of the values that are its operands.
    std::vector<unsigned> operands;
  };
  std::vector<Value> values;
  std::vector<Op> ops;
};

/// Returns, per value, whether it is kept, such that every needed value is kept
/// or follows from kept ones by ops that may be recomputed, at least cost:
/// `flopsPerByte` times the bytes kept plus the flops recomputed. Of equal
/// choices it takes the one nearer to the arguments, so that a tensor is kept
/// rather than three views of it.
std::vector<bool> chooseSaved(const SaveGraph &graph, int64_t flopsPerByte);

} // namespace segue

#endif // SEGUE_DIALECT_SEGUE_TRANSFORMS_SAVEGRAPH_H
