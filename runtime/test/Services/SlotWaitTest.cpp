//===- SlotWaitTest.cpp - waits for a slot of the link that end ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `slot_wait_timeout_ms` on links that stall: what must go waits for a slot of
// Conductor so long, by the device's clock, and then goes over the limit, counted
// in `slot_overruns`, with the same bytes at its end.
//
//===----------------------------------------------------------------------===//

#include "SavedChain.h"

using namespace segue;
using namespace segue::test;

namespace {
/// One slot each way, and no other service.
struct SlotWaitTest : SavedChainTest {
  Json oneSlot(double timeoutMs) const {
    Json section = conductor();
    section["h2d_slots"] = section["d2h_slots"] = 1;
    if (timeoutMs)
      section["slot_wait_timeout_ms"] = timeoutMs;
    return {{"memory", {{"stagehand", {{"conductor_config", section}}}}}};
  }
  static constexpr double asDefault = 0;

  Tensor pinned(int64_t elements) {
    return Tensor::empty(device, TensorDesc({elements}, ElementType::f32, Layout{.space = Space::HostPinned}));
  }
  Tensor copyOut(const Tensor &tensor) {
    return toLayout(device, tensor, TensorDesc(tensor.shape(), ElementType::f32));
  }
};
} // namespace

// In virtual time to the digit: copies of a second each. The first has the slot,
// the second waits for it a quarter of a second, the third has to wait again, as
// both hold tokens, and each that gives up is counted.
TEST_F(SlotWaitTest, EndsWhenTheTimeIsOver) {
  constexpr int64_t second = 250'000'000; // elements, 1e9 bytes
  auto play = [&](double timeoutMs) {
    device = Device::open("sim:virtual,dram=24GiB,pinned=24GiB,link=1GB/s,latency=0s");
    start(oneSlot(timeoutMs));
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    Tensor source = pinned(second);
    std::vector<double> clocks;
    std::vector<Tensor> copies;
    for (int i = 0; i < 3; ++i) {
      copies.push_back(copyOut(source));
      clocks.push_back(device->seconds());
    }
    device->drain(); // the link has carried all three, one after the other
    clocks.push_back(device->seconds());
    enter(Phase::StepEnd);
    Json record = services->conductorRecord();
    EXPECT_EQ(record["h2d_inflight"], 0) << "no token is left";
    services.reset();
    return std::pair(clocks, std::pair(int(record["slot_overruns"]), int(record["h2d_peak"])));
  };
  using Clocks = std::vector<double>;
  auto [clocks, counts] = play(250);
  EXPECT_EQ(clocks, (Clocks{0, 0.25, 0.5, 3}));
  EXPECT_EQ(counts, std::pair(2, 3));
  // Enough for the first copy to end, so that the second has its slot.
  std::tie(clocks, counts) = play(1000);
  EXPECT_EQ(clocks, (Clocks{0, 1, 2, 3}));
  EXPECT_EQ(counts, std::pair(0, 1));
  std::tie(clocks, counts) = play(asDefault); // 30 s
  EXPECT_EQ(clocks, (Clocks{0, 1, 2, 3}));
  EXPECT_EQ(counts, std::pair(0, 1));
}

// On a link in real time that takes 20 ms per copy: all bytes arrive, with and
// without patience.
TEST_F(SlotWaitTest, ASlowLinkIsNotWaitedFor) {
  for (double timeoutMs : {asDefault, 1.0}) {
    device = Device::open("sim:dram=8MiB,pinned=8MiB,link=100GB/s,latency=20ms,threads=1");
    start(oneSlot(timeoutMs));
    enter(Phase::StepBegin);
    enter(Phase::Forward);
    std::vector<Tensor> sources, copies;
    for (int i = 0; i < 6; ++i) {
      sources.push_back(pinned(64));
      for (int64_t j = 0; j < 64; ++j)
        sources.back().data<float>()[j] = float(64 * i + j);
      copies.push_back(copyOut(sources.back()));
    }
    for (int i = 0; i < 6; ++i) {
      Tensor back = toHost(copies[size_t(i)]);
      for (int64_t j = 0; j < 64; ++j)
        ASSERT_EQ(back.data<float>()[j], float(64 * i + j));
    }
    enter(Phase::StepEnd);
    Json record = services->conductorRecord();
    if (timeoutMs) // a wait is a tenth of what the copy before it takes
      EXPECT_GT(int(record["slot_overruns"]), 0) << record.dump();
    else
      EXPECT_EQ(record["slot_overruns"], 0);
    EXPECT_EQ(record["h2d_inflight"], 0);
    EXPECT_EQ(record["d2h_inflight"], 0);
    services.reset();
  }
}

// An adversary in whose hands time runs out at random: batches, spills and
// restores go over the limit, and what they bring is the same.
TEST_F(SlotWaitTest, AnAdversaryThatStallsChangesNoResult) {
  int overruns = 0;
  for (int seed = 4; seed < 8; ++seed) { // few draws run out of time while a slot is awaited: some of these do
    setUp("sim:dram=8MiB,pinned=32MiB,threads=1,stall=0.5,adversarial=" + std::to_string(seed));
    Json section = conductor(), stagehand = activation();
    section["h2d_slots"] = section["d2h_slots"] = 1;
    start(config(stagehand, section));
    Tensor source = pinned(64);
    std::fill_n(source.data<float>(), 64, 1.5f);
    for (int i = 0; i < 6; ++i) {
      enter(Phase::StepBegin);
      enter(Phase::Forward);
      std::vector<Tensor> copies;
      for (int j = 0; j < 4; ++j)
        copies.push_back(copyOut(source));
      std::vector<Tensor> saved = forward();
      enter(Phase::Backward);
      EXPECT_EQ(backward(std::move(saved)), reference) << "seed " << seed;
      for (const Tensor &copy : copies)
        EXPECT_EQ(toHost(copy).data<float>()[63], 1.5f);
      copies.clear();
      enter(Phase::Optimizer);
      enter(Phase::StepEnd);
      expectWhole(services->activationRecord());
      expectNothingLeft();
      overruns += int(services->conductorRecord()["slot_overruns"]);
    }
    services.reset();
  }
  EXPECT_GT(overruns, 0);
}
