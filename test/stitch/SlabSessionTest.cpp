//===- SlabSessionTest.cpp - the slab of a session's config ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A slab that is where frozen weights come from: it is checked against the
// programs, its codes are streamed to products that read codes, and its memory
// is granted by Conductor.
//
//===----------------------------------------------------------------------===//

#include "PrecisionAnswers.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include <cmath>

using namespace segue;
using namespace segue::test;

namespace {
class SlabSessionTest : public testing::Test {
protected:
  DeviceRef device = Device::open(simDevice);
  LoraFolder folder;
  SessionOptions options;

  Session make(const LoraOptions &lora = {}, const std::string &more = "", double highMiB = 2) {
    return loraSession(device, precisionConfig(folder, "", more, highMiB), options, lora);
  }
  std::pair<ErrorCode, std::string> errorOf(const LoraOptions &lora = {}, const std::string &more = "") {
    uint64_t before = device->memory().liveBytes(Space::HostPinned);
    try {
      make(lora, more);
    } catch (const Error &error) {
      EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), before) << "nothing is left of it";
      return {error.code(), error.what()};
    }
    return {ErrorCode::Unsupported, "nothing was thrown"};
  }
  void buildOf(const TensorMap &tensors) {
    saveSafetensors(folder.path / "other.safetensors", tensors);
    folder.build("int8", SlabScheme::PerRowSymmetric, "other.safetensors");
  }
  std::vector<double> train(Session &session, int64_t steps) {
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step)
      losses.push_back(session.step(loraBatch(session.device(), step), 1e-3).loss);
    return losses;
  }
  /// With what the slab holds in place, as it is stored or dequantised, and no
  /// service.
  std::vector<double> resident(int64_t steps, const LoraOptions &lora = {}) {
    DeviceRef cpu = Device::open("cpu:threads=2");
    Session session = loraSession(cpu, "", {}, lora);
    Slab slab(folder.path / "int8.safetensors");
    slab.open();
    for (size_t i = 0; i < lora.scales.size(); ++i) {
      std::string layer = "h." + std::to_string(i) + ".fc";
      if (slab.holds(layer))
        session.setParameter(layer + "." + lora.wrapper + "weight", slab.loadLayer(cpu, layer, ElementType::f32));
    }
    return train(session, steps);
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

// Two hashes tell nobody where to look: what differs is listed, on both sides.
TEST_F(SlabSessionTest, ASlabOfAnotherModelIsRefused) {
  TensorMap tensors;
  for (size_t i = 0; i < 6; ++i)
    tensors["h." + std::to_string(i) + ".fc.weight"] = randomTensor(device, {2 * loraWidth, loraWidth}, uint32_t(i));
  buildOf(tensors);
  auto [code, what] = errorOf();
  EXPECT_EQ(code, ErrorCode::SlabInvalid);
  expectPart(what, "check 7 of the slab failed");
  expectPart(what, "the slab is of another model, or of one whose layers are called otherwise (declare aliases)");
  for (const char *layer : {"h.0.fc", "h.5.fc"})
    expectPart(what, "\"" + std::string(layer) + ".weight\" of shape [64,64], the slab holds [128,64]");

  tensors.clear();
  for (size_t i = 0; i < 6; ++i)
    tensors["blocks." + std::to_string(i) + ".mlp.weight"] = LoraFolder::baseWeight(device, i);
  buildOf(tensors);
  what = errorOf().second;
  expectPart(what, "the program wants \"h.3.fc.weight\", which the slab does not hold");
  expectPart(what, "the slab holds \"blocks.5.mlp\", which the program does not want");

  LoraFolder fewer(5);
  what = messageOf([&] { loraSession(device, precisionConfig(fewer, "")); });
  expectPart(what, "SLAB_INVALID");
  expectPart(what, "the program wants \"h.5.fc.weight\", which the slab does not hold");
}

// What the builder kept in bf16 comes from the session, all else from the slab.
TEST_F(SlabSessionTest, KeptLayersAreTheSessions) {
  folder.build("int8", SlabScheme::PerRowSymmetric, "base.safetensors", {"h.2.fc"});
  Session session = make();
  EXPECT_EQ(session.slabParameters().size(), 5u);
  EXPECT_EQ(train(session, 3), resident(3));
}

TEST_F(SlabSessionTest, TrainedLayersAreRefused) {
  auto [code, what] = errorOf({.trainsLastBase = true});
  EXPECT_EQ(code, ErrorCode::SlabInvalid);
  expectPart(what, "the program trains \"h.5.fc.weight\", which the slab holds: it serves frozen weights alone; freeze "
                   "it, or build the slab with --keep-bf16 \"h.5.fc\"");
  folder.build("int8", SlabScheme::PerRowSymmetric, "base.safetensors", {"h.5.fc"});
  Session session = make({.trainsLastBase = true});
  EXPECT_EQ(session.slabParameters().size(), 5u);
  EXPECT_EQ(train(session, 3), resident(3, {.trainsLastBase = true}));
}

// An adapter's component "orig" is left out; others are declared.
TEST_F(SlabSessionTest, NamesUnderAdapters) {
  std::vector<double> expected = resident(3);
  Session wrapped = make({.wrapper = "orig."});
  EXPECT_EQ(wrapped.slabParameters().size(), 6u);
  EXPECT_EQ(train(wrapped, 3), expected);
  EXPECT_EQ(wrapped.services()->weightRecord()["squareq_blocks_served"], wrapped.services()->weightRecord()["loads"]);
  LoraOptions base{.wrapper = "base."};
  expectPart(errorOf(base).second, "the program wants \"h.0.fc.base.weight\", which the slab does not hold");
  options.aliases = {{"fc.base", "fc"}};
  Session aliased = make(base);
  EXPECT_EQ(aliased.slabParameters().size(), 6u);
  EXPECT_EQ(train(aliased, 3), expected);
  // So is a file of weights.
  SessionOptions plain;
  plain.aliases = options.aliases;
  Session loaded = loraSession(device, "", plain, base);
  TensorMap tensors;
  for (const ParameterInfo &info : loaded.parameters())
    tensors[info.key.ends_with("base.weight") ? info.key.substr(0, 7) + "weight" : info.key] =
        loraValue(device, info.key, info.desc);
  saveSafetensors(folder.path / "plain.safetensors", tensors);
  EXPECT_TRUE(loaded.loadWeights(folder.path / "plain.safetensors").empty());
}

//===----------------------------------------------------------------------===//
// Codes
//===----------------------------------------------------------------------===//

// Programs that read codes get codes: the bits of a run that holds them all, and
// neither the link nor a slot sees a float of a weight.
TEST_F(SlabSessionTest, ProductsOfCodesAreStreamedAsCodes) {
  LoraOptions codes{.frozenStorage = "int8_row"};
  std::vector<double> expected = resident(5, codes);
  EXPECT_NE(expected, resident(5)) << "sums of floats are rounded otherwise";
  int64_t stored = 64 * 64 + 64 * 4, adapters = 2 * 4 * 64 * 4;
  for (const char *serve : {"fused", "dequant"}) { // either way a program gets what it reads
    SCOPED_TRACE(serve);
    device = Device::open(simDevice);
    Session session = make(codes, R"(, "squareq": {"serve": ")" + std::string(serve) + "\"}", /*highMiB=*/0.06);
    EXPECT_EQ(session.slabParameters().size(), 6u);
    uint64_t calls = device->engine().fusedCalls();
    EXPECT_EQ(train(session, 5), expected);
    device->drain();
    EXPECT_EQ(device->engine().fusedCalls() - calls, 5u * 11) << "the first block's x has no derivative";
    const WeightStreamer &weights = *session.services()->weights();
    EXPECT_EQ(weights.ringBytes(), uint64_t(weights.slots()) * (4608 + 2048)) << "of 512 bytes each";
    Json record = session.services()->weightRecord();
    int64_t loads = record["loads"];
    EXPECT_LT(weights.slots(), 6);
    EXPECT_GT(loads, 6);
    EXPECT_EQ(record["h2d_bytes"], loads * (stored + adapters));
    EXPECT_EQ(record["squareq_bytes_h2d"], loads * stored);
    EXPECT_GT(record["fused_calls"], 0);
    EXPECT_EQ(record["dequant_ms"], 0);
  }
  // Whatever the order of the queues, and without a link.
  for (const char *spec : {"sim:dram=4MiB,pinned=8MiB,adversarial=1", "sim:streams,dram=4MiB,pinned=8MiB,adversarial=1",
                           "cpu:threads=2"}) {
    device = Device::open(spec);
    Session session = make(codes, "", 0.06);
    EXPECT_EQ(train(session, 5), expected) << spec;
  }
}

