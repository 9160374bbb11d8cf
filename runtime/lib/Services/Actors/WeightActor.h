//===- WeightActor.h - weights that come with their block -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Weight Stagehand as an actor: a WeightStreamer among the services of a device.
// Its loads and save-backs are transfers of "stagehand" with a token each, ring
// and pool its reservations, and Conductor's hints are those of its policy.
// Whoever owns the parameters (a session) tells it of programs and sources, and
// starts it; see MemoryServices::weights.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SERVICES_ACTORS_WEIGHTACTOR_H
#define SEGUE_LIB_SERVICES_ACTORS_WEIGHTACTOR_H

#include "ServiceContext.h"
#include "segue/runtime/Program/ForwardEvents.h"
#include "segue/runtime/Services/WeightStreamer.h"

namespace segue::inline runtime {

class WeightActor final : public ForwardEvents {
public:
  WeightActor(ServiceContext &context, WeightStagehandConfig config, WeightStreamerOptions options);
  ~WeightActor() override;

  WeightStreamer &streamer() { return *streamer_; }

private:
  class Hints;
  bool reserve(Space space, uint64_t bytes);
  void release(Space space, uint64_t bytes);

  ServiceContext &context_;
  struct Reservation {
    uint64_t id;
    Space space;
    uint64_t bytes;
  };
  std::vector<Reservation> reservations_;
  std::unique_ptr<WeightStreamer> streamer_;
  std::unique_ptr<Hints> hints_;
  ServiceId service_{};
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SERVICES_ACTORS_WEIGHTACTOR_H
