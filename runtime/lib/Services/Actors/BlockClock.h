//===- BlockClock.h - measures the parts of a step --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Measures what the compute queue needs for each block, and for the rest of each
// phase, without its waits for copies. It takes two entries of the queue per
// block, in two steps in a row: the second and third, and again after 50, 150,
// 350... more, as a plan that was made of it once seldom has to change. Of two
// measurements the lesser counts, since disturbances only add. One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_BLOCKCLOCK_H
#define SEGUE_LIB_SERVICES_ACTORS_BLOCKCLOCK_H

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/MeasuredStep.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <atomic>
#include <memory>

namespace segue::inline runtime {

/// A CopyWait tells how long the compute queue stood still for a copy; the queue writes it.
struct CopyWait {
  std::atomic<bool> isLate{false};
  Timestamp begin, end;
  double seconds() const { return isLate ? end.seconds() - begin.seconds() : 0; }
};

/// Makes the compute queue wait for what writes `tensor`, as the next reader will, and look
/// at the clock. Returns null on a device without a queue whose waits could be seen. `mark`
/// gets the position of the last entry.
std::shared_ptr<CopyWait> watchCopy(Device &device, const Tensor &tensor, uint64_t &mark);

/// Blocks until `copy` is done. What compute has to do may come to its end meanwhile; the
/// result tells for how long. `mark` and null are as for watchCopy.
std::shared_ptr<CopyWait> waitForCopy(Device &device, const Fence &copy, uint64_t &mark);

/// Begins a stretch that is no part of a block: all that the compute queue runs from here to
/// BlockClock::addRun. Null as for watchCopy.
std::shared_ptr<CopyWait> beginRun(Device &device);

class BlockClock {
public:
  explicit BlockClock(Device &device) : device_(device) {}

  void beginStep();
  void onPhase();
  void onBlockBegin();
  void onBlockEnd();
  /// Notes that a tensor that was brought is needed next.
  void onNeed(const Tensor &tensor);
  /// Adds a wait that somebody else watched; null adds nothing.
  void addWait(std::shared_ptr<const CopyWait> wait);
  /// Ends the stretch that `run` began, unless it is null, behind the work that is queued.
  void addRun(std::shared_ptr<CopyWait> run);
  /// Blocks until the compute queue has come to the last mark.
  void endStep();
  void abortStep() { isOn_ = false; }
  /// Forgets what was measured, as the next steps are others.
  void forget();

  /// Returns, once, the times that two steps have shown.
  std::optional<MeasuredStep> take();

private:
  /// Notes that part `part` begins, or goes on.
  void mark(size_t part);

  Device &device_;
  uint64_t steps_ = 0, next_ = 1, pause_ = 50;
  bool isOn_ = false;
  /// The times at which the compute queue came to each mark.
  std::vector<TimestampRef> marks_;
  /// The part from each mark on, indices into measured_.
  std::vector<size_t> parts_, open_;
  struct Part {
    bool isBlock;
    double seconds = 0;
  };
  std::vector<Part> measured_;
  std::vector<std::pair<size_t, std::shared_ptr<const CopyWait>>> waits_;
  uint64_t lastMark_ = 0;
  std::vector<Part> before_;
  std::optional<MeasuredStep> ready_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_BLOCKCLOCK_H
