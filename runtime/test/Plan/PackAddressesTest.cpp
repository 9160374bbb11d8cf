//===- PackAddressesTest.cpp - addresses for the blocks of all steps ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Plan/AllocationTrace.h"
#include <gtest/gtest.h>
#include <map>
#include <random>

using namespace segue;

static constexpr Space dram = Space::DeviceDram;

namespace {
/// A step as a list of what is taken and given, by name; one that is still there
/// when its name is taken again is kept until the end of that step.
struct Move {
  char name;
  uint64_t bytes; // 0: given
};

class Player {
public:
  explicit Player(const DeviceRef &device) : device_(device) {}
  ~Player() { dropAll(); }

  void play(const std::vector<Move> &moves) {
    std::vector<std::pair<char, MemoryBlock>> old;
    for (const Move &move : moves) {
      if (!move.bytes) {
        drop(move.name);
        continue;
      }
      if (live_.contains(move.name)) {
        late_.push_back(live_[move.name]);
        live_.erase(move.name);
      }
      OwnerId owner = device_->memory().intern({.value = std::string(1, move.name)});
      live_[move.name] = {device_->memory().allocate(dram, move.bytes, 64, owner), move.bytes};
    }
    for (Held &held : late_)
      device_->memory().free(dram, held.block.data, held.bytes, 64, held.block.account, {});
    late_.clear();
  }
  void drop(char name) {
    Held held = live_.at(name);
    live_.erase(name);
    device_->memory().free(dram, held.block.data, held.bytes, 64, held.block.account, {});
  }
  void dropAll() {
    while (!live_.empty())
      drop(live_.begin()->first);
  }
  const void *where(char name) const { return live_.at(name).block.data; }

private:
  struct Held {
    MemoryBlock block;
    uint64_t bytes;
  };
  DeviceRef device_;
  std::map<char, Held> live_;
  std::vector<Held> late_;
};
} // namespace

/// The steps played on a roomy device.
static StepAllocations traceOf(const std::vector<std::vector<Move>> &steps) {
  DeviceRef device = Device::open("sim:virtual,dram=1GiB");
  AllocationTrace trace(device->memory());
  Player player(device);
  trace.begin();
  for (const auto &moves : steps) {
    trace.beginStep();
    player.play(moves);
  }
  return trace.end();
}

static DeviceRef deviceOf(uint64_t bytes) { return Device::open("sim:virtual,dram=" + std::to_string(bytes)); }

// Small blocks that outlive large ones leave holes in which no large one fits: best
// fit needs more than what is live, addresses that are chosen with all in view do not.
TEST(PackAddresses, FitsWhereBestFitDoesNot) {
  const uint64_t kib = 1024;
  std::vector<Move> step{{'a', 4 * kib}, {'b', kib}, {'c', 4 * kib}, {'d', kib}, {'a', 0}, {'c', 0},
                         {'e', 8 * kib}, {'e', 0},   {'b', 0},       {'d', 0}};
  StepAllocations steps = traceOf({step, step, step});
  ASSERT_EQ(steps.repeats(), std::optional<uint32_t>(1));
  std::vector<AddressRange> free{{0, 10 * kib}};
  std::optional<AddressPlan> plan = packAddresses(steps, free, 10 * kib);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->bytes(), 10 * kib) << "as many as are live at most";
  {
    DeviceRef device = deviceOf(10 * kib);
    Player player(device);
    EXPECT_THROW(player.play(step), OutOfMemory);
  }
  DeviceRef device = deviceOf(10 * kib);
  ASSERT_TRUE(device->memory().followAddresses(*plan, nullptr));
  Player player(device);
  for (int i = 0; i < 5; ++i) {
    device->memory().beginPlannedStep();
    player.play(step);
    device->memory().endPlannedStep();
  }
  EXPECT_EQ(device->memory().addressFigures().displaced, 0u) << device->memory().addressFigures().lastDisplaced;
  EXPECT_EQ(device->memory().addressFigures().placed, 5 * 5u);
}

// What a step gives and its caller keeps through the next has two places in turn.
TEST(PackAddresses, WhatOutlivesAStepHasAPlacePerGeneration) {
  std::vector<Move> step{{'w', 512}, {'r', 256}, {'w', 0}}; // r is given when the next has ended
  StepAllocations steps = traceOf({step, step, step, step});
  std::vector<AddressRange> free{{0, 1024}};
  std::optional<AddressPlan> plan = packAddresses(steps, free, 1024);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->period, 2u);
  DeviceRef device = deviceOf(1024);
  ASSERT_TRUE(device->memory().followAddresses(*plan, nullptr));
  Player player(device);
  const void *before = nullptr, *last = nullptr;
  for (int i = 0; i < 7; ++i) {
    device->memory().beginPlannedStep();
    player.play(step);
    device->memory().endPlannedStep();
    if (i > 2) {
      EXPECT_EQ(player.where('r'), before);
    }
    before = std::exchange(last, player.where('r'));
  }
  EXPECT_EQ(device->memory().addressFigures().displaced, 0u) << device->memory().addressFigures().lastDisplaced;
}

TEST(PackAddresses, StepsThatNeverRepeatHaveNone) {
  std::vector<AddressRange> free{{0, 1 << 20}};
  EXPECT_FALSE(packAddresses(traceOf({{{'a', 64}}, {{'b', 64}}, {{'c', 64}}}), free, 0)) << "each takes another";
  EXPECT_FALSE(packAddresses(traceOf({{{'a', 640}, {'a', 0}}, {{'a', 640}, {'a', 0}}, {{'a', 640}, {'a', 0}}}),
                             std::vector<AddressRange>{{0, 512}}, 0))
      << "there is no room";
}

