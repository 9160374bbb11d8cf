//===- WeightChunksTest.cpp - blocks that are more than a slab ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A block of a file that is more than one slab of the pinned pool passes through
// several, chunk by chunk.
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "StreamedChains.h"
#include "segue/runtime/Files/Safetensors.h"
#include <filesystem>
#include <unistd.h>

using namespace segue;
using namespace segue::test;
namespace fs = std::filesystem;

namespace {
class WeightChunksTest : public testing::Test {
protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("segue-chunks-" + std::to_string(::getpid()));
    fs::create_directories(folder);
    path = folder / "weights.safetensors";
  }
  void TearDown() override { fs::remove_all(folder); }

  /// The weights of the first chain, as `element`, to the file.
  void save(Model &model, ElementType element) {
    TensorMap tensors;
    for (size_t i = 0; i < model.layers(0); ++i) {
      Tensor &weight = model.weightTensor(0, i);
      TensorDesc desc(weight.shape(), element, {.space = Space::Host});
      tensors["w" + std::to_string(i)] = copyTo(host, weight, desc);
    }
    saveSafetensors(path, tensors);
  }
  /// The first chain from the file, the second from the host.
  void stream(Model &model, WeightStreamer &streamer) {
    model.stream(streamer, [&, file = openedFile(path)](size_t chain, size_t layer) {
      WeightSource source;
      if (chain == 1) {
        source.host = model.weightTensor(1, layer);
      } else {
        source.file = file;
        source.name = "w" + std::to_string(layer);
      }
      return source;
    });
  }

  DeviceRef host = Device::open("cpu");
  fs::path folder, path;
};

uint64_t pageable(const DeviceRef &device) { return device->transfer().counters().pageableCopies; }
} // namespace

/// Slabs are 1 MiB. One weight of 3.5, and 14 of 0.24 in a block.
static constexpr ChainSize wide{.layers = 2, .width = 958};
static constexpr ChainSize many{.layers = 15, .width = 252, .firstLayers = 14};
static constexpr const char *fourSlabs = R"(, "pinned_pool_mb": 4, "pinned_slab_mb": 1, "prefetch_window_blocks": 1)";

TEST_F(WeightChunksTest, PassThroughSeveralSlabs) {
  for (const ChainSize &first : {wide, many})
    for (const char *spec : {"sim:dram=64MiB", "sim:dram=64MiB,adversarial=3", "cpu"}) {
      SCOPED_TRACE(spec + std::to_string(first.layers));
      ChainSize second{.layers = 1, .width = first.width, .isTrained = true};
      DeviceRef device = Device::open(spec);
      Model resident(device, first, second), model(device, first, second);
      save(model, ElementType::f32);
      resident.placeAll();
      WeightStreamer streamer(device, quiet(fourSlabs), {.slots = 2});
      stream(model, streamer);
      for (int step = 0; step < 2; ++step) {
        uint64_t before = pageable(device);
        auto expected = resident.step(nullptr);
        uint64_t without = pageable(device) - before;
        EXPECT_EQ(model.step(&streamer), expected);
        EXPECT_EQ(pageable(device) - before, 2 * without) << "no weight went through pageable memory";
      }
      EXPECT_EQ(streamer.policy().slabs().peakInUse(), 4);
      EXPECT_EQ(streamer.record()["host_pool_in_use"], 0);
    }
}

// What is converted on its way is cut between rows.
TEST_F(WeightChunksTest, ConvertedWeightsAreCutBetweenRows) {
  ChainSize first{.layers = 1, .width = 1300}, second{.layers = 1, .width = 1300, .isTrained = true}; // 3.2 MiB of bf16
  DeviceRef device = Device::open("sim:dram=64MiB");
  Model resident(device, first, second), model(device, first, second);
  Tensor &weight = resident.weightTensor(0, 0);
  weight = copyTo(device, copyTo(host, weight, TensorDesc(weight.shape(), ElementType::bf16, {.space = Space::Host})),
                  TensorDesc(weight.shape(), ElementType::f32, {.space = Space::Host}));
  wait(weight);
  save(model, ElementType::bf16);
  resident.placeAll();
  WeightStreamer streamer(device, quiet(std::string(fourSlabs) + R"(, "strict_bf16": false)"), {.slots = 2});
  stream(model, streamer);
  uint64_t before = pageable(device);
  auto expected = resident.step(nullptr);
  uint64_t without = pageable(device) - before;
  EXPECT_EQ(model.step(&streamer), expected);
  EXPECT_EQ(pageable(device) - before, 2 * without);
  EXPECT_EQ(streamer.policy().slabs().peakInUse(), 4);
}

// Any one chunk that does not get through ends the step; nothing of its block is
// used, all slabs are back, and the next step has the bits that it should have.
TEST_F(WeightChunksTest, AChunkThatFailsLeavesNothing) {
  ChainSize second{.layers = 1, .width = wide.width, .isTrained = true};
  int failed = 0;
  for (std::string times : {"x2", "x4"})
    for (int chunk = 1; chunk <= 4; ++chunk) {
      SCOPED_TRACE("chunk " + std::to_string(chunk) + times);
      DeviceRef calm = Device::open("sim:dram=64MiB");
      Model resident(calm, wide, second);
      calm->drain();
      uint64_t copies = calm->transfer().counters().h2dCopies + 1; // x goes before the chunks
      resident.placeAll();
      auto expected = resident.step(nullptr);
      DeviceRef device = Device::open("sim:dram=64MiB,fail-h2d=" + std::to_string(copies + uint64_t(chunk)) + times);
      Model model(device, wide, second);
      save(model, ElementType::f32);
      WeightStreamer streamer(device, quiet(fourSlabs), {.slots = 2});
      stream(model, streamer);
      try {
        ASSERT_EQ(model.step(&streamer), expected);
        EXPECT_NE(times, "x4") << "two tries, twice";
      } catch (const Error &error) {
        ++failed;
        EXPECT_EQ(error.code(), ErrorCode::TransferFailed);
        EXPECT_EQ(times, "x4") << error.what();
        EXPECT_NE(std::string(error.what()).find("weight \"a.w0\" of block \"a/h.0\", from " + path.string()),
                  std::string::npos)
            << error.what();
        streamer.abortStep();
        EXPECT_EQ(streamer.policy().slabs().inUse(), 0);
        EXPECT_EQ(streamer.policy().slabs().free(), 4);
        EXPECT_EQ(streamer.policy().state("a/h.0"), BlockState::Unloaded);
        ASSERT_EQ(model.step(&streamer), expected);
      }
    }
  EXPECT_EQ(failed, 4);
}
