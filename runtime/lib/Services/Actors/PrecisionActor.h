//===- PrecisionActor.h - what a run asks of precision ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// PrecisionActor is what MemoryServices and a session ask of Selective
// Precision, which is a library of its own (SeguePrecision): applications that
// only run programs do not link it. SessionOptions::makePrecision makes the
// actor.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_PRECISIONACTOR_H
#define SEGUE_LIB_SERVICES_ACTORS_PRECISIONACTOR_H

#include "ServiceContext.h"
#include "segue/runtime/Services/WeightStreamer.h"
#include "segue/runtime/Program/Module.h"

namespace segue::inline runtime {

/// A PrecisionHost is the session, as Selective Precision calls it between the programs of
/// steps.
class PrecisionHost {
public:
  virtual ~PrecisionHost() = default;
  virtual const std::vector<Module> &modules() const = 0;
  /// Returns the modules that this rank runs, and up to where; all where every rank runs all.
  virtual std::pair<size_t, size_t> ownModules() const = 0;
  virtual WeightStreamer &weights() = 0;
  /// Returns what the streamers of all ranks have, in the order of forward: the same on every rank.
  virtual std::vector<StreamedParameter> parameters() const = 0;

  /// The outputs of each module, by position.
  using Outputs = std::vector<std::vector<Tensor>>;
  /// A function that returns the values of a module; it may ask for what other modules gave before it.
  using Values = std::function<Module::Lookup(size_t module)>;
  /// Calls `play` with the values of a forward of `batch` and a place for the outputs of this rank's modules, which
  /// `play` fills; those of the modules before are there. Where stages run the modules, every rank calls this.
  virtual void withBatch(const TensorMap &batch, const std::function<void(const Values &, Outputs &)> &play) = 0;
  /// Returns what other ranks have of the parameters that a program of a module reads, by name, in memory of the host.
  /// Every rank calls this, for the same programs in one order.
  virtual TensorMap gatherFor(size_t module, const Program &program) = 0;
  /// Makes the values of the host those on the device. With `givesRing`, the streamer's
  /// ring is free until the next step.
  virtual void settle(bool givesRing) = 0;

  /// Return the number of this rank among those that train together, 0 of a session alone, and how many there are.
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// Returns true if there are several.
  virtual bool isShared() const = 0;
  /// Returns true if each runs some of the modules.
  virtual bool isPipelined() const = 0;
  /// Returns what each of them says about `what`, between two steps' meetings: all call this.
  virtual std::vector<std::string> exchange(std::string_view what, std::string_view message) = 0;
  /// Ends the group, as this rank cannot go on with what the others wait for.
  virtual void abandon(std::string_view why) = 0;
};

class PrecisionActor : public EventSink {
public:
  /// Makes the units and the policy. `host` must stay. Throws ConfigError for forced units
  /// that do not exist or are not eligible, and for statistics of another granularity.
  virtual void start(PrecisionHost &host) = 0;

  /// Returns the units, what each is stored in and what stays as it is.
  virtual Json report() const = 0;
  /// Returns the last line of telemetry; null before the first decision.
  virtual Json record() const = 0;

  /// Called before Conductor begins the step, which hands the map on, and after it. Steps
  /// count from 0 here.
  virtual void chooseForms(int64_t step) = 0;
  virtual void applyForms() = 0;

  /// Returns the number of batches that calibrate() needs; 0 if there is nothing to measure.
  virtual int64_t calibrationSamples() const = 0;
  /// Calibrates, between steps. A call that throws leaves nothing behind. Of several ranks all call this, and what one
  /// throws the others know: they throw RankFailed.
  virtual void calibrate(std::span<const TensorMap> batches) = 0;
  /// Called when a forward and backward have ended, of which the last one before stepEnded() counts; the batch is the
  /// caller's again afterwards.
  virtual void batchEnded(const TensorMap &batch) = 0;
  /// Called when the step's updates are queued.
  virtual void stepEnded(double loss) = 0;
  /// Takes the loss of a step that has been aborted just now.
  virtual void lossOfAborted(double loss) = 0;

  /// Returns the state, for a checkpoint; empty before start().
  virtual std::string saveState() const = 0;
  /// Checks a state and returns a function that puts it in force and throws nothing. An
  /// empty text is that of a run without Selective Precision, which begins anew, with a
  /// warning. Throws FileCorrupt, VersionUnsupported.
  virtual std::function<void()> prepareState(const std::string &text) = 0;

  // Ranks that train together decide alike, each by the events of all.

  /// Returns what has to be the same on every rank: the keys that decide, the units and their forms.
  virtual Json agreed() const = 0;
  /// Returns the state with what is still to be measured, and takes that of rank 0 before the first step, so that all
  /// go on from what that one knows.
  virtual std::string stateForRanks() const = 0;
  virtual void takeState(const std::string &text) = 0;
  /// Returns what this rank says when ranks meet: norms of gradients that it has collected, forms that it could not
  /// read, the loss that ended its last step. It stays to be said until takeWords() is called.
  virtual std::string word() = 0;
  /// Takes what all ranks have said, this one too, in their order.
  virtual void takeWords(std::span<const std::string> words) = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_PRECISIONACTOR_H
