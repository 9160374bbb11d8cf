//===- LoopEvents.h - what a loop does with tensors of others ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A loop's programs read weights, and make results, that are PyTorch's. Both the
// LoopBudget and the twin on which its steps are planned do with them what is written
// here, so that the twin takes the same memory.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_LOOPEVENTS_H
#define SEGUE_LIB_SESSION_LOOPEVENTS_H

#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Program/Module.h"

namespace segue::inline runtime {

/// A copy in `space`, which queued work fills.
Tensor copiedTo(const DeviceRef &device, const Tensor &tensor, Space space);

/// What the caller of a program gets lies in the host's memory.
Tensor handOut(const DeviceRef &device, Tensor tensor);
std::vector<Tensor> handOut(const DeviceRef &device, std::vector<Tensor> tensors);

/// Of the inputs of a module's forward, by position, those from which saved values can be computed
/// again as long as somebody holds these: what backward reads again, which its caller may not
/// change before, and of small weights a copy, as they may be changed. Null in the place of others.
std::vector<Tensor> lastingInputs(const Module &module, std::span<const Tensor> inputs);

/// Weights that lie on the host come with the block that reads them, and no copy of one outlives
/// it. Where they come ahead, those of the next block are on their way while one computes.
class LoopWeights {
public:
  explicit LoopWeights(DeviceRef device) : device_(std::move(device)) {}

  /// From the next program on.
  void comeAhead(bool ahead) { isAhead_ = ahead; }

  void on(const event::Submit &submit);
  void on(const event::OfferInput &offer);
  void on(const event::BlockBegin &begin);
  void on(const event::BlockInput &need);
  void on(const event::BlockEnd &end);
  /// The program has been given up.
  void forget();

private:
  void send(const Program &program, size_t block, bool mustCome);

  DeviceRef device_;
  BlockCursor cursor_;
  bool isAhead_ = false;
  /// By input of the program that runs: as its caller gave them, and those that are on their way.
  std::map<uint32_t, Tensor> given_, coming_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_LOOPEVENTS_H
