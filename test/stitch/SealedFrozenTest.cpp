//===- SealedFrozenTest.cpp - what never changes is sealed once -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Frozen weights that a slab, a file or memory holds are copied to the disk by the first
// seal, and named by the next ones; who resumes needs neither the slab nor the file. What a
// checkpoint takes from a slab is in memory one tensor at a time.
//
//===----------------------------------------------------------------------===//

#include "../../runtime/lib/Drivers/DiskDevice.h"
#include "../../runtime/lib/Session/SealedCheckpoint.h"
#include "LoraModel.h"
#include "Session/ExpectError.h"
#include "segue/runtime/Memory/DeviceMemory.h"
#include "segue/runtime/Session/RunBudget.h"

using namespace segue;
using namespace segue::test;

namespace {
/// One frozen weight, all six, and what is trained and kept beside them: 36 tensors.
constexpr uint64_t layerBytes = loraWidth * loraWidth * 4, baseBytes = 6 * layerBytes;
constexpr uint64_t trainedBytes = 6 * 3 * 2 * loraWidth * loraRank * 4;

class SealedFrozen : public testing::Test {
protected:
  SealedFrozen() {
    // A spill file lies on a disk, where a folder for temporary files may be memory.
    std::string pattern = (std::filesystem::current_path() / "segue-frozen-XXXXXX").string();
    if (!::mkdtemp(pattern.data()))
      throw std::runtime_error("no folder for spill files");
    spill = pattern;
  }
  ~SealedFrozen() override { std::filesystem::remove_all(spill); }

  DeviceRef open(const char *capacity = "16MiB") {
    return openDiskDevice(DeviceOptions("cpu", "threads=1,dram=2MiB,disk=" + spill.string() + "?capacity=" + capacity));
  }
  /// Weights come by block from the slab, if it is there, or from whatever they are loaded from.
  Session make(const DeviceRef &device, bool fromSlab) {
    Json root = Json::parse(precisionConfig(folder, ""));
    if (!fromSlab)
      for (const char *key : {"squareq_slab_path", "squareq_manifest_path"})
        root["memory"]["stagehand"].erase(key);
    SessionOptions options;
    options.config = RunBudget{2 << 20, spill}.config(Config::parse(root.dump(), "test"));
    options.warn = [](const std::string &) {};
    return loraSession(device, "", std::move(options));
  }
  static float stepOf(Session &session) {
    return float(session.step(loraBatch(session.device(), session.stepCount()), 1e-2).loss);
  }
  /// The losses of the steps up to the fifth, of this session or of one in memory that goes on from the checkpoint.
  static std::vector<float> rest(Session &session) {
    std::vector<float> losses;
    while (session.stepCount() < 5)
      losses.push_back(stepOf(session));
    return losses;
  }
  std::vector<float> resumed(const DeviceRef &device) {
    Session session = loraSession(device);
    session.load(path);
    return rest(session);
  }

  LoraFolder folder;
  std::filesystem::path spill, path = folder.path / "checkpoint";
};
} // namespace

TEST_F(SealedFrozen, ASlabIsCopiedOnce) {
  DeviceRef device = open();
  std::vector<float> losses;
  {
    Session session = make(device, /*fromSlab=*/true);
    ASSERT_EQ(session.slabParameters().size(), 6u);
    EXPECT_GE(session.sealRoom(), baseBytes);
    session.sealAt(path);
    for (int i = 0; i < 3; ++i) {
      stepOf(session);
      device->memory().resetPeak();
      uint64_t before = device->memory().liveBytes(Space::Host);
      Session::SealFigures figures = session.seal();
      EXPECT_GE(figures.sealedBytes, baseBytes);
      EXPECT_LT(figures.fileBytes, baseBytes / 2) << "the base is not in it";
      // It took baseBytes more each time.
      EXPECT_GE(figures.writtenBytes, i ? 0 : baseBytes);
      EXPECT_LE(figures.writtenBytes, (i ? 0 : baseBytes) + trainedBytes);
      EXPECT_LE(device->memory().peakBytes(Space::Host) - before, i ? trainedBytes / 36 : layerBytes)
          << "one tensor at a time";
    }
    EXPECT_EQ(session.seal().writtenBytes, 0u);
    // It goes back to what it has sealed; the base is the slab's, as before.
    losses = rest(session);
    session.load(path);
    EXPECT_EQ(session.slabParameters().size(), 6u);
    EXPECT_LE(session.seal().writtenBytes, trainedBytes);
    EXPECT_EQ(rest(session), losses);
  }
  for (const char *name : {"int8.safetensors", "int8.manifest.json", "base.safetensors"})
    std::filesystem::remove(folder.path / name);
  EXPECT_EQ(resumed(device), losses);
}

