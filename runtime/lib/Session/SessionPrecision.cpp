//===- SessionPrecision.cpp - what a session does for precision -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Selective Precision plays blocks of the session's modules by themselves, on
// batches of the session: before training and at decisions.
//
//===----------------------------------------------------------------------===//

#include "../Services/Actors/PrecisionActor.h"
#include "SessionState.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

struct SessionState::Host final : PrecisionHost {
  explicit Host(SessionState &state) : s(state) {}

  const std::vector<Module> &modules() const override { return s.modules; }
  std::pair<size_t, size_t> ownModules() const override { return s.ownModules(); }
  WeightStreamer &weights() override { return *s.services->weights(); }
  std::vector<StreamedParameter> parameters() const override {
    return isPipelined() ? s.ranks->parametersOfStages() : s.services->weights()->parameters();
  }
  void withBatch(const TensorMap &batch, const std::function<void(const Values &, Outputs &)> &play) override {
    Wiring wiring = s.wiringFor(batch);
    Outputs outputs(s.modules.size());
    std::optional<TensorMap> placed; // what fails, fails within `play`, which other ranks may wait for
    auto values = [&](size_t module) {
      if (!placed)
        placed = s.placeBatch(wiring, batch);
      return s.lookup(module, wiring, *placed, outputs);
    };
    auto run = [&] { play(values, outputs); };
    if (isPipelined())
      s.ranks->passStage(wiring, outputs, run);
    else
      run();
    for (const auto &[name, tensor] : batch)
      giveBack(tensor);
  }
  TensorMap gatherFor(size_t module, const Program &program) override {
    try {
      return s.ranks ? s.ranks->gatherFor(module, program) : TensorMap();
    } catch (const std::exception &error) { // others wait for what is left
      abandon(error.what());
      throw;
    }
  }
  void settle(bool givesRing) override { givesRing ? s.streamed->release() : s.flush(); }
  int rank() const override { return s.ranks ? s.ranks->rank() : 0; }
  int ranks() const override { return s.ranks ? s.ranks->group().ranks() : 1; }
  bool isShared() const override { return s.ranks != nullptr; }
  bool isPipelined() const override { return s.ranks && s.ranks->isPipelined(); }
  std::vector<std::string> exchange(std::string_view what, std::string_view message) override {
    return s.ranks->group().exchange(what, message);
  }
  void abandon(std::string_view why) override { s.ranks->group().abandon(why); }

  SessionState &s;
};

void SessionState::startPrecision() {
  precision = services ? services->precision() : nullptr;
  if (!precision)
    return;
  host = std::make_shared<Host>(*this);
  precision->start(*host);
}

int64_t Session::calibrationSamples() const {
  PrecisionActor *precision = state_->precision;
  if (!precision || !state_->device->hasBytes())
    return 0;
  if (state_->ranks)
    state_->ranks->agreeToPlay();
  return precision->calibrationSamples();
}

void Session::calibrate(std::span<const TensorMap> batches) {
  SessionState &s = *state_;
  if (s.waiting)
    throw Error(ErrorCode::InvalidArgument, "calibrate: gradients wait for the optimizer; calibrate between steps");
  if (batches.empty())
    throw Error(ErrorCode::InvalidArgument, "calibrate: no batch was given; at least one is needed");
  if (s.ranks && s.precision && s.device->hasBytes())
    s.ranks->agreeToPlay();
  s.calibrateIfNeeded(batches);
}

void SessionState::calibrateIfNeeded(std::span<const TensorMap> batches) {
  if (!precision || !device->hasBytes() || !precision->calibrationSamples())
    return;
  try {
    try {
      requireWhole();
      requireValues();
      flush();
      for (const TensorMap &batch : batches)
        wiringFor(batch);
    } catch (const std::exception &error) {
      if (ranks)
        ranks->meetToPlay(error.what());
      throw;
    }
    if (ranks)
      ranks->meetToPlay();
    precision->calibrate(batches);
  } catch (const std::exception &) {
    if (ranks)
      ranks->allKnow();
    throw;
  }
}

} // namespace segue::inline runtime
