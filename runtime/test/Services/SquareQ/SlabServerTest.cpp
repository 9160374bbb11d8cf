//===- SlabServerTest.cpp - weights from a slab to a device ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "Services/SquareQ/SlabFixture.h"
#include "Session/ExpectError.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;

namespace {

constexpr const char *allDevices[] = {"cpu", "sim:dram=64MiB,link=16GB/s,latency=10us", "sim:dram=64MiB,adversarial=3"};

const std::vector<std::string> blockOrder = {"blocks.0.fc1.weight", "blocks.0.fc2.weight", "blocks.0.out.weight",
                                             "blocks.1.fc1.weight", "blocks.1.fc2.weight", "blocks.1.out.weight",
                                             "conv.weight"};

class SlabServerTest : public SlabFixture {
protected:
  /// Flips a bit of a tensor of the slab, without a trace in the file's times:
  /// call before open().
  void damage(const std::string &key, uint64_t at = 5) {
    SafetensorsFile file = SafetensorsFile::open(folder_ / "slab.safetensors");
    std::fstream stream(folder_ / "slab.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    std::streamoff offset = std::streamoff(file.find(key)->offset + at);
    stream.seekg(offset);
    char byte = char(stream.get());
    stream.seekp(offset);
    stream.put(char(byte ^ 4));
  }
};

} // namespace

static std::shared_ptr<const TensorDesc> denseOf(const Slab &slab, std::string_view name, ElementType element) {
  return std::make_shared<const TensorDesc>(TensorDesc(slab.desc(name, element).shape, element));
}

/// The bytes of a tensor, wherever it is, in its logical element type.
static std::vector<std::byte> bytesOf(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return {host.bytes(), host.bytes() + host.elementCount() * byteSize(host.element())};
}

static std::vector<std::byte> reference(const Slab &slab, std::string_view name, ElementType element) {
  std::vector<std::byte> dense(denseOf(slab, name, element)->spanBytes());
  slab.copyDequantized(name, element, dense);
  return dense;
}

// The same bits on every device, for every scheme and type, read ahead or not.
TEST_F(SlabServerTest, ServesTheDequantisedWeight) {
  for (SlabScheme scheme : allSlabSchemes) {
    build({.scheme = scheme});
    auto slab = open();
    for (const char *spec : allDevices)
      for (uint64_t readAheadBytes : {uint64_t(0), uint64_t(1) << 20}) {
        DeviceRef device = Device::open(spec);
        SlabServer server(device, slab, {.readAheadBytes = readAheadBytes});
        server.readAhead(blockOrder);
        server.waitForReadAhead();
        for (ElementType element : {ElementType::bf16, ElementType::f32, ElementType::f16})
          for (const std::string &name : blockOrder) {
            Tensor served = server.serve(name, denseOf(*slab, name, element));
            EXPECT_EQ(bytesOf(served), reference(*slab, name, element)) << name << " " << spec;
          }
        EXPECT_EQ(server.readAheadHits() + server.readAheadMisses(), 3 * blockOrder.size());
        EXPECT_EQ(server.readAheadHits() > 0, readAheadBytes > 0) << spec;
      }
  }
}

// Rule R3: codes and scales cross, padding with them, zero points do not.
TEST_F(SlabServerTest, SendsStoredBytes) {
  auto slab = open();
  DeviceRef device = Device::open(allDevices[1]);
  SlabServer server(device, slab);
  uint64_t sent = 0, bf16 = 0;
  for (const std::string &name : blockOrder) {
    uint64_t before = device->transfer().counters().h2dBytes;
    Tensor served = server.serve(name, denseOf(*slab, name, ElementType::bf16));
    uint64_t link = device->transfer().counters().h2dBytes - before;
    SlabSize size = slab->size(name);
    EXPECT_EQ(link, size.qweight + size.scale) << name;
    EXPECT_EQ(link, size.sent(/*zeroPoints=*/false));
    EXPECT_EQ(link, server.linkBytes(name));
    sent += link;
    bf16 += size.bf16;
    wait(served);
  }
  server.blockServed();
  SlabTelemetry telemetry = server.takeTelemetry();
  EXPECT_EQ(telemetry.bytesH2d, sent);
  EXPECT_EQ(telemetry.bytesSaved, int64_t(bf16) - int64_t(sent));
  EXPECT_EQ(telemetry.blocksServed, 1u);
  EXPECT_EQ(telemetry.crcFailures, 0u);
  device->drain();
  EXPECT_GT(telemetry.dequantMs + server.takeTelemetry().dequantMs, 0);
  std::vector<std::string> keys;
  Json record = telemetry.json();
  for (const auto &[key, value] : record.items())
    keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"squareq_blocks_served", "squareq_bytes_h2d", "squareq_bytes_saved",
                                            "dequant_ms", "fused_calls", "crc_failures"}));
  // Sums since the last call.
  EXPECT_EQ(server.takeTelemetry().bytesH2d, 0u);
}

