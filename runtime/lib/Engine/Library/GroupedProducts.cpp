//===- GroupedProducts.cpp - products of groups of rows -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The operations of segue.grouped_dot, whose number is 1 where the matrices are
// transposed, and of segue.grouped_outer, which has none (SegueOps.td). Where the groups
// end is read when a call runs. A call is cut into blocks of results, each of one group;
// panels and inner loops are those of PanelMatmul.cpp. Sums are f32, in an order that
// depends on the groups alone.
//
//===----------------------------------------------------------------------===//

#include "GroupedProducts.h"
#include "FloatRows.h"
#include "LibraryPlans.h"
#include <span>

namespace segue::inline runtime {
namespace {

// As in PanelMatmul.cpp. A block has at most kMostRows rows, which share the packed columns.
constexpr int64_t kDepth = 384, kRows = 120, kColumns = 768, kMostRows = 4 * kRows;
/// Smaller calls run on one thread.
constexpr double kSerialFlops = 1e6;

/// A block of results, in the group of the rows [begin, end).
struct Block {
  int64_t group, begin, end, row, rows, column, columns;
};

struct Buffers {
  float *a, *b, *wide, *c;
};

/// A factor: its first element, and the elements from one row (column) and one of the depth to the next.
struct Factor {
  const void *first;
  int64_t step, depthStep;
};

class GroupedProduct final : public LibraryPlan {
public:
  GroupedProduct(const GroupedSpec &spec, const LibraryTools &tools)
      : spec_(spec), threads_(tools.threads), scratch_(tools.scratch), kernels_(tools.kernels) {
    serial_ = threads_.count() == 1 || spec.flops() < kSerialFlops;
    int64_t panel = kernels_.panel, panels = (spec.width + panel - 1) / panel;
    blockColumns_ = std::min(std::max<int64_t>(panels, 1) * panel, kColumns);
    // Narrower blocks where few groups keep few threads busy.
    while (!serial_ && spec.groups * ((spec.width - 1) / blockColumns_ + 1) < 3 * threads_.count() &&
           blockColumns_ > 4 * panel)
      blockColumns_ = (blockColumns_ / 2 + panel - 1) / panel * panel;
    ScratchCutter cutter;
    cut(cutter);
    scratch_->reserve(cutter.bytes());
  }

  void run(std::span<void *const> tensors) const override;

private:
  Buffers cut(ScratchCutter &cutter) const;
  std::vector<Block> blocksOf(const void *ends, int64_t &grouped) const;
  void runBlock(const Block &block, std::span<void *const> tensors, int64_t thread) const;

