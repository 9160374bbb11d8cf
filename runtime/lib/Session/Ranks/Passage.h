//===- Passage.h - a batch on its way through a stage -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_RANKS_PASSAGE_H
#define SEGUE_RUNTIME_LIB_SESSION_RANKS_PASSAGE_H

#include "PipelineStages.h"
#include "SharedSession.h"

namespace segue::inline runtime {

/// A Hop is a tensor that one move sends to another rank or receives from there.
struct Hop {
  std::shared_ptr<const TensorDesc> desc;
  int other;
};

/// A Passage is what a batch brings into a stage and takes out of it: values, and places on the tape for their
/// gradients.
struct SharedSession::Passage {
  /// The values that cross to this stage, and to the next one.
  std::vector<Crossing> in, out;
  /// The tensors of each, where they are under way.
  std::vector<Tensor> received, sent;
  std::vector<GradientTape::ValueId> receivedIds, sentIds;
  /// After backward, the gradients of what was received; null where there is none.
  std::vector<Tensor> gradients;
  /// The parts of gradients that this stage sends to the ranks which update the parameters, and those that come for its
  /// own.
  std::vector<GradientPart> parts;

  /// Puts what was received in the place of outputs of modules that other ranks run.
  void enter(std::span<const Module> modules, GradientTape &tape, std::vector<std::vector<Tensor>> &outputs,
             std::vector<std::vector<GradientTape::ValueId>> &ids);
  /// Takes what the next stage is sent.
  void leave(const std::vector<std::vector<Tensor>> &outputs,
             const std::vector<std::vector<GradientTape::ValueId>> &ids);
  /// Takes the gradients that other stages are sent.
  void takeGradients(GradientTape &tape);
  /// Returns what comes to a rank, or goes, in a move of the batch that is neither forward nor backward.
  std::vector<Hop> hops(PipelineAct act, int rank) const;
};

/// Neighbours are the ranks before this one and behind it, and those that have parameters of its stage, too; and what
/// goes there and comes from there.
class Neighbours {
public:
  Neighbours(const DeviceRef &device, Collectives &ranks) : device_(device), ranks_(ranks) {}

  /// Begins a move, in which tensors come or go.
  void begin() { count_ = 0; }
  /// Returns memory of the device for a tensor that comes.
  Tensor receive(const TensorDesc &desc, std::string name, int from);
  /// Sends a tensor as `desc` says; zeros for a null tensor.
  void send(const Tensor &tensor, const std::shared_ptr<const TensorDesc> &desc, int to);
  /// Serves the rest of a move, of these tensors in all, for a rank that goes on with nothing; and begins the next one.
  void serve(std::span<const Hop> hops, bool sends);
  /// Blocks until all that was served is done.
  void wait();

private:
  const DeviceRef &device_;
  Collectives &ranks_;
  /// The tensors of the move at hand that are on their way.
  size_t count_ = 0;
  Fence done_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_RANKS_PASSAGE_H