// The table of docs/specs/runtime-stitching.md: [3072, 3072] is 9,449,472 bytes.
TEST_F(SlabServerTest, SendsWhatTheTableSays) {
  model_.clear();
  model_["fc.weight"] = gaussianTensor({3072, 3072}, ElementType::f32, 1);
  build({});
  auto slab = open();
  DeviceRef device = Device::open(allDevices[1]);
  SlabServer server(device, slab, {.readAheadBytes = 0});
  Tensor served = server.serve("fc.weight", denseOf(*slab, "fc.weight", ElementType::bf16));
  wait(served);
  EXPECT_EQ(server.takeTelemetry().bytesH2d, 9449472u);
  EXPECT_EQ(device->transfer().counters().h2dBytes, 9449472u);
}

// The low-bit scheme crosses in 4 bits and is unpacked there.
TEST_F(SlabServerTest, SendsFourBits) {
  build({.scheme = SlabScheme::Int4Group});
  auto slab = open();
  DeviceRef device = Device::open(allDevices[1]);
  SlabServer server(device, slab);
  wait(server.serve("blocks.0.fc2.weight", denseOf(*slab, "blocks.0.fc2.weight", ElementType::bf16)));
  // [96, 160] padded to 192: half a byte each, and a bf16 per 64 of them.
  EXPECT_EQ(server.takeTelemetry().bytesH2d, 96u * 96 + 96 * 3 * 2);
}