// Random steps: no two blocks that live at once overlap, in any step; and what is
// packed is close to what is live.
TEST(PackAddresses, RandomStepsKeepToTheirAddresses) {
  std::mt19937_64 random(7);
  double waste = 0;
  for (int round = 0; round < 60; ++round) {
    // Some blocks are there from the first step on, or are given in the step after.
    auto stepOf = [&](bool isFirst) {
      std::mt19937_64 same(uint64_t(round) * 977);
      std::vector<Move> moves;
      std::string live;
      if (isFirst)
        for (char name : {'X', 'Y'})
          moves.push_back({name, 64 + same() % 4000});
      else
        (void)same(), (void)same();
      for (int i = 0; i < 24; ++i) {
        if (!live.empty() && same() % 2) {
          size_t at = same() % live.size();
          moves.push_back({live[at], 0});
          live.erase(at, 1);
        } else {
          live += char('a' + i);
          moves.push_back({char('a' + i), 1 + same() % 5000});
        }
      }
      // Of those that are left, half are given early in the next step, the others when
      // it has ended.
      std::vector<Move> all;
      for (size_t i = 0; i < live.size() / 2 && !isFirst; ++i)
        all.push_back({live[i], 0});
      all.insert(all.end(), moves.begin(), moves.end());
      return all;
    };
    std::vector<Move> first = stepOf(true), again = stepOf(false);
    StepAllocations steps = traceOf({first, again, again, again});
    ASSERT_TRUE(steps.repeats());
    uint64_t most = 0;
    DeviceRef roomy = deviceOf(1 << 30);
    {
      Player player(roomy);
      for (int i = 0; i < 4; ++i)
        player.play(i ? again : first);
      most = roomy->memory().peakBytes(dram);
    }
    std::vector<AddressRange> free{{0, 1 << 30}};
    std::optional<AddressPlan> plan = packAddresses(steps, free, most);
    ASSERT_TRUE(plan);
    waste += double(plan->bytes()) / double(most) - 1;
    DeviceRef device = deviceOf(plan->bytes());
    ASSERT_TRUE(device->memory().followAddresses(*plan, nullptr));
    Player player(device);
    for (int i = 0; i < 6; ++i) {
      device->memory().beginPlannedStep();
      ASSERT_NO_THROW(player.play(i ? again : first)) << "round " << round << ", step " << i;
      device->memory().endPlannedStep();
    }
    EXPECT_EQ(device->memory().addressFigures().displaced, 0u) << device->memory().addressFigures().lastDisplaced;
  }
  EXPECT_LT(waste / 60, 0.12);
}

// Others get what lies beside the plan, and of it what is free while no step runs;
// a planned block whose address they hold goes elsewhere, is counted, and named.
TEST(PackAddresses, OthersLieBesideThePlan) {
  std::vector<Move> step{{'a', 512}, {'a', 0}};
  std::vector<AddressRange> free{{0, 512}};
  std::optional<AddressPlan> plan = packAddresses(traceOf({step, step, step}), free, 512);
  ASSERT_TRUE(plan);
  DeviceRef device = deviceOf(1024);
  DeviceMemory &memory = device->memory();
  ASSERT_TRUE(memory.followAddresses(*plan, nullptr));
  MemoryBlock beside = memory.allocate(dram, 512, 64), within = memory.allocate(dram, 256, 64);
  EXPECT_GT(beside.data, within.data) << "the plan lies lowest";
  memory.beginPlannedStep();
  Player player(device);
  EXPECT_THROW(player.play(step), OutOfMemory);
  memory.free(dram, beside.data, 512, 64, beside.account, {});
  player.play(step);
  EXPECT_EQ(memory.addressFigures().displaced, 1u);
  EXPECT_EQ(memory.addressFigures().lastDisplaced, "512 B for a: its address is held by others");
  beside = memory.allocate(dram, 512, 64);
  EXPECT_EQ(memory.tryAllocate(dram, 64, 64).data, nullptr) << "while a step runs the plan's ranges are its own";
  memory.endPlannedStep();
  MemoryBlock lent = memory.allocate(dram, 64, 64);
  memory.free(dram, lent.data, 64, 64, lent.account, {});
  memory.free(dram, beside.data, 512, 64, beside.account, {});
  memory.free(dram, within.data, 256, 64, within.account, {});
  memory.forgetAddresses();
  EXPECT_EQ(device->freeMemory(dram).largestRange, 1024u);
}

// Memory that a load of weights is staged in has no name, as an arena has none: it takes the place of no planned block.
TEST(PackAddresses, WhatIsStagedBesideThePlanTakesNoPlannedPlace) {
  std::vector<Move> step{{'a', 512}, {'a', 0}};
  std::vector<AddressRange> free{{0, 512}};
  std::optional<AddressPlan> plan = packAddresses(traceOf({step, step, step}), free, 512);
  ASSERT_TRUE(plan);
  DeviceRef device = deviceOf(1024);
  DeviceMemory &memory = device->memory();
  ASSERT_TRUE(memory.followAddresses(*plan, nullptr));
  OwnerId owner = memory.intern({.value = "a"});
  memory.beginPlannedStep();
  MemoryBlock staged;
  {
    DeviceMemory::BesidePlan beside(memory);
    staged = memory.allocate(dram, 512, 64, owner);
  }
  Player player(device);
  player.play(step);
  EXPECT_EQ(memory.addressFigures().displaced, 0u) << memory.addressFigures().lastDisplaced;
  EXPECT_EQ(memory.addressFigures().placed, 1u);
  memory.endPlannedStep();
  memory.free(dram, staged.data, 512, 64, staged.account, {});
}
