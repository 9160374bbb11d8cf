//===- GradientReduction.h - gradients of ranks, added up -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Gradients travel in messages of several, in an order that is the same on every rank:
// that in which backward's blocks end. In the last backward of a step a message is given to
// the network as soon as its gradients are there and those before it are given, while
// backward goes on; the rest follows when backward has ended. A rank that cannot go on
// sends numbers that are none in the messages that are left, as the others wait for them.
//
// Where a gradient has an owner, the rank that updates the parameter, messages are for one
// owner each. Backward gives a gradient away then, until its message goes; who stands behind
// is told of it after that, on its owner, and everywhere else it is gone.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_GRADIENTREDUCTION_H
#define SEGUE_RUNTIME_LIB_SESSION_GRADIENTREDUCTION_H

#include "../GradientTape.h"
#include "ShardedStates.h"
#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Program/Module.h"

namespace segue::inline runtime {

class GradientReduction final : public ForwardEvents {
public:
  explicit GradientReduction(std::shared_ptr<Collectives> ranks) : ranks_(std::move(ranks)) {}

  /// Settles the messages for the gradients of these modules. With `owners`, the sum of a gradient is that of its owner
  /// alone. Both must outlive this.
  void plan(std::span<const Module> modules, const ParameterTable &table, const ShardedStates *owners = nullptr);
  /// A Message has the slots of its gradients, and the rank that gets their sums; none: all do.
  struct Message {
    std::vector<size_t> slots;
    std::optional<int> owner;
  };
  /// Returns the messages in their order.
  const std::vector<Message> &messages() const { return messages_; }
  /// Returns true if the sum of a gradient is for this rank.
  bool isForThis(size_t slot) const { return !owners_ || owners_->rankOf(slot) == ranks_->rank(); }

  /// Forgets what was sent in the step before.
  void beginStep();
  /// Is the sink of the last backward of a step, by `modules`, from here to endBackward(): it sends gradients that are
  /// final there. `next` is told of everything, before; may be null. `mayAdd` is false where a gradient that is the sum
  /// of several batches must not be made before backward has ended.
  void beginBackward(std::span<const Module> modules, GradientTape &tape, EventSink *next, bool mayAdd);
  /// Puts gradients that still wait for their message back on the tape, as backward has ended.
  void putBack();
  /// Forgets what waits for its message.
  void endBackward();
  /// Sends what has not been sent, `sums` by slot: dense, of f32, and nobody else's.
  void sendRest(std::span<const Tensor> sums);
  bool wasSent(size_t slot) const { return isSent_[slot]; }
  /// Returns how many messages of the step have been given to the network.
  size_t messagesSent() const { return next_; }
  /// Sends numbers that are none in the place of what has not been sent, until so many messages have been.
  void sendNothing(const DeviceRef &device, size_t until = SIZE_MAX);
  /// Returns the fence of all that was sent in the step.
  const Fence &sent() const { return sent_; }

  void receive(const Event &event) override;
  void on(const event::PhaseBegin &begin);
  void on(const event::Output &output);
  void on(const auto &other) { forward(other); }

private:
  /// A gradient that waits for its message, and the output of backward that it is, if nobody was told of that yet. The
  /// program is the module's: who runs it has one of its own, which is gone when backward has ended.
  struct Ready {
    Tensor gradient;
    const Program *program = nullptr;
    uint32_t output = 0;
  };
  struct Made {
    size_t slot;
    const Program *program;
  };
  /// Returns the slot whose gradient this is, which backward is the only one to make, and what makes it.
  std::optional<Made> madeBy(const event::Output &output) const;
  void sendReady();
  /// Puts what waits for a slot on the tape, or forgets it where the sum is another rank's.
  void giveSum(size_t slot);
  void putOnTape(size_t slot);

  std::shared_ptr<Collectives> ranks_;
  const ParameterTable *table_ = nullptr;
  const ShardedStates *owners_ = nullptr;
  std::vector<Message> messages_;
  /// The message that is next, and the gradients that wait for theirs, by slot.
  size_t next_ = 0;
  std::vector<Ready> ready_;
  std::vector<bool> isSent_;
  Fence sent_;
  std::span<const Module> modules_;
  GradientTape *tape_ = nullptr;
  bool mayAdd_ = false;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_GRADIENTREDUCTION_H
