//===- RandomGraph.h - graphs of slices, pads and sums ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Draws the text of a @forward of smooth ops in f32 on tensors of one to four
// dimensions of odd sizes: tensors that are written slice by slice, pads with
// edges and holes, concats, sums of many addends, reductions, products. Backward
// programs of such graphs are large kernels that are cut at many edges and have
// many results, which is where kernels go wrong. RandomModel draws small models
// of all ops, to be cut in modules.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_RANDOMGRAPH_H
#define SEGUE_TEST_STITCH_RANDOMGRAPH_H

#include <cstdint>
#include <string>

namespace segue::test {

struct RandomGraph {
  std::string text;
  /// Elements of all values: about what interpreting it costs.
  int64_t elements = 0;
};

/// The graph of `seed`. Every eighth is as wide as the tensors of a recurrence:
/// [2, 17 to 24, 64], written slice by slice.
RandomGraph drawGraph(uint64_t seed);

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_RANDOMGRAPH_H
