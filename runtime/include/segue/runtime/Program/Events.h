//===- Events.h - what services are told ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The session and the executor report the course of a step to one sink. The
// memory services are behind it; without a sink the cost is one null check per
// event. Calls come from the thread that submits, between two commands, and must
// be short: what a command does has been queued then, not done.
//
// An event is data, of one of the kinds in the namespace `event`. A sink has a
// function for each kind that concerns it, and hands the others on or drops them:
//
//   class Keeper final : public EventSink {
//   public:
//     void receive(const Event &event) override { deliver(*this, event); }
//     void on(const event::Save &save) {                     // the device's bytes
//       save.saved = engine.toLayout(device, save.saved, pinned); // go back in
//     }                                                      // stream order
//     void on(const event::Restore &restore) {
//       restore.saved = fetched_[restore.saved.storage()->id()];
//     }
//   };
//
// What a sink answers, it writes through the references of the event. A new kind
// is a struct here and a line of `Event`; those whom it does not concern stay as
// they are.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_EVENTS_H
#define SEGUE_RUNTIME_PROGRAM_EVENTS_H

#include "segue/runtime/Program/Program.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <optional>
#include <span>
#include <variant>

namespace segue::inline runtime {

/// Returns whether `next` may come after `now` in one step (schemas/PhaseOrder.h).
bool canFollow(Phase now, Phase next);

namespace event {

/// A phase has begun. There is one event for all modules of the phase.
struct PhaseBegin {
  Phase phase;
  /// At StepBegin, the number of the step where somebody counts; 0 otherwise.
  int64_t step = 0;
};

/// A program begins, with what the caller gives it; nothing is aligned yet. A
/// handle of an input that is kept must not outlive the program's own need of
/// it: keep a weak one.
struct Submit {
  const Program &program;
  std::span<const Tensor> inputs;
};

struct BlockBegin {
  const Program &program;
  std::string_view block;
};
struct BlockEnd {
  const Program &program;
};

/// Output `output` (role saved) has its final value once queued work is done. A sink may
/// put another tensor of the same shape and element type in the place of `saved`; the
/// program returns that one, while its commands go on with their own handle until the last
/// of them that reads it. A saved value is in the sink's hands from here to its Restore.
struct Save {
  const Program &program;
  uint32_t output;
  Tensor &saved;
};
/// Input `input` (role saved) is about to be read. `saved` is what the program was given,
/// in any space or storage. A sink may put another tensor of that shape and element type in
/// its place; either is brought to the declared layout afterwards. With a sink, inputs that
/// a program restores are aligned here and not at the start.
struct Restore {
  const Program &program;
  uint32_t input;
  Tensor &saved;
};
/// No later command reads input `input`, and the program has dropped its handles of it.
struct Free {
  const Program &program;
  uint32_t input;
};

/// Gives the result (role statistics) of a backward program that was submitted: f32
/// [4] on the device, final once queued work is done. See segue-gradient-statistics
/// for what is in it; output.of names the block or layer.
struct Statistics {
  const Program &program;
  uint32_t output;
  const Tensor &statistics;
};

/// Asks, before a program begins, who brings a parameter, gradient or state of an
/// optimizer that its commands touch within blocks alone (see BlockUses.h). A sink
/// that sets `isDeferred` brings it at BlockInput, and `value` may lie anywhere. An
/// output that is the input, updated in place, is then the caller's own handle, into
/// which the sink copies back. Nobody clears what another has set.
struct OfferInput {
  const Program &program;
  uint32_t input;
  const Tensor &value;
  bool &isDeferred;
};
/// The block that has just begun touches input `input`, which was deferred. `value` is what
/// the program was given. A tensor put in its place must have the same shape and element
/// type, and lie as declared if the program writes it. The program keeps no handle of it at
/// BlockEnd.
struct BlockInput {
  const Program &program;
  uint32_t input;
  Tensor &value;
};

/// Asks, before a program begins, whether BlockResult is wanted of it: a sink that
/// wants it sets `areWatched`. Nobody clears what another has set.
struct OfferResults {
  const Program &program;
  bool &areWatched;
};
/// The last command that writes a value which leaves its block is queued: result `result`
/// of blockUses(program), which is handed over or given up later. Work of the compute queue
/// that is queued now finds the value; a sink that queues such a reader must tell the
/// value's storage (addRead), and must keep no handle of it.
struct BlockResult {
  const Program &program;
  uint32_t result;
  const Tensor &value;
};

/// Output `output`, a gradient, has its final value once queued work is done: the last
/// block that touches it has ended, after its BlockEnd. A sink may put another tensor of
/// the same shape and element type in the place of `value`; the program returns that one.
/// It may take the value and leave none: then the program returns none.
/// There is no such event for a gradient that is touched outside of blocks.
struct Output {
  const Program &program;
  uint32_t output;
  Tensor &value;
};
/// `gradient` is about to be added to `sum`, of a parameter; `sum` waits for the optimizer.
/// A sink that puts tensors in their places puts some that lie on the device.
struct Accumulate {
  Tensor &sum, &gradient;
};
/// The addition to `sum` is queued; `sum` may be put elsewhere.
struct Accumulated {
  Tensor &sum;
};

// MemoryServices tells the events below to those who stand behind it.

/// Copies may have ended. Comes before every other event of a step.
struct Poll {};
/// `bytes` of device_dram are missing. Comes from within allocations.
struct Pressure {
  uint64_t bytes;
};
/// The step cannot be finished and the queues are drained: everything is released.
struct StepAbort {};
/// These enclose programs that run outside of steps: their blocks begin and end, and there are no other events.
struct EvaluationBegin {};
struct EvaluationEnd {};
/// A program of an evaluation has failed.
struct EvaluationAbort {};

} // namespace event

using Event = std::variant<event::PhaseBegin, event::Submit, event::BlockBegin, event::BlockEnd, event::Save,
                           event::Restore, event::Free, event::Statistics, event::OfferInput, event::BlockInput,
                           event::OfferResults, event::BlockResult, event::Output, event::Accumulate,
                           event::Accumulated, event::Poll, event::Pressure, event::StepAbort,
                           event::EvaluationBegin, event::EvaluationEnd, event::EvaluationAbort>;

/// Calls `sink.on(...)` with the event as its own type if `sink` has such a function, which
/// must be public. An `on(const auto &)` gets all others.
template <typename Sink> void deliver(Sink &sink, const Event &event) {
  std::visit(
      [&](const auto &each) {
        if constexpr (requires { sink.on(each); })
          sink.on(each);
      },
      event);
}

class EventSink {
public:
  virtual ~EventSink() = default;

