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
// A saved value is in the sink's hands between `onSave` and `onRestore`:
//
//   void onSave(const Program &, uint32_t, Tensor &saved) override {
//     saved = engine.toLayout(device, saved, pinned);  // queued; the device's bytes
//   }                                                  // go back in stream order
//   void onRestore(const Program &, uint32_t, Tensor &saved) override {
//     saved = fetched_[saved.storage()->id()];         // on its way since long
//   }
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_EVENTS_H
#define SEGUE_RUNTIME_PROGRAM_EVENTS_H

#include "segue/runtime/Program/Program.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <optional>
#include <span>

namespace segue::inline runtime {

/// Returns whether `next` may come after `now` in one step (schemas/PhaseOrder.h).
bool canFollow(Phase now, Phase next);

class EventSink {
public:
  virtual ~EventSink() = default;

  /// A phase begins: StepBegin and StepEnd by whoever runs steps, the others by
  /// the programs, as their commands come to them. Rule R8: the phase that is
  /// current goes on, so that forward of one module, then of another, is one
  /// FORWARD, whoever submits them. StepBegin gives up a step that nobody ended.
  /// Throws PhaseOrder, with nothing changed, where a step does not allow `phase`
  /// to come now; outside of steps any phase may.
  void enter(Phase phase);

  /// While an object of this class lives, what is submitted is no part of the step,
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

  /// A phase has begun; once for all modules of the phase.
  virtual void onPhase(Phase phase) {}
  /// A program begins, with what the caller gives it; nothing is aligned yet. A
  /// handle of an input that is kept must not outlive the program's own need of
  /// it: keep a weak one.
  virtual void onSubmit(const Program &program, std::span<const Tensor> inputs) {}
  virtual void onBlockBegin(const Program &program, std::string_view block) {}
  virtual void onBlockEnd(const Program &program) {}
  /// Output `output` (role saved) has its final value once queued work is done.
  /// What is put in the place of `saved`, of the same shape and element type, is
  /// what the program returns; its commands go on with their own handle until
  /// the last of them that reads it.
  virtual void onSave(const Program &program, uint32_t output, Tensor &saved) {}
  /// Input `input` (role saved) is about to be read. `saved` is what the program
  /// was given, in any space or storage, and is brought to the declared layout
  /// after the call; or put in its place a tensor of that shape and element
  /// type. With a sink, inputs that a program restores are aligned here and not
  /// at the start.
  virtual void onRestore(const Program &program, uint32_t input, Tensor &saved) {}
  /// No later command reads input `input`; the program's handles of it are gone.
  virtual void onFree(const Program &program, uint32_t input) {}

  /// Gives the result (role statistics) of a backward program that was submitted: f32
  /// [4] on the device, final once queued work is done. See segue-gradient-statistics
  /// for what is in it; output.of names the block or layer.
  virtual void onStatistics(const Program &program, uint32_t output, const Tensor &statistics) {}

  /// Asked before a program begins, for each parameter, gradient and state of an
  /// optimizer that its commands touch within blocks alone (see BlockUses.h).
  /// True: it is brought by onBlockInput, and `value` may lie anywhere. An output
  /// that is the input, updated in place, is then the caller's own handle, into
  /// which the sink copies back.
  virtual bool defersInput(const Program &program, uint32_t input, const Tensor &value) { return false; }
  /// The block that has just begun touches input `input`, which was deferred.
  /// `value` is what the program was given; what is put in its place has the
  /// same shape and element type, and lies as declared where it is written. The
  /// program keeps no handle of it when onBlockEnd is called.
  virtual void onBlockInput(const Program &program, uint32_t input, Tensor &value) {}

  /// Asked before a program begins. Returns whether onBlockResult is to be called for it.
  virtual bool watchesResults(const Program &program) { return false; }
  /// The last command that writes a value which leaves its block is queued: result
  /// `result` of blockUses(program), which is handed over or given up later. Work
  /// of the compute queue that is queued now finds it; storage that such work
  /// reads is told so (addRead). No handle of it is kept.
  virtual void onBlockResult(const Program &program, uint32_t result, const Tensor &value) {}

  /// Output `output`, a gradient, has its final value once queued work is done:
  /// the last block that touches it has ended, and onBlockEnd was called. What is
  /// put in the place of `value`, of the same shape and element type, is what the
  /// program returns. Not called for one that is touched outside of blocks.
  virtual void onOutput(const Program &program, uint32_t output, Tensor &value) {}
  /// `gradient` is about to be added to `sum`, of a parameter; `sum` waits for
  /// the optimizer.
  /// What the sink puts in their places lies on the device.
  virtual void onAccumulate(Tensor &sum, Tensor &gradient) {}
  /// The addition to `sum` is queued; `sum` may be put elsewhere.
  virtual void onAccumulated(Tensor &sum) {}

protected:
  /// The step was given up: whatever phase comes next begins.
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
