//===- SavedChain.h - a chain of saved tensors ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A forward that saves a chain of tensors and a backward that sums them up,
// latest first, on a device under memory services.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_SERVICES_SAVEDCHAIN_H
#define SEGUE_TEST_SERVICES_SAVEDCHAIN_H

#include "Program/TestFile.h"
#include "Transfer/ScriptedDevice.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Services/MemoryServices.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace segue::test {

inline constexpr int64_t count = 8, elements = 1 << 16; // 256 KiB each
inline constexpr uint64_t bytes = elements * 4;

/// forward: saved.0 = x + y, saved.i = saved.(i-1) + y. backward: their sum.
/// `recomputable`: y is a parameter, and a program `recompute.i` makes each
/// saved.i but the first from the one before.
inline TestFile makeChainFile(bool recomputable = false) {
  TestFile file;
  uint32_t add = file.addKernel("add_f32", 1, {0, 0, 0}, {4, 4, 4});
  schema::Role yRole = recomputable ? schema::Role::parameter : schema::Role::input;
  {
    schema::ProgramT &p = file.addProgram("forward");
    addPhase(p, schema::Phase::forward);
    uint32_t x = addBuffer(p, schema::BufferKind::input, addInput(p, "x", {elements}), 0, bytes);
    uint32_t y = addBuffer(p, schema::BufferKind::input, addInput(p, "y", {elements}, schema::ElementType::f32, yRole),
                           0, bytes);
    uint32_t before = x;
    for (uint32_t i = 0; i < count; ++i) {
      schema::BlockBeginT block;
      block.name = "b." + std::to_string(i);
      addCommand(p, std::move(block));
      uint32_t output =
          addOutput(p, "saved." + std::to_string(i), {elements}, schema::ElementType::f32, schema::Role::saved);
      uint32_t saved = addBuffer(p, schema::BufferKind::output, output, 0, bytes);
      addLaunch(p, add, {before, y, saved}, elements, 64);
      auto save = [&](uint32_t which) {
        schema::SaveT command;
        command.output = which;
        addCommand(p, std::move(command));
      };
      if (i > 0)
        save(i - 1); // after the last that reads it
      if (i + 1 == count)
        save(i);
      addCommand(p, schema::BlockEndT{});
      auto point = std::make_unique<schema::SavePointT>();
      point->value = output;
      point->backward_input = i;
      point->backward_order = count - 1 - i;
      point->bytes = bytes;
      point->block = "b." + std::to_string(i);
      if (recomputable && i > 0)
        point->recompute_program = int32_t(1 + i); // behind forward and backward
      p.save_points.push_back(std::move(point));
      before = saved;
    }
  }
  schema::ProgramT &p = file.addProgram("backward");
  addPhase(p, schema::Phase::backward);
  std::vector<uint32_t> saved;
  for (uint32_t i = 0; i < count; ++i)
    saved.push_back(
        addBuffer(p, schema::BufferKind::input,
                  addInput(p, "saved." + std::to_string(i), {elements}, schema::ElementType::f32, schema::Role::saved),
                  0, bytes));
  p.arenas.push_back(std::make_unique<schema::ArenaT>());
  p.arenas[0]->bytes = p.arenas[0]->lower_bound = 2 * bytes;
  uint32_t sums[] = {addBuffer(p, schema::BufferKind::arena, 0, 0, bytes),
                     addBuffer(p, schema::BufferKind::arena, 0, bytes, bytes)};
  uint32_t out = addBuffer(p, schema::BufferKind::output, addOutput(p, "sum", {elements}), 0, bytes);
  uint32_t before = 0;
  for (uint32_t i = count; i-- > 0;) {
    schema::BlockBeginT block;
    block.name = "b." + std::to_string(i);
    addCommand(p, std::move(block));
    schema::RestoreT restore;
    restore.input = i;
    addCommand(p, std::move(restore));
    uint32_t target = i == 0 ? out : sums[i % 2];
    addLaunch(p, add, {i + 1 == count ? saved[i] : before, saved[i], target}, elements, 64);
    schema::FreeT free;
    free.input = i;
    addCommand(p, std::move(free));
    addCommand(p, schema::BlockEndT{});
    before = target;
  }
  for (uint32_t i = 1; recomputable && i < count; ++i) {
    schema::ProgramT &again = file.addProgram("recompute." + std::to_string(i));
    addPhase(again, schema::Phase::backward);
    uint32_t from = addBuffer(
        again, schema::BufferKind::input,
        addInput(again, "saved." + std::to_string(i - 1), {elements}, schema::ElementType::f32, schema::Role::saved), 0,
        bytes);
    uint32_t y = addBuffer(again, schema::BufferKind::input,
                           addInput(again, "y", {elements}, schema::ElementType::f32, yRole), 0, bytes);
    uint32_t made = addBuffer(again, schema::BufferKind::output,
                              addOutput(again, "saved." + std::to_string(i), {elements}), 0, bytes);
    addLaunch(again, add, {from, y, made}, elements, 64);
  }
  return file;
}

inline Binary makeChain(bool recomputable = false) {
  return Binary::fromMemory(makeChainFile(recomputable).serialize(), {}, "chain.segue");
}

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("segue-services-" + std::to_string(getpid()));
  Folder() {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::vector<Json> lines(const std::string &name) const {
    std::ifstream file(path / name);
    std::vector<Json> lines;
    for (std::string line; std::getline(file, line);)
      lines.push_back(Json::parse(line));
    return lines;
  }
};

