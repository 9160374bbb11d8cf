//===- Argsort.cpp - places of elements in their sorted rows --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The operation of segue.argsort (SegueLibraryOps.td). It reads rows and writes the
// places, and a workspace that the program has counted with its other buffers; its numbers
// are `descending` and `first`. Rows are sorted side by side, each by one thread, in memory
// of its own in the workspace (RowOrder.h).
//
//===----------------------------------------------------------------------===//

#include "Argsort.h"
#include "LibraryPlans.h"
#include "RowOrder.h"
#include <bit>
#include <span>

namespace segue::inline runtime {
namespace {

/// Calls with fewer elements run on one thread.
constexpr int64_t kSerialElements = 1 << 14;

class Argsort final : public LibraryPlan {
public:
  Argsort(const ArgsortSpec &spec, const Threads &threads) : spec_(spec), threads_(threads) {}

  void run(std::span<void *const> tensors) const override {
    if (spec_.rows == 0 || spec_.length == 0 || spec_.count == 0)
      return;
    const auto *x = static_cast<const std::byte *>(tensors[0]);
    auto *result = static_cast<int64_t *>(tensors[1]);
    auto *space = static_cast<uint64_t *>(tensors[2]);
    uint64_t rowBytes = uint64_t(spec_.length) * byteSize(spec_.element);
    bool isSerial = threads_.count() == 1 || spec_.rows * spec_.length < kSerialElements;
    // An item has a row of the workspace for itself. There are a few for each thread, since threads may come late.
    int64_t items = isSerial ? 1 : std::min({spec_.slots, spec_.rows, int64_t(4) * threads_.count()});
    auto sortRows = [&](int64_t item, int64_t) {
      for (int64_t row = spec_.rows * item / items; row < spec_.rows * (item + 1) / items; ++row)
        writeOrder({spec_.element, x + uint64_t(row) * rowBytes, spec_.length, spec_.descending}, spec_.first,
                   spec_.count, result + row * spec_.count, space + item * spec_.length);
    };
    if (items > 1)
      return threads_.forEachItem(items, sortRows);
    sortRows(0, 0);
  }

private:
  ArgsortSpec spec_;
  Threads threads_;
};
} // namespace

//===----------------------------------------------------------------------===//
// The call
//===----------------------------------------------------------------------===//

ArgsortSpec readArgsort(const LibraryCallSpec &spec) {
  const LibraryTensor &x = spec.reads[0];
  int64_t rows = 1;
  for (size_t dim = 0; dim + 1 < x.shape.size(); ++dim)
    rows *= x.shape[dim];
  return {x.element, rows, x.shape.back(), spec.numbers[1], spec.writes[0].shape.back(), spec.numbers[0] != 0,
          spec.writes[1].shape[0]};
}

static std::string findArgsortProblem(const LibraryCallSpec &spec) {
  if (spec.reads.size() != 1 || spec.writes.size() != 2)
    return std::to_string(spec.reads.size()) + " operands and " + std::to_string(spec.writes.size()) +
           " results; it takes one and gives places and a workspace";
  if (spec.numbers.size() != 2 || spec.numbers[0] < 0 || spec.numbers[0] > 1 || spec.numbers[1] < 0)
    return "numbers " + listed(spec.numbers) + "; they are 0 or 1, and the first place that is wanted";
  const LibraryTensor &x = spec.reads[0], &result = spec.writes[0], &space = spec.writes[1];
  if (result.element != ElementType::i64 || space.element != ElementType::i64)
    return "places of " + std::string(name(result.element)) + " and a workspace of " + std::string(name(space.element)) +
           "; both are i64";
  bool fits = !x.shape.empty() && result.shape.size() == x.shape.size() &&
              std::equal(x.shape.begin(), x.shape.end() - 1, result.shape.begin());
  if (!fits)
    return "places of shape " + listed(result.shape) + " in rows of " + listed(x.shape);
  int64_t length = x.shape.back();
  if (length >= int64_t(1) << 31)
    return "rows of " + std::to_string(length) + " elements; they have fewer than 2^31";
  if (result.shape.back() > length - std::min(spec.numbers[1], length))
    return std::to_string(result.shape.back()) + " places from " + std::to_string(spec.numbers[1]) + " on, in rows of " +
           std::to_string(length);
  if (space.shape.size() != 2 || space.shape[0] < 1 || space.shape[1] != length)
    return "a workspace of " + listed(space.shape) + " for rows of " + std::to_string(length) + " elements";
  return {};
}

/// Comparisons, of which each element takes part in as many as its row can be halved.
static uint64_t flopsOfArgsort(const LibraryCallSpec &spec) {
  ArgsortSpec call = readArgsort(spec);
  return countedFlops(double(call.rows) * double(call.length) * double(std::bit_width(uint64_t(call.length))));
}

static std::shared_ptr<const LibraryPlan> planArgsort(const LibraryCallSpec &spec, const LibraryTools &tools) {
  return std::make_shared<Argsort>(readArgsort(spec), tools.threads);
}

std::span<const LibraryOperation> operationsOfArgsort() {
  static constexpr LibraryOperation operations[] = {{"argsort", findArgsortProblem, flopsOfArgsort, planArgsort}};
  return operations;
}

} // namespace segue::inline runtime
