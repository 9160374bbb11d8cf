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
  WeightStreamer &weights() override { return *s.services->weights(); }
  void withBatch(const TensorMap &batch, const std::function<void(const Values &)> &play) override {
    Wiring wiring = s.wiringFor(batch);
    TensorMap placed = s.placeBatch(wiring, batch);
    play([&](size_t module, const std::vector<std::vector<Tensor>> &outputs) {
      return s.lookup(module, wiring, placed, outputs);
    });
    for (const auto &[name, tensor] : batch)
      giveBack(tensor);
  }
  void settle(bool givesRing) override { givesRing ? s.streamed->release() : s.flush(); }
  int rank() const override { return s.ranks ? s.ranks->rank() : 0; }
  bool isShared() const override { return s.ranks != nullptr; }
  std::vector<std::string> exchange(std::string_view what, std::string_view message) override {
    return s.ranks->group().exchange(what, message);
  }

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
  const PrecisionActor *precision = state_->precision;
  return precision && state_->device->hasBytes() ? precision->calibrationSamples() : 0;
}

void Session::calibrate(std::span<const TensorMap> batches) {
  SessionState &s = *state_;
  if (s.waiting)
    throw Error(ErrorCode::InvalidArgument, "calibrate: gradients wait for the optimizer; calibrate between steps");
  if (batches.empty())
    throw Error(ErrorCode::InvalidArgument, "calibrate: no batch was given; at least one is needed");
  s.calibrateIfNeeded(batches);
}

void SessionState::calibrateIfNeeded(std::span<const TensorMap> batches) {
  if (!precision || !device->hasBytes() || !precision->calibrationSamples())
    return;
  requireWhole();
  requireValues();
  flush();
  precision->calibrate(batches);
  if (ranks)
    ranks->agreesNoMore(); // each has measured batches of its own
}

} // namespace segue::inline runtime