class SavedChainTest : public testing::Test {
protected:
  void open(const std::string &spec) {
    scripted = std::make_shared<ScriptedDevice>(spec);
    device = scripted;
  }

  /// Spills everything above 0.6 MiB in use, with room for all on the host.
  Json activation() const {
    return {{"enabled", true},
            {"vram_high_watermark_mb", 0.6},
            {"vram_low_watermark_mb", 0.1},
            {"pinned_pool_classes_mb", {1}},
            {"slabs_per_class", 12},
            {"telemetry_file", (folder.path / "activation.jsonl").string()}};
  }
  Json conductor() const {
    return {{"enabled", true},
            {"telemetry_interval_steps", 1},
            {"telemetry_file", (folder.path / "conductor.jsonl").string()}};
  }
  static Json config(Json activation, Json conductor = nullptr) {
    Json stagehand = {{"activation_stagehand", std::move(activation)}};
    if (!conductor.is_null())
      stagehand["conductor_config"] = std::move(conductor);
    return {{"memory", {{"stagehand", stagehand}}}};
  }
  void start(const Json &config, EventSink *next = nullptr) {
    services =
        MemoryServices::create(device, Config::parse(config.dump(), "test.json"),
                               {.next = next, .recordEvents = recordEvents, .warn = [this](const std::string &text) {
                                  warnings.push_back(text);
                                }});
  }

  Tensor ramp(float start, float step) {
    Tensor host = Tensor::onHost(device, {elements}, ElementType::f32);
    for (int64_t i = 0; i < elements; ++i)
      host.data<float>()[i] = start + step * float(i % 97);
    Tensor placed = copyTo(device, host, TensorDesc({elements}, ElementType::f32));
    wait(placed);
    return placed;
  }

  std::vector<Tensor> forward() { return submit(device, chain.program("forward"), {x, y}, services.get()); }
  std::vector<float> backward(std::vector<Tensor> saved) {
    Tensor sum = toHost(submit(device, chain.program("backward"), std::move(saved), services.get())[0]);
    return {sum.data<float>(), sum.data<float>() + elements};
  }
  void enter(Phase phase) {
    if (services)
      services->enter(phase);
  }
  /// Forward and backward are entered by the programs.
  std::vector<float> step() {
    enter(Phase::StepBegin);
    std::vector<Tensor> saved = forward();
    std::vector<float> sum = backward(std::move(saved));
    enter(Phase::StepEnd);
    return sum;
  }
  void setUp(const std::string &spec) {
    open(spec);
    x = ramp(0.5f, 0.25f);
    y = ramp(1, 0.125f);
    reference = step();
    live = device->memory().liveBytes(Space::DeviceDram);
    pinned = device->memory().liveBytes(Space::HostPinned);
  }

  /// Expects what holds of every record of a step whose needs all happened.
  /// `failed`: spills that were given up.
  static void expectWhole(const Json &record, int64_t failed = 0) {
    EXPECT_EQ(record["activations_saved"], count);
    EXPECT_EQ(int64_t(record["activations_saved"]), int64_t(record["activations_kept"]) +
                                                        int64_t(record["activations_spilled"]) +
                                                        int64_t(record["activations_recomputed"]));
    EXPECT_EQ(int64_t(record["pool_hits"]) + int64_t(record["pool_misses"]), int64_t(record["activations_spilled"]));
    EXPECT_LE(int64_t(record["activations_spilled"]) - int64_t(record["activations_rescued"]) - failed,
              int64_t(record["activations_restored"]));
    EXPECT_EQ(record["activations_leaked"], 0);
    EXPECT_EQ(record["aborted"], false);
  }
  /// Nothing that a step took is held any more, tokens and slabs included.
  void expectNothingLeft() {
    EXPECT_LE(device->memory().liveBytes(Space::DeviceDram), live);
    if (Json record = services->conductorRecord(); record.is_object() && record.contains("h2d_inflight")) {
      EXPECT_EQ(record["h2d_inflight"], 0);
      EXPECT_EQ(record["d2h_inflight"], 0);
      EXPECT_EQ(record["vram_reserved_uncommitted_mb"], 0);
    }
  }

  Folder folder;
  std::shared_ptr<ScriptedDevice> scripted;
  DeviceRef device;
  Binary chain = makeChain();
  std::filesystem::path recordEvents;
  std::vector<std::string> warnings;
  Tensor x, y;
  std::vector<float> reference;
  uint64_t live = 0, pinned = 0;
  std::unique_ptr<MemoryServices> services;
};

inline constexpr const char *plainSim = "sim:dram=8MiB,pinned=32MiB,link=8GB/s,latency=1us,threads=1";

/// Changes a byte of what lies on the host, before it comes back.
struct Vandal : EventSink {
  bool armed = false;
  void receive(const Event &event) override { deliver(*this, event); }
  void on(const event::Restore &restore) {
    if (armed && restore.input == 5 && restore.saved.desc().layout.space == Space::HostPinned)
      restore.saved.data<uint8_t>()[1000] ^= 1;
  }
};

} // namespace segue::test

#endif // SEGUE_TEST_SERVICES_SAVEDCHAIN_H