  /// Gets every event. A sink that overrides nothing drops them all.
  virtual void receive(const Event &event) {}

  /// Enters a phase. Whoever runs steps enters StepBegin and StepEnd; programs enter the
  /// others, as their commands come to them. Rule R8: the phase that is current goes on, so
  /// that forward of one module, then of another, is one FORWARD, whoever submits them.
  /// StepBegin gives up a step that nobody ended. Throws PhaseOrder, with nothing changed,
  /// where a step does not allow `phase` to come now; outside of steps any phase may.
  void enter(Phase phase);

  /// While an object of this class lives, what is submitted is not part of the step,
  /// and its phases are not entered: an evaluation, or saved values that are computed
  /// again. Used on the submitting thread, as all calls here. `sink` may be null.
  class PhasesApart {
  public:
    explicit PhasesApart(EventSink *sink) : sink_(sink) { add(1); }
    ~PhasesApart() { add(-1); }
    PhasesApart(const PhasesApart &) = delete;
    PhasesApart &operator=(const PhasesApart &) = delete;

  private:
    void add(int count) {
      if (sink_)
        sink_->apart_ += count;
    }
    EventSink *sink_;
  };

protected:
  /// Gives the step up: whatever phase comes next begins.
  void leavePhase() {
    phase_.reset();
    inStep_ = false;
  }

private:
  std::optional<Phase> phase_;
  /// True from StepBegin to StepEnd.
  bool inStep_ = false;
  int apart_ = 0;
};

/// Enters the phase that the first command of `program` enters, if one does, as a
/// submit of it will: what the phase before left in the queues is settled then.
/// `events` may be null. Throws PhaseOrder naming the program and the phase.
void enterPhaseOf(const Program &program, EventSink *events);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_EVENTS_H
