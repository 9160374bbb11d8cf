//===- WeightActor.cpp - weights that come with their block ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "WeightActor.h"
#include <algorithm>

namespace segue::inline runtime {

/// Hints hands to the policy what Conductor pushes.
class WeightActor::Hints final : public StagehandAdapter {
public:
  Hints(WeightStreamer &streamer, StagehandKnobs knobs)
      : StagehandAdapter("stagehand", knobs_), knobs_(knobs), streamer_(streamer) {}

  void applyHints(const RuntimeLimitHints &hints, StepPhase phase) override {
    StagehandAdapter::applyHints(hints, phase);
    streamer_.setHints({.maxInflightH2d = knobs_.maxInflight,
                        .windowCap = hints.prefetchWindowCap,
                        .suppressSpeculative = hints.suppressSpeculative});
  }
  void restoreKnobs() override {
    StagehandAdapter::restoreKnobs();
    streamer_.setHints({});
  }

private:
  StagehandKnobs knobs_;
  WeightStreamer &streamer_;
};

WeightActor::WeightActor(ServiceContext &context, WeightStagehandConfig config, WeightStreamerOptions options)
    : context_(context) {
  StagehandKnobs knobs{int(config.maxInflightTransfers), int(config.prefetchWindowBlocks)};
  if (context.conductor.isEnabled()) {
    options.admit = [this](Queue direction, Priority priority, uint64_t bytes) -> std::shared_ptr<void> {
      auto batch = std::make_shared<ConductorGate::Batch>(context_.gate, context_.engine(), service_, direction,
                                                          priority, bytes);
      return batch->isDenied() ? nullptr : batch;
    };
    options.reserve = [this](Space space, uint64_t bytes) { return reserve(space, bytes); };
    options.release = [this](Space space, uint64_t bytes) { release(space, bytes); };
  }
  streamer_ = std::make_unique<WeightStreamer>(context.device, std::move(config), std::move(options));
  target = streamer_.get();
  if (!context.conductor.isEnabled())
    return;
  hints_ = std::make_unique<Hints>(*streamer_, knobs);
  service_ = context.conductor.attach(*hints_);
}

WeightActor::~WeightActor() {
  streamer_->stop();
  // Memory that is held beyond a run, as homes of weights and buffers of slabs are, goes
  // with its owners, and nobody is told of that any more.
  for (const Reservation &each : reservations_)
    context_.conductor.release(each.id);
  if (hints_)
    context_.conductor.detach(service_);
}

/// Asks Conductor for leave to hold so much from here on. Memory of the device counts as
/// committed at once, since it is allocated next.
bool WeightActor::reserve(Space space, uint64_t bytes) {
  Conductor &conductor = context_.conductor;
  bool isOnHost = space == Space::HostPinned;
  conductor.measure(int64_t(context_.usedBytes()));
  uint64_t id = context_.newId();
  Grant grant = conductor.reserve({.id = id,
                                   .owner = service_,
                                   .bytes = int64_t(bytes),
                                   .mode = BudgetMode::Floor,
                                   .resource = isOnHost ? BudgetResource::Pinned : BudgetResource::Vram,
                                   .priority = Priority::Required});
  if (grant.status == GrantStatus::Denied)
    return false;
  if (!isOnHost)
    conductor.commit(id, int64_t(bytes));
  reservations_.push_back({id, space, bytes});
  return true;
}

void WeightActor::release(Space space, uint64_t bytes) {
  auto held = std::ranges::find_if(reservations_,
                                   [&](const Reservation &each) { return each.space == space && each.bytes == bytes; });
  if (held == reservations_.end())
    return;
  context_.conductor.release(held->id);
  reservations_.erase(held);
}

} // namespace segue::inline runtime
