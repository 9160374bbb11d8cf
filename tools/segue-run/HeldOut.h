//===- HeldOut.h - the loss on bytes that are not learnt --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `segue-run train --eval-data`: the mean loss over all whole batches of a text,
// by inference, which changes nothing that training reads. Ranks share the batches
// out and add up in their order, so that the mean has the same bits on any number.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_HELDOUT_H
#define SEGUE_TOOLS_SEGUERUN_HELDOUT_H

#include "ByteWindows.h"
#include "Commands.h"
#include <functional>
#include <optional>

namespace segue::tool {

class HeldOut {
public:
  /// Opens --eval-data. `fixed` are the inputs that all batches share. Throws what ByteWindows throws, InvalidArgument
  /// where the text has no whole batch, or where a module before the last has a loss, which no evaluation gives.
  HeldOut(const Session &session, const TrainOptions &options, TensorMap fixed, std::shared_ptr<Collectives> ranks);

  /// Returns the mean. Every rank calls this, and gets the same. Nothing: `isOver` was true before the last batch, which
  /// is asked of one rank alone, as others would wait for what is left.
  std::optional<double> meanLoss(Session &session, const std::function<bool()> &isOver) const;

private:
  TensorMap fixed_;
  ByteWindows windows_;
  /// The ranks that share batches out; null for one, and in a pipeline, whose ranks evaluate each batch together.
  std::shared_ptr<Collectives> sharers_;
  bool mayStop_;
};

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_HELDOUT_H