// Zero points that are not all 0 cross, and count.
TEST_F(SlabServerTest, SendsZeroPointsThatMatter) {
  float zero = 3;
  {
    SafetensorsFile file = SafetensorsFile::open(folder_ / "slab.safetensors");
    std::fstream stream(folder_ / "slab.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(std::streamoff(file.find("blocks.0.fc1.zero_point")->offset));
    stream.write(reinterpret_cast<const char *>(&zero), 4);
  }
  auto slab = open(SlabVerify::None);
  for (const char *spec : allDevices) {
    DeviceRef device = Device::open(spec);
    SlabServer server(device, slab);
    std::string name = "blocks.0.fc1.weight";
    EXPECT_EQ(bytesOf(server.serve(name, denseOf(*slab, name, ElementType::f32))),
              reference(*slab, name, ElementType::f32));
    if (!device->hasUnifiedMemory()) {
      EXPECT_EQ(server.takeTelemetry().bytesH2d, slab->size(name).sent(/*zeroPoints=*/true));
    }
  }
}

// Codes on the device, for products that read them.
TEST_F(SlabServerTest, ServesCodes) {
  for (SlabScheme scheme : allSlabSchemes)
    for (const char *spec : allDevices) {
      build({.scheme = scheme});
      auto slab = open();
      DeviceRef device = Device::open(spec);
      SlabServer server(device, slab);
      std::vector<Tensor> held;
      for (const std::string &name : blockOrder)
        held.push_back(server.serve(name, std::make_shared<const TensorDesc>(server.storedDesc(name))));
      // None lies in a buffer that was used again.
      for (size_t i = 0; i < held.size(); ++i) {
        EXPECT_EQ(held[i].desc().layout.storage, slab->layer(blockOrder[i]).form()->storage());
        EXPECT_EQ(bytesOf(held[i]), reference(*slab, blockOrder[i], ElementType::bf16)) << blockOrder[i] << spec;
      }
      EXPECT_EQ(server.takeTelemetry().dequantMs, 0);
    }
}

// Into a slot of the caller, any layout of it.
TEST_F(SlabServerTest, ServesIntoASlot) {
  auto slab = open();
  for (const char *spec : allDevices) {
    DeviceRef device = Device::open(spec);
    SlabServer server(device, slab);
    std::string name = "blocks.1.out.weight"; // 100 columns, padded to 128
    TensorDesc strided(slab->desc(name).shape, ElementType::f32, Layout{.strides = {112, 1}});
    for (const TensorDesc &desc : {*denseOf(*slab, name, ElementType::bf16), strided}) {
      Tensor slot = Tensor::empty(device, desc);
      uint64_t version = slot.storage()->version();
      EXPECT_TRUE(server.serveInto(name, slot));
      EXPECT_EQ(bytesOf(slot), reference(*slab, name, desc.element)) << spec;
      EXPECT_EQ(slot.storage()->version(), version + 1);
    }
  }
}

// A bit has flipped: the weight comes from the checkpoint, or the step fails,
// and the damaged bytes reach nobody.
TEST_F(SlabServerTest, ServesDamagedWeightsFromTheCheckpoint) {
  damage("blocks.1.fc2.qweight");
  auto slab = open();
  std::string name = "blocks.1.fc2.weight";
  for (const char *spec : allDevices)
    for (uint64_t readAheadBytes : {uint64_t(0), uint64_t(1) << 20}) {
      DeviceRef device = Device::open(spec);
      SlabServer bare(device, slab, {.readAheadBytes = readAheadBytes});
      bare.readAhead(blockOrder);
      bare.waitForReadAhead();
      auto wanted = denseOf(*slab, name, ElementType::bf16);
      EXPECT_ERROR(bare.serve(name, wanted), ChecksumMismatch, "no checkpoint to serve it from");
      EXPECT_EQ(bare.takeTelemetry().crcFailures, 1u);
      // The others are served as ever.
      EXPECT_EQ(bytesOf(bare.serve("conv.weight", denseOf(*slab, "conv.weight", ElementType::f32))),
                reference(*slab, "conv.weight", ElementType::f32));

      SlabServer server(
          device, slab,
          {.readAheadBytes = readAheadBytes, .fallback = checkpointFallback(folder_ / "model.safetensors")});
      server.readAhead(blockOrder);
      Tensor served = server.serve(name, wanted);
      Tensor source = model_.find(name)->second; // bf16
      EXPECT_EQ(bytesOf(served), bytesOf(source)) << spec;
      // It stays so, should the bytes be right the next time: forward and
      // backward of a step read the same.
      auto time = std::filesystem::last_write_time(folder_ / "slab.safetensors");
      auto flip = [&] {
        damage("blocks.1.fc2.qweight");
        std::filesystem::last_write_time(folder_ / "slab.safetensors", time);
      };
      flip();
      Tensor slot = Tensor::empty(device, *wanted);
      EXPECT_TRUE(server.serveInto(name, slot));
      EXPECT_EQ(bytesOf(slot), bytesOf(source));
      flip();
      SlabTelemetry telemetry = server.takeTelemetry();
      EXPECT_EQ(telemetry.crcFailures, 1u);
      if (!device->hasUnifiedMemory()) {
        EXPECT_EQ(telemetry.bytesH2d, 2 * slab->size(name).bf16);
      }
    }
}

// Somebody keeps the books of page-locked memory: as many buffers as are granted;
// where none is, two of other memory.
TEST_F(SlabServerTest, TakesTheBuffersThatAreGranted) {
  auto slab = open();
  DeviceRef device = Device::open(allDevices[1]);
  for (size_t granted : {0, 1, 3}) {
    SlabServer server(device, slab, {.readAheadBytes = 0});
    EXPECT_EQ(server.buffers(), 0u);
    uint64_t before = device->memory().liveBytes(Space::HostPinned), reserved = 0;
    size_t left = granted;
    server.takeBuffers(uint64_t(1) << 20, [&](uint64_t bytes) {
      reserved += left ? bytes : 0;
      return left && left--;
    });
    EXPECT_EQ(server.buffers(), granted ? granted : 2);
    EXPECT_EQ(device->memory().liveBytes(Space::HostPinned) - before, reserved);
    server.takeBuffers(uint64_t(1) << 20, {}); // once
    EXPECT_EQ(server.buffers(), granted ? granted : 2);
    server.readAhead(blockOrder);
    server.waitForReadAhead();
    for (const std::string &name : blockOrder) // also those that no buffer is left for
      EXPECT_EQ(bytesOf(server.serve(name, denseOf(*slab, name, ElementType::f32))),
                reference(*slab, name, ElementType::f32));
    EXPECT_EQ(device->memory().liveBytes(Space::HostPinned) - before, reserved);
    EXPECT_GT(server.readAheadHits(), 0u);
  }
}

// The file was replaced while in use: size, time or inode tell.
TEST_F(SlabServerTest, NoticesAChangedFile) {
  auto slab = open();
  DeviceRef device = Device::open(allDevices[1]);
  SlabServer server(device, slab, {.fallback = checkpointFallback(folder_ / "model.safetensors")});
  std::string name = "blocks.0.fc1.weight";
  auto wanted = denseOf(*slab, name, ElementType::bf16);
  Tensor before = server.serve(name, wanted);
  std::vector<std::byte> expected = reference(*slab, name, ElementType::bf16);
  std::string bytes = readText(folder_ / "slab.safetensors");
  std::filesystem::remove(folder_ / "slab.safetensors");
  writeText(folder_ / "slab.safetensors", bytes);
  EXPECT_ERROR(server.serve(name, wanted), SourceChanged, "another");
  // What was read before stays valid.
  EXPECT_EQ(bytesOf(before), expected);
}

// Asked in another order than was said, twice, again and again.
TEST_F(SlabServerTest, ReadsAheadInAnyOrder) {
  auto slab = open();
  for (const char *spec : allDevices) {
    DeviceRef device = Device::open(spec);
    // Room for two of the largest layers.
    SlabServer server(device, slab, {.readAheadBytes = 2 * slab->layerBytes("blocks.0.fc1.weight")});
    EXPECT_EQ(server.buffers(), 2u);
    uint32_t seed = 7;
    RecordProperty("seed", int(seed));
    std::mt19937 random(seed);
    for (int round = 0; round < 40; ++round) {
      if (random() % 3 == 0) {
        std::vector<std::string> order = blockOrder;
        std::shuffle(order.begin(), order.end(), random);
        order.push_back(order[random() % order.size()]);
        server.readAhead(order);
      }
      const std::string &name = blockOrder[random() % blockOrder.size()];
      EXPECT_EQ(bytesOf(server.serve(name, denseOf(*slab, name, ElementType::bf16))),
                reference(*slab, name, ElementType::bf16))
          << name;
    }
  }
}

// What was read ahead is not read again.
TEST_F(SlabServerTest, HitsWhatWasReadAhead) {
  auto slab = open();
  DeviceRef device = Device::open("cpu");
  SlabServer server(device, slab);
  server.readAhead(blockOrder);
  server.waitForReadAhead();
  for (const std::string &name : blockOrder)
    server.serve(name, denseOf(*slab, name, ElementType::bf16));
  EXPECT_EQ(server.readAheadHits(), blockOrder.size());
  server.serve(blockOrder[0], denseOf(*slab, blockOrder[0], ElementType::bf16));
  EXPECT_EQ(server.readAheadMisses(), 1u);
  EXPECT_ERROR(server.readAhead({"blocks.0.fc3.weight"}), NameUnknown, "blocks.0.fc3.weight");
  EXPECT_TRUE(server.holds("conv.weight"));
  EXPECT_FALSE(server.holds("blocks.0.fc1.bias"));
  EXPECT_FALSE(server.holds("lm_head.weight"));
}

// A speculative copy that the gate denies changes nothing; the bytes stay read.
TEST_F(SlabServerTest, KeepsWhatTheGateDenied) {
  struct Gate : TransferGate {
    Grant acquire(Queue, TransferPriority priority, uint64_t) override {
      return {priority >= TransferPriority::Speculative ? Answer::Deny : Answer::Go, 1};
    }
    uint64_t overrun(Queue, TransferPriority, uint64_t) override { return 1; }
    void passed(Queue, uint64_t, double, bool) override {}
    void complete(uint64_t, uint64_t, double, bool) override {}
  } gate;
  auto slab = open();
  DeviceRef device = Device::open(allDevices[1]);
  device->transfer().setGate(&gate);
  {
    SlabServer server(device, slab);
    server.readAhead({"conv.weight"});
    auto wanted = denseOf(*slab, "conv.weight", ElementType::bf16);
    EXPECT_FALSE(server.serve("conv.weight", wanted, {.priority = TransferPriority::Speculative}));
    EXPECT_EQ(server.takeTelemetry().bytesH2d, 0u);
    uint64_t hits = server.readAheadHits();
    Tensor served = server.serve("conv.weight", wanted);
    EXPECT_EQ(server.readAheadHits(), hits + 1);
    EXPECT_EQ(bytesOf(served), reference(*slab, "conv.weight", ElementType::bf16));
  }
  device->drain();
  device->transfer().setGate(nullptr);
}

// Short of memory on the host there is less read ahead, and the same weights,
// also where the buffers hold what is wanted later.
TEST_F(SlabServerTest, ReadsLessAheadWhereMemoryIsShort) {
  auto slab = open();
  uint64_t largest = slab->layerBytes("blocks.0.fc1.weight");
  DeviceRef device = Device::open("sim:dram=64MiB");
  device->memory().setBudget(Space::HostPinned, largest + 1000);
  device->memory().setBudget(Space::Host, largest + 1000);
  SlabServer server(device, slab);
  EXPECT_EQ(server.buffers(), 2u);
  std::vector<std::vector<std::byte>> expected;
  std::vector<Tensor> served;
  for (int round = 0; round < 2; ++round) {
    server.readAhead({"conv.weight", "blocks.1.out.weight"});
    server.waitForReadAhead();
    for (const std::string &name : blockOrder) {
      served.push_back(server.serve(name, denseOf(*slab, name, ElementType::bf16)));
      expected.push_back(reference(*slab, name, ElementType::bf16));
    }
  }
  // Looked at when there is memory on the host again.
  device->drain();
  device->memory().setBudget(Space::Host, uint64_t(1) << 30);
  for (size_t i = 0; i < served.size(); ++i)
    EXPECT_EQ(bytesOf(served[i]), expected[i]);
}

// On a device without bytes sizes and times are those of the real one.
TEST_F(SlabServerTest, CountsInVirtualTime) {
  auto slab = open();
  DeviceRef device = Device::open("sim:virtual,dram=64MiB,link=16GB/s");
  SlabServer server(device, slab);
  EXPECT_EQ(server.buffers(), 0u);
  for (const std::string &name : blockOrder)
    wait(server.serve(name, denseOf(*slab, name, ElementType::bf16)));
  uint64_t sent = 0;
  for (const std::string &name : blockOrder)
    sent += slab->layerBytes(name);
  EXPECT_EQ(server.takeTelemetry().bytesH2d, sent);
  EXPECT_GT(device->seconds(), double(sent) / 16e9);
}