  GroupedSpec spec_;
  Threads threads_;
  std::shared_ptr<Scratch> scratch_;
  const VectorKernels &kernels_;
  bool serial_ = false;
  int64_t blockColumns_ = 0;
};
} // namespace

//===----------------------------------------------------------------------===//
// The call
//===----------------------------------------------------------------------===//

static bool isOuter(const LibraryCallSpec &spec) { return spec.operation == "grouped_outer"; }

GroupedSpec readGrouped(const LibraryCallSpec &spec) {
  const LibraryTensor &first = spec.reads[0], &second = spec.reads[1], &ends = spec.reads[2];
  bool outer = isOuter(spec), transposed = !outer && spec.numbers[0];
  int64_t rows = first.shape[0];
  int64_t width = outer ? second.shape[1] : second.shape[transposed ? 1 : 2];
  return {outer,         transposed, first.element, ends.element,  rows, ends.shape[0], outer ? first.shape[1] : rows,
          width, first.shape[1]};
}

static std::string findGroupedProblem(const LibraryCallSpec &spec) {
  bool outer = isOuter(spec);
  if (spec.reads.size() != 3 || spec.writes.size() != 1)
    return std::to_string(spec.reads.size()) + " operands and " + std::to_string(spec.writes.size()) +
           " results; it takes three and gives one";
  if (outer ? !spec.numbers.empty() : spec.numbers.size() != 1 || spec.numbers[0] < 0 || spec.numbers[0] > 1)
    return std::to_string(spec.numbers.size()) + (outer ? " numbers; it takes none" : " numbers; it takes one, 0 or 1");
  const LibraryTensor &first = spec.reads[0], &second = spec.reads[1], &ends = spec.reads[2], &result = spec.writes[0];
  for (const LibraryTensor *tensor : {&first, &second, &result})
    if (std::string problem = findElementsProblem(*tensor, first); !problem.empty())
      return problem;
  std::string shapes = listed(first.shape) + ", " + listed(second.shape) + " and " + listed(result.shape);
  if (first.shape.size() != 2 || second.shape.size() != (outer ? 2u : 3u) || result.shape.size() != (outer ? 3u : 2u))
    return "tensors of " + shapes + ", which have other dimensions than it takes";
  if (ends.shape.size() != 1 || (ends.element != ElementType::i32 && ends.element != ElementType::i64))
    return "ends of groups of " + listed(ends.shape) + " " + std::string(name(ends.element)) +
           "; it takes a vector of i32 or i64";
  GroupedSpec call = readGrouped(spec);
  std::vector<int64_t> wanted{call.rows, call.width};
  bool fits = second.shape[0] == call.groups && second.shape[call.transposed ? 2 : 1] == call.depth;
  if (outer) {
    wanted = {call.groups, call.height, call.width};
    fits = second.shape[0] == call.rows;
  }
  if (!fits || result.shape != wanted)
    return "tensors of " + shapes + " do not fit together in " + std::to_string(call.groups) + " groups";
  return {};
}

static uint64_t flopsOfGrouped(const LibraryCallSpec &spec) { return countedFlops(readGrouped(spec).flops()); }

//===----------------------------------------------------------------------===//
// The plan
//===----------------------------------------------------------------------===//

Buffers GroupedProduct::cut(ScratchCutter &cutter) const {
  int64_t depth = std::min(spec_.isOuter ? spec_.rows : spec_.depth, kDepth);
  int64_t rows = std::min(spec_.height, kMostRows);
  Buffers buffers{};
  buffers.a = cutter.floats(depth * kRows);
  buffers.b = cutter.floats(depth * blockColumns_);
  if (spec_.element != ElementType::f32) {
    buffers.wide = cutter.floats(depth * std::max(kRows, blockColumns_));
    buffers.c = cutter.floats(rows * blockColumns_);
  }
  return buffers;
}

/// The blocks of a call whose groups end at `ends`. `grouped`: how many rows have a group.
std::vector<Block> GroupedProduct::blocksOf(const void *ends, int64_t &grouped) const {
  std::vector<Block> blocks;
  int64_t begin = 0;
  for (int64_t group = 0; group < spec_.groups; ++group) {
    int64_t end = spec_.index == ElementType::i32 ? static_cast<const int32_t *>(ends)[group]
                                                  : static_cast<const int64_t *>(ends)[group];
    end = std::max(begin, std::min(end, spec_.rows));
    int64_t height = spec_.isOuter ? spec_.height : end - begin;
    for (int64_t row = 0; row < height; row += kMostRows)
      for (int64_t column = 0; column < spec_.width; column += blockColumns_)
        blocks.push_back({group, begin, end, row, std::min(kMostRows, height - row), column,
                          std::min(blockColumns_, spec_.width - column)});
    begin = end;
  }
  grouped = begin;
  return blocks;
}

void GroupedProduct::run(std::span<void *const> tensors) const {
  int64_t grouped;
  std::vector<Block> blocks = blocksOf(tensors[2], grouped);
  if (!spec_.isOuter)
    std::memset(advance(tensors[3], spec_.element, grouped * spec_.width), 0,
                size_t(spec_.rows - grouped) * size_t(spec_.width) * byteSize(spec_.element));
  auto lock = scratch_->lock();
  auto runOne = [&](int64_t index, int64_t thread) { runBlock(blocks[size_t(index)], tensors, thread); };
  if (!serial_)
    return threads_.forEachItem(int64_t(blocks.size()), runOne);
  FlushDenormals flush;
  for (size_t index = 0; index < blocks.size(); ++index)
    runOne(int64_t(index), 0);
}

void GroupedProduct::runBlock(const Block &block, std::span<void *const> tensors, int64_t thread) const {
  ScratchCutter cutter(scratch_->area(thread));
  Buffers buffers = cut(cutter);
  ElementType type = spec_.element;
  int64_t depth = spec_.isOuter ? block.end - block.begin : spec_.depth;
  // The first element of each operand and of the result that the block has a part in.
  int64_t aAt, bAt, cAt;
  Factor a, b;
  if (spec_.isOuter) {
    aAt = block.begin * spec_.height + block.row;
    bAt = block.begin * spec_.width + block.column;
    cAt = (block.group * spec_.height + block.row) * spec_.width + block.column;
    a = {nullptr, 1, spec_.height};
    b = {nullptr, 1, spec_.width};
  } else {
    aAt = (block.begin + block.row) * depth;
    bAt = block.group * depth * spec_.width + block.column * (spec_.transposed ? depth : 1);
    cAt = (block.begin + block.row) * spec_.width + block.column;
    a = {nullptr, depth, 1};
    b = spec_.transposed ? Factor{nullptr, depth, 1} : Factor{nullptr, 1, spec_.width};
  }
  a.first = advance(tensors[0], type, aAt);
  b.first = advance(tensors[1], type, bAt);
  void *target = advance(tensors[3], type, cAt);
  // 16-bit results are summed in f32 first.
  bool narrows = type != ElementType::f32;
  float *sums = narrows ? buffers.c : static_cast<float *>(target);
  int64_t sumStep = narrows ? block.columns : spec_.width;
  // Once at least: a group without rows sums up to zero.
  int64_t l = 0;
  do {
    int64_t count = std::min(kDepth, depth - l);
    packBlock(kernels_, type, advance(b.first, type, l * b.depthStep), block.columns, b.step, count, b.depthStep,
              buffers.wide, buffers.b, kernels_.panel);
    for (int64_t i = 0; i < block.rows; i += kRows) {
      int64_t rows = std::min(kRows, block.rows - i);
      packBlock(kernels_, type, advance(a.first, type, i * a.step + l * a.depthStep), rows, a.step, count, a.depthStep,
                buffers.wide, buffers.a, kernels_.tileRows);
      kernels_.multiplyPacked({.rows = rows,
                               .columns = block.columns,
                               .depth = count,
                               .a = buffers.a,
                               .aPanelStep = count * kernels_.tileRows,
                               .b = buffers.b,
                               .bPanelStep = count * kernels_.panel,
                               .bStep = kernels_.panel,
                               .c = sums + i * sumStep,
                               .cStep = sumStep,
                               .accumulate = l > 0});
    }
    l += kDepth;
  } while (l < depth);
  if (narrows)
    narrowRows(kernels_, type, block.rows, block.columns, sums, sumStep, target, spec_.width);
}

static std::shared_ptr<const LibraryPlan> planGrouped(const LibraryCallSpec &spec, const LibraryTools &tools) {
  return std::make_shared<GroupedProduct>(readGrouped(spec), tools);
}

std::span<const LibraryOperation> operationsOfGroupedProducts() {
  static constexpr LibraryOperation operations[] = {
      {"grouped_dot", findGroupedProblem, flopsOfGrouped, planGrouped},
      {"grouped_outer", findGroupedProblem, flopsOfGrouped, planGrouped},
  };
  return operations;
}

} // namespace segue::inline runtime