TEST_F(SlabSessionTest, ServingThatDoesNotFitThePrograms) {
  auto [code, what] = errorOf({}, R"(, "squareq": {"serve": "fused"})");
  EXPECT_EQ(code, ErrorCode::ConfigInvalid);
  expectPart(what, "memory.stagehand.squareq.serve: fused needs programs whose products read codes, and these read "
                   "\"h.5.fc.weight\" as floats; compile them with frozen_storage (segue-compile --frozen-storage), or "
                   "choose dequant");
  std::tie(code, what) = errorOf({.frozenStorage = "fp8_e4m3_row"});
  EXPECT_EQ(code, ErrorCode::SlabInvalid);
  expectPart(what,
             "the programs read other codes than the slab holds; compile them with its frozen_storage, or quantise "
             "with another scheme\n  \"h.0.fc.weight\" is read as fp8_e4m3_row, the slab has int8_row");
  folder.build("int8", SlabScheme::Int4Group, "base.safetensors", {}, /*rank=*/4);
  expectPart(errorOf({.frozenStorage = "int4_group64"}).second,
             "\"h.0.fc.weight\" is rotated or has a low-rank product, which is more than codes");
  folder.build("int8", SlabScheme::PerRowSymmetric);
  std::string precision = precisionConfig(folder, R"({"enabled": true, "mode": "static"})");
  expectPart(messageOf([&] { loraSession(device, precision, {}, {.frozenStorage = "int8_row"}); }),
             "the programs read \"h.0.fc.weight\" as codes, so that there is no form to choose; compile them without "
             "frozen_storage");
  precision = precisionConfig(folder, R"({"enabled": true, "mode": "static"})", R"(, "squareq": {"serve": "fused"})");
  expectPart(messageOf([&] { loraSession(device, precision); }),
             "Selective Precision serves floats; set memory.stagehand.squareq.serve to dequant");
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

// Homes of adapters and buffers of the slab are Conductor's to grant, in this
// order; where it grants less, less is read ahead, and no bit changes.
TEST_F(SlabSessionTest, PinnedMemoryIsGrantedByConductor) {
  std::vector<double> expected = resident(4);
  uint64_t homes = 12 * 1024, buffer = 64 * 64 + 64 * 4;
  auto granted = [&](const std::string &cap) {
    device = Device::open(simDevice);
    Session session = make({}, R"(, "conductor_config": {"enabled": true, "telemetry_enabled": false)" + cap + "}");
    EXPECT_EQ(train(session, 4), expected);
    double mib = session.services()->conductorRecord()["pinned_granted_mb"];
    EXPECT_LE(mib * 1048576, double(device->memory().liveBytes(Space::HostPinned)));
    return uint64_t(std::llround(mib * 1048576));
  };
  EXPECT_EQ(granted(""), homes + 6 * buffer);
  EXPECT_EQ(granted(R"(, "pinned_cap_mb": 0.02)"), homes + buffer);
  EXPECT_EQ(granted(R"(, "pinned_cap_mb": 0.01)"), 10 * 1024u) << "of ten adapters";
  EXPECT_EQ(granted(R"(, "pinned_cap_mb": 0.0001)"), 0u);
}

// The same where slabs are a form beside the source, whose homes are reserved too.
TEST_F(SlabSessionTest, SlabsOfFormsAreGrantedTheirMemory) {
  std::string conductor = R"(, "conductor_config": {"enabled": true, "telemetry_enabled": false})";
  Session session = loraSession(device, precisionConfig(folder, R"({"enabled": true, "mode": "static"})", conductor));
  train(session, 1);
  double mib = session.services()->conductorRecord()["pinned_granted_mb"];
  EXPECT_EQ(std::llround(mib * 1048576), 12 * 1024 + 6 * 64 * 64 * 4 + 6 * (64 * 64 + 64 * 4));
}