// Whole checkpoints, and a restore from one, too.
TEST_F(SealedFrozen, ACheckpointHoldsOneTensorOfASlab) {
  DeviceRef device = open();
  Session session = make(device, /*fromSlab=*/true);
  stepOf(session);
  auto mostOf = [&](auto &&call) {
    device->memory().resetPeak();
    uint64_t before = device->memory().liveBytes(Space::Host);
    call();
    EXPECT_EQ(device->memory().liveBytes(Space::Host), before);
    return device->memory().peakBytes(Space::Host) - before;
  };
  Checkpoint checkpoint;
  EXPECT_EQ(mostOf([&] { checkpoint = session.checkpoint(); }), 0u);
  EXPECT_EQ(checkpoint.deferred.size(), 6u);
  EXPECT_EQ(mostOf([&] { session.save(path); }), layerBytes);
  EXPECT_EQ(SafetensorsFile::open(path).entries().size(), 6u * 7);
  std::vector<float> losses = rest(session);
  session.load(path);
  EXPECT_EQ(rest(session), losses);
  // Its own values are in place; another session takes the tensors one by one.
  session.restore(checkpoint);
  EXPECT_EQ(session.slabParameters().size(), 6u);
  Session other = loraSession(Device::open("cpu:threads=1"));
  session.load(path);
  other.restore(session.checkpoint());
  EXPECT_EQ(rest(other), losses);
  checkpoint = session.checkpoint();
  checkpoint.deferred["nobody"] = checkpoint.deferred.begin()->second;
  EXPECT_ERROR(other.restore(checkpoint), NameUnknown, "\"nobody\"");
}

TEST_F(SealedFrozen, AFileIsCopiedOnceAndMayGo) {
  std::filesystem::path weights = folder.path / "weights.safetensors";
  std::vector<float> losses;
  DeviceRef device = open();
  {
    Session session = make(device, /*fromSlab=*/false);
    session.save(weights);
    session.loadWeights(weights);
    session.sealAt(path);
    stepOf(session);
    Session::SealFigures figures = session.seal();
    EXPECT_GE(figures.writtenBytes, baseBytes) << "frozen weights lie in their file";
    stepOf(session);
    EXPECT_LE(session.seal().writtenBytes, trainedBytes);
    losses = rest(session);
    // A file that changes cannot be sealed, nor does it change what is.
    std::string bytes(std::filesystem::file_size(weights), 'x');
    std::ofstream(weights) << bytes;
    EXPECT_ERROR(session.seal(), SourceChanged, "weights.safetensors");
  }
  EXPECT_EQ(resumed(device), losses);
}

// Without services all lies in memory: what is frozen there may be changed by whoever shares it.
TEST_F(SealedFrozen, WhatChangesIsSealedAsItIs) {
  DeviceRef device = open();
  auto frozenIn = [&](const std::string &key) {
    return values(loadCheckpoint(device, path).parameters.at(key));
  };
  for (int i = 0; i < 2; ++i) { // one session after the other, on one disk
    Session session = loraSession(device);
    EXPECT_EQ(session.sealRoom(), baseBytes);
    session.sealAt(path);
    stepOf(session);
    // The copies of the session before are sealed until this one has sealed without them.
    EXPECT_EQ(session.seal().writtenBytes, i ? 0 : baseBytes);
    EXPECT_EQ(session.seal().writtenBytes, i ? baseBytes : 0);
    const std::string key = "h.3.fc.weight";
    for (int round = 0; round < 4; ++round) {
      Tensor value = randomTensor(device, {loraWidth, loraWidth}, uint32_t(round + i));
      session.setParameter(key, value);
      Session::SealFigures changed = session.seal(), same = session.seal(), next = session.seal();
      EXPECT_EQ(frozenIn(key), values(value));
      EXPECT_EQ(frozenIn("h.2.fc.weight"), values(LoraFolder::baseWeight(device, 2)));
      // The copy of before is sealed until the next seal, and its place is free then.
      EXPECT_EQ(changed.writtenBytes, 0u);
      EXPECT_GT(changed.fileBytes, same.fileBytes + layerBytes / 2);
      EXPECT_EQ(same.writtenBytes, layerBytes);
      EXPECT_EQ(next.writtenBytes, 0u);
    }
  }
}

TEST_F(SealedFrozen, RoomForCopiesIsThereBeforeTheFirstStepOrNever) {
  {
    Session session = loraSession(open("96KiB"));
    session.sealAt(path);
    stepOf(session);
    EXPECT_EQ(session.seal().sealedBytes, baseBytes);
  }
  Session session = loraSession(open("92KiB"));
  EXPECT_ERROR(session.sealAt(path), DeviceOom, "a copy of what is frozen and lies elsewhere");
}
