//===- PrecisionActor.h - what a run asks of precision ----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What MemoryServices and a session ask of Selective Precision. It is a library
// of its own (SeguePrecision), which who only runs programs does not link; the
// actor is made by SessionOptions::makePrecision.
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
  virtual WeightStreamer &weights() = 0;

  /// The values of a module; it may ask for what other modules gave, by module
  /// and output, before it.
  using Values = std::function<Module::Lookup(size_t module, const std::vector<std::vector<Tensor>> &outputs)>;
  /// Calls `play` with the values of a forward of `batch`.
  virtual void withBatch(const TensorMap &batch, const std::function<void(const Values &)> &play) = 0;
  /// Values of the host become those on the device; `givesRing`: the streamer's
  /// ring is free until the next step.
  virtual void settle(bool givesRing) = 0;
};

class PrecisionActor : public EventSink {
public:
  /// Makes the units and the policy. `host` stays. Throws ConfigError for forced
  /// units that are none or not eligible, and for statistics of another
  /// granularity.
  virtual void start(PrecisionHost &host) = 0;

  /// The units, what each is stored in and what stays as it is.
  virtual Json report() const = 0;
  /// The last line of telemetry; null before the first decision.
  virtual Json record() const = 0;

  /// Before Conductor begins the step, which hands the map on, and after it.
  /// Steps count from 0 here.
  virtual void chooseForms(int64_t step) = 0;
  virtual void applyForms() = 0;

  /// Batches that calibrate() is to have; 0: there is nothing to measure.
  virtual int64_t calibrationSamples() const = 0;
  /// Between steps. What throws leaves nothing behind.
  virtual void calibrate(std::span<const TensorMap> batches) = 0;
  /// A forward and backward have ended; the batch is the caller's again after.
  virtual void batchEnded(const TensorMap &batch) = 0;
  /// The step's updates are queued.
  virtual void stepEnded(double loss) = 0;
  /// The loss of a step that has been aborted just now.
  virtual void lossOfAborted(double loss) = 0;

  /// For a checkpoint; empty before start().
  virtual std::string saveState() const = 0;
  /// Checks a state and returns what puts it in force and throws nothing. Empty:
  /// of a run without Selective Precision; it begins anew, with a warning. Throws
  /// FileCorrupt, VersionUnsupported.
  virtual std::function<void()> prepareState(const std::string &text) = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_PRECISIONACTOR_H
