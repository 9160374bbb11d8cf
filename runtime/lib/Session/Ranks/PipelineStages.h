//===- PipelineStages.h - which rank runs which modules ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// In a pipeline each rank has a run of the session's modules, its stage, and the batches of
// a step go through the stages one behind the other. Here is what follows from modules and
// wiring alone: who has which module, which values cross from a stage to the next one, and
// in which order a rank does what (1F1B: D. Narayanan et al., PipeDream-2BW and the flush
// schedule of Megatron-LM, 2021).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_PIPELINESTAGES_H
#define SEGUE_RUNTIME_LIB_SESSION_PIPELINESTAGES_H

#include "segue/runtime/Program/Module.h"
#include "segue/runtime/Session/Wiring.h"

namespace segue::inline runtime {

class PipelineStages {
public:
  /// Cuts the modules into a stage for each rank: of so many modules as `counts` says, or, where that is empty, so that
  /// the costliest stage is as cheap as can be. Throws InvalidArgument where that cannot be, or a stage has none.
  PipelineStages(std::span<const Module> modules, std::span<const size_t> counts, int ranks);

  int ranks() const { return int(ends_.size()); }
  size_t begin(int rank) const { return rank ? ends_[size_t(rank) - 1] : 0; }
  size_t end(int rank) const { return ends_[size_t(rank)]; }
  bool has(int rank, size_t module) const { return module >= begin(rank) && module < end(rank); }
  int rankOf(size_t module) const;

private:
  /// The end of each rank's modules, which is where the next one's begin.
  std::vector<size_t> ends_;
};

/// Cuts `costs` into so many runs, none of them empty, that the greatest sum of one is as small as can be. Returns the
/// end of each; there are as many costs as runs at least.
std::vector<size_t> cutEvenly(std::span<const double> costs, size_t runs);

/// A Crossing is a value that modules of one stage, or of those before, give and modules of later ones take. It goes
/// from stage to stage, so that neighbours alone send each other something, and its gradient comes back on the same
/// way: each stage adds its own to what the later ones have, in the order in which one rank would add them all.
struct Crossing {
  OutputRef value;
  /// The value as it is sent, dense; in the layout that the next module asks for, where that is dense.
  std::shared_ptr<const TensorDesc> desc;
  /// The gradient as it comes back; null where none does.
  std::shared_ptr<const TensorDesc> gradient;
};

/// Returns what crosses to the stage that begins with module `boundary`, in an order that is the same on both sides.
std::vector<Crossing> crossingsTo(size_t boundary, std::span<const Module> modules, const Wiring &wiring);

/// Returns the description of dense bytes for the gradient that backward of a module gives of an input or parameter;
/// null if it gives none.
std::shared_ptr<const TensorDesc> gradientSentOf(const Module &module, std::string_view of);

/// A GradientPart is what a module gives to the gradient of a parameter that it shares with one of another stage, whose
/// rank adds all parts up and updates the parameter.
struct GradientPart {
  size_t slot;
  /// The module within its stage, and the parameter among its own.
  size_t module, parameter;
  /// The part as it is sent, dense; whether this rank sends it, or gets it; and the other rank.
  std::shared_ptr<const TensorDesc> desc;
  bool isGiven;
  int other;
  /// The part, where it is under way.
  Tensor tensor;
};

/// A PipelineAct is one of the things that a rank does in a step, one after the other. `Receive` asks for what the stage
/// before sends of a batch, and `Forward` reads it. Parts of gradients come and go behind the gradients of what
/// crosses.
enum class PipelineAct : int8_t { Receive, Forward, Send, ReceiveGradient, Backward, SendGradient };

struct PipelineMove {
  PipelineAct act;
  size_t batch;
  bool operator==(const PipelineMove &) const = default;
};

/// Returns the moves of a rank for a step of so many batches. Every stage runs as many forwards ahead as there are
/// stages behind it, and then a backward for each forward, so that it has the activations of that many batches at most
/// and one. Messages of a rank go one after the other, and each is asked for just before it is needed: one that is
/// asked for earlier would hold those behind it back. Sends wait for nobody.
std::vector<PipelineMove> pipelineMoves(int rank, int ranks, size_t batches);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_PIPELINESTAGES_H
