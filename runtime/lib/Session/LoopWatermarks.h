//===- LoopWatermarks.h - what a loop's steps have to spare -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The high watermark under which the saved values of a loop's next step stay. In
// the first steps everything leaves, which takes least. Once an order of programs
// has come twice and the budget has S bytes more than the peak of such a step, saved
// values of S bytes may stay in the next one: no moment of it takes more than S
// above the same moment before. A tensor stays, or comes back ahead of its need,
// while less than the watermark is in use; with the watermark S above the least that
// was in use at a save or a restore, those that are there beside what a step needs
// anyway are never more than S.
//
// Orders are known by their first program. A step that departs from the order that
// was seen has everything leave from there on, and its order has to come twice. One
// that finds no memory ends what was learnt of its order for good.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_LOOPWATERMARKS_H
#define SEGUE_LIB_SESSION_LOOPWATERMARKS_H

#include "LoopOrder.h"
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace segue::inline runtime {

class LoopWatermarks {
public:
  using Key = LoopProgram;
  /// Whatever is in use is above this watermark.
  static constexpr uint64_t everythingLeaves = 1;

  explicit LoopWatermarks(uint64_t budgetBytes) : budgetBytes_(budgetBytes) {}

  void beginStep();
  /// The step goes by a plan, and what leaves the plan has all leave.
  void depart() { follows_ = false; }
  /// Returns the high watermark from now on, where it changes.
  std::optional<uint64_t> onSubmit(Key program);
  /// Notes that a tensor of so many bytes is saved, or asked for, while `usedBytes` are in use.
  void onSave(uint64_t usedBytes, uint64_t bytes);
  void onRestore(uint64_t usedBytes);
  /// Ends the step, which has taken `peakBytes` at most.
  void endStep(uint64_t peakBytes);
  void abortStep(bool isOutOfMemory);

private:
  struct Order {
    std::vector<Key> programs;
    uint64_t high = everythingLeaves;
    bool isGivenUp = false;
  };
  Order *expected();

  uint64_t budgetBytes_;
  std::map<Key, Order> orders_;
  /// The programs of the step that runs, so far.
  std::vector<Key> programs_;
  bool follows_ = false, hasRestored_ = false;
  uint64_t high_ = everythingLeaves, leastUsed_ = UINT64_MAX, largest_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_LOOPWATERMARKS_H
