//===- CheckpointFolderTest.cpp - checkpoints of several files ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Session/CheckpointFolder.h"
#include "../../lib/Hash.h"
#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Json.h"
#include <atomic>
#include <cstring>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <thread>

using namespace segue;

static constexpr const char *manifestFile = "model.safetensors.index.json";

/// A tensor whose bytes count up from `first`.
static Tensor countingBytes(Shape shape, ElementType element, int first) {
  static const DeviceRef device = Device::open("cpu");
  Tensor tensor = Tensor::empty(device, TensorDesc(std::move(shape), element));
  for (uint64_t i = 0; i < tensor.elementCount() * byteSize(element); ++i)
    tensor.bytes()[i] = std::byte(uint64_t(first) + i);
  return tensor;
}

static Checkpoint ofStep(int64_t step) {
  int first = int(step);
  return {{{"w", countingBytes({2, 3}, ElementType::bf16, first)}, {"none", countingBytes({0, 4}, ElementType::i8, 0)}},
          {{"m.w", countingBytes({2, 3}, ElementType::f32, first + 9)}},
          step,
          -7,
          R"({"units":1})",
          R"({"scale":2})",
          "notes"};
}

static Checkpoint load(const std::filesystem::path &path) { return loadCheckpoint(Device::open("cpu"), path); }

static std::string bytesOf(const Tensor &tensor) {
  return {reinterpret_cast<const char *>(tensor.bytes()), tensor.elementCount() * byteSize(tensor.element())};
}

static void expectStep(const Checkpoint &read, int64_t step) {
  Checkpoint saved = ofStep(step);
  EXPECT_EQ(read.step, step);
  EXPECT_EQ(read.seed, saved.seed);
  EXPECT_EQ(read.precision, saved.precision);
  EXPECT_EQ(read.lossScale, saved.lossScale);
  EXPECT_EQ(read.notes, saved.notes);
  ASSERT_EQ(read.parameters.size(), 2u);
  ASSERT_EQ(read.state.size(), 1u);
  EXPECT_EQ(bytesOf(read.parameters.at("w")), bytesOf(saved.parameters.at("w")));
  EXPECT_EQ(bytesOf(read.state.at("m.w")), bytesOf(saved.state.at("m.w")));
}

/// Writes a save of `count` parts, as so many ranks do; tensors go to parts by turns.
static void saveInParts(const std::filesystem::path &folder, const Checkpoint &checkpoint, size_t count) {
  CheckpointSave save(folder);
  CheckpointWriters writers;
  std::vector<DeferredTensors> tensors(count);
  auto add = [&](const std::string &name, const Tensor &tensor) {
    int rank = int(writers.size() % count);
    writers[name] = rank;
    tensors[size_t(rank)].emplace(name, deferred(tensor));
  };
  for (const auto &[key, tensor] : checkpoint.parameters)
    add(key, tensor);
  for (const auto &[key, tensor] : checkpoint.state)
    add("segue.state." + key, tensor);
  std::vector<CheckpointPart> parts;
  for (size_t i = 0; i < count; ++i)
    parts.push_back(writeCheckpointPart(folder, save.name(), i, count, tensors[i]));
  save.commit(checkpoint, parts, writers);
}

static std::vector<std::string> filesIn(const std::filesystem::path &folder) {
  std::vector<std::string> names;
  for (const auto &entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

/// Returns the files of parts in their order.
static std::vector<std::filesystem::path> partsIn(const std::filesystem::path &folder) {
  std::vector<std::filesystem::path> parts;
  for (const std::string &name : filesIn(folder))
    if (name.starts_with("segue-"))
      parts.push_back(folder / name);
  return parts;
}

TEST(CheckpointFolder, WhoHasATensorWritesIt) {
  CheckpointWriters writers = shareWriting(
      {{"a", 10}, {"b", 50, 1}, {"c", 30}, {"d", 20}, {"e", 5, 2}, {"f", 0}, {"g", 40}, {"h", 7, 1}}, 3);
  EXPECT_EQ(writers, (CheckpointWriters{
                         {"b", 1}, {"h", 1}, {"e", 2},           // rank 1 has 57, rank 2 has 5
                         {"g", 0}, {"c", 2}, {"d", 2}, {"a", 0}, // 40; 35; 55; 50
                         {"f", 0}}));
  // Tensors that every rank has are written in equal shares.
  std::vector<CheckpointTensor> all;
  for (uint64_t i = 0; i < 100; ++i)
    all.push_back({"t" + std::to_string(i), 100 + i});
  std::vector<uint64_t> bytes(4);
  for (const auto &[name, rank] : shareWriting(all, 4))
    bytes[size_t(rank)] += 100 + std::stoull(name.substr(1));
  EXPECT_LE(std::ranges::max(bytes) - std::ranges::min(bytes), 150u);
}

TEST(CheckpointFolder, RoundTripsOfOneAndSeveralParts) {
  TemporaryFolder folder;
  // A folder that is there, or a slash: one of them is enough.
  saveCheckpoint(folder / "new/", ofStep(41));
  expectStep(load(folder / "new/"), 41);
  expectStep(load(folder / "new"), 41);
  EXPECT_EQ(partsIn(folder / "new").size(), 1u);
  saveCheckpoint(folder / "new", ofStep(42));
  expectStep(load(folder / "new"), 42);
  EXPECT_EQ(filesIn(folder / "new").size(), 2u);
  for (size_t count : {2, 3, 5}) {
    saveInParts(folder / "new", ofStep(int64_t(count)), count);
    expectStep(load(folder / "new"), int64_t(count));
    EXPECT_EQ(filesIn(folder / "new").size(), count + 1);
  }
  EXPECT_ERROR(saveCheckpoint(folder / "a/b/", ofStep(1)), IoFailed, "cannot be made a folder");
  writeText(folder / "file", "");
  EXPECT_ERROR(saveCheckpoint(folder / "file/", ofStep(1)), IoFailed, "cannot be made a folder");
  checkCheckpointPath(folder / "other/");
  EXPECT_EQ(filesIn(folder / "other").size(), 0u);
}

// Only parts of other saves go: also those of a process that ended in the midst of one.
TEST(CheckpointFolder, KeepsFilesThatAreNotItsOwn) {
  TemporaryFolder folder;
  saveInParts(folder / "c/", ofStep(1), 2);
  const std::set<std::string> kept = {"segue-0123456789abcdeg-00001-of-00002.safetensors", // g is no digit
                                      "segue-0123456789abcdef-00001-of-0000a.safetensors",
                                      "segue-0123456789abcdef-00001-of-00002.safetensors.bak",
                                      "model-00001-of-00002.safetensors", "notes.txt"};
  for (const std::string &name : kept)
    writeText(folder / "c" / name, "mine");
  const std::set<std::string> others = {"segue-0123456789abcdef-00003-of-00008.safetensors",
                                        "segue-0123456789abcdef-00007-of-00008.safetensors"};
  std::filesystem::create_symlink("/nowhere", folder / "c" / *others.begin());
  std::filesystem::create_directory(folder / "c" / *others.rbegin());
  for (const char *name : {"segue-0123456789abcdef-00001-of-00002.safetensors",
                           "segue-0123456789abcdef-00002-of-00002.safetensors.partial"})
    writeText(folder / "c" / name, "of a process that ended");
  saveInParts(folder / "c", ofStep(2), 2);
  expectStep(load(folder / "c"), 2);
  std::vector<std::string> left = filesIn(folder / "c");
  EXPECT_EQ(left.size(), kept.size() + others.size() + 3);
  for (const std::set<std::string> &names : {kept, others})
    EXPECT_TRUE(std::ranges::includes(left, names));
}

TEST(CheckpointFolder, AnIndexOfOtherWeightsStays) {
  TemporaryFolder folder;
  const std::string theirs = R"({"metadata": {"total_size": 8}, "weight_map": {"w": "model-00001.safetensors"}})";
  writeText(folder / manifestFile, theirs);
  EXPECT_ERROR(saveCheckpoint(folder.path, ofStep(1)), InvalidArgument, "would be lost");
  EXPECT_ERROR(checkCheckpointPath(folder.path), InvalidArgument, "would be lost");
  EXPECT_ERROR(load(folder.path), InvalidArgument, "load its files as weights");
  EXPECT_EQ(readText(folder / manifestFile), theirs);
  EXPECT_EQ(folder.fileCount(), 1u);
  std::filesystem::remove(folder / manifestFile);
  EXPECT_ERROR(load(folder.path), IoFailed, "is not there, so that the folder has no checkpoint");
}

// A save that does not come to its end, at whatever part, leaves the one before, and nothing of its own.
TEST(CheckpointFolder, ASaveThatFailsLeavesTheOneBefore) {
  TemporaryFolder folder;
  saveInParts(folder / "c/", ofStep(1), 2);
  const std::vector<std::string> before = filesIn(folder / "c");
  Checkpoint checkpoint = ofStep(2);
  CheckpointWriters writers{{"w", 0}};
  DeferredTensors tensors{{"w", deferred(checkpoint.parameters.at("w"))}};
  {
    CheckpointSave save(folder / "c");
    writeCheckpointPart(folder / "c", save.name(), 0, 2, tensors);
    EXPECT_ERROR(CheckpointSave(folder / "c"), IoFailed, "another process is writing it");
  }
  EXPECT_EQ(filesIn(folder / "c"), before);
  auto commit = [&](const CheckpointPart &second, const std::function<void(CheckpointSave &)> &prepare) {
    CheckpointSave save(folder / "c");
    prepare(save);
    std::vector<CheckpointPart> parts{writeCheckpointPart(folder / "c", save.name(), 0, 2, tensors), second};
    save.commit(checkpoint, parts, writers);
  };
  // Another rank has written to another file system, or to another file of that name.
  EXPECT_ERROR(commit({8, "0"}, [](CheckpointSave &) {}), IoFailed, "is not here as rank 1 has written it");
  EXPECT_ERROR(commit({8, "0"},
                      [&](CheckpointSave &save) { writeCheckpointPart(folder / "c", save.name(), 1, 2, {}); }),
               IoFailed, "is not here as rank 1 has written it");
  // Who writes what is not what was written.
  CheckpointPart empty;
  auto writeNone = [&](CheckpointSave &save) { empty = writeCheckpointPart(folder / "c", save.name(), 1, 2, {}); };
  commit(empty, writeNone); // to know what it is
  saveInParts(folder / "c", ofStep(1), 2);
  const std::vector<std::string> again = filesIn(folder / "c");
  writers["b"] = 1;
  EXPECT_ERROR(commit(empty, writeNone), FileCorrupt, "rank 1 has not written the tensor \"b\"");
  writers = {{"w", 1}};
  EXPECT_ERROR(commit(empty, writeNone), FileCorrupt, "has the tensor \"w\", which another rank writes");
  writers = {{"w", 0}};
  checkpoint.notes = "\xff";
  EXPECT_ERROR(commit(empty, writeNone), InvalidArgument, "a text cannot be written");
  EXPECT_EQ(filesIn(folder / "c"), again);
  expectStep(load(folder / "c"), 1);
}

// Whoever reads while a run saves has one save or the other.
TEST(CheckpointFolder, IsReadWhileItIsSaved) {
  TemporaryFolder folder;
  saveInParts(folder / "c/", ofStep(0), 2);
  std::atomic<bool> isOver = false;
  std::jthread writer([&] { // it is joined if a load throws, too
    for (int64_t step = 1; step < 30; ++step) {
      saveInParts(folder / "c", ofStep(step), 2);
      std::this_thread::sleep_for(std::chrono::milliseconds(20)); // a load waits for a tick of the clock of files
    }
    isOver = true;
  });
  int64_t last = 0, loads = 0;
  for (; !isOver; ++loads) {
    Checkpoint read = load(folder / "c");
    expectStep(read, read.step);
    EXPECT_GE(read.step, last);
    last = read.step;
  }
  writer.join();
  EXPECT_GT(loads, 3);
}

TEST(CheckpointFolder, APartAloneIsNoCheckpoint) {
  TemporaryFolder folder;
  saveInParts(folder / "c/", ofStep(1), 2);
  EXPECT_ERROR(load(partsIn(folder / "c")[0]), InvalidArgument, "this is a part of a checkpoint");
}

//===----------------------------------------------------------------------===//
// Manifests and parts from outside
//===----------------------------------------------------------------------===//

static Json jsonOf(const std::filesystem::path &path) {
  Json json;
  EXPECT_FALSE(readJson(readText(path), json));
  return json;
}

/// Gives the manifest the hash of what it says, as somebody who means harm does.
static void writeHashed(const std::filesystem::path &path, Json json) {
  json["metadata"].erase("segue.hash");
  std::string text = json.dump();
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(hashOf(text.data(), text.size())));
  json["metadata"]["segue.hash"] = hash;
  writeText(path, json.dump());
}

namespace {
/// Something that is wrong with a folder of two parts, and what is said of it.
struct Wrong {
  const char *what;
  std::function<void(Json &manifest, const std::filesystem::path &folder)> make;
  const char *said;
};
} // namespace

TEST(CheckpointFolder, WhatIsNotAsItWasWrittenIsRefusedByFileAndKey) {
  using Path = std::filesystem::path;
  auto in = [](const Path &folder, size_t part) { return partsIn(folder)[part]; };
  auto flip = [&](const Path &file, int64_t fromEnd) {
    std::string bytes = readText(file);
    bytes[size_t(int64_t(bytes.size()) - fromEnd)] ^= 4;
    writeText(file, bytes);
  };
  const Wrong all[] = {
      {"a part is missing", [&](Json &, const Path &f) { std::filesystem::remove(in(f, 1)); },
       "-00002-of-00002.safetensors: is not there, and is a part of the checkpoint"},
      {"a part is cut", [&](Json &, const Path &f) { std::filesystem::resize_file(in(f, 0), 100); },
       "-00001-of-00002.safetensors: has 100 bytes, and had"},
      {"a part is empty", [&](Json &, const Path &f) { writeText(in(f, 0), ""); }, "has 0 bytes, and had"},
      {"a byte of a tensor", [&](Json &, const Path &f) { flip(in(f, 0), 1); },
       "tensor \"segue.state.m.w\" does not match its hash"},
      {"a byte of a header", [&](Json &, const Path &f) { flip(in(f, 1), int64_t(readText(in(f, 1)).size()) - 20); },
       "-00002-of-00002.safetensors: "},
      {"parts are exchanged",
       [&](Json &, const Path &f) {
         Path first = in(f, 0), second = in(f, 1);
         std::filesystem::rename(first, f / "x");
         std::filesystem::rename(second, first);
         std::filesystem::rename(f / "x", second);
       },
       "-00001-of-00002.safetensors: "},
      {"a part is a link to itself outside",
       [&](Json &, const Path &f) {
         Path part = in(f, 0), outside = f / ".." / "outside";
         std::filesystem::rename(part, outside);
         std::filesystem::create_symlink(outside, part);
       },
       "is a link, a folder or a device"},
      {"a part is a folder",
       [&](Json &, const Path &f) {
         Path part = in(f, 0);
         std::filesystem::remove(part);
         std::filesystem::create_directory(part);
       },
       "is a link, a folder or a device"},
      {"another save", [](Json &m, const Path &) { m["metadata"]["segue.save"] = "0123456789abcdef"; },
       "segue-0123456789abcdef-00001-of-00002.safetensors: is not there"},
      {"a save elsewhere", [](Json &m, const Path &) { m["metadata"]["segue.save"] = "../../../../../x"; },
       "has no \"segue.save\""},
      {"a save that is no text", [](Json &m, const Path &) { m["metadata"]["segue.save"] = 7; },
       "has no \"segue.save\""},
      {"the bytes of a part", [](Json &m, const Path &) { m["metadata"]["segue.parts"][1]["bytes"] = 1; },
       "-00002-of-00002.safetensors: has "},
      {"the hash of a part", [](Json &m, const Path &) { m["metadata"]["segue.parts"][0]["hash"] = "0"; },
       "-00001-of-00002.safetensors: its header is not that of the file that was saved"},
      {"bytes below 0", [](Json &m, const Path &) { m["metadata"]["segue.parts"][1]["bytes"] = -1; },
       "that is no part"},
      {"a part that is a number", [](Json &m, const Path &) { m["metadata"]["segue.parts"][1] = 1; },
       "that is no part"},
      {"one part less", [](Json &m, const Path &) { m["metadata"]["segue.parts"].erase(1); },
       "-00001-of-00001.safetensors: is not there"},
      {"no parts", [](Json &m, const Path &) { m["metadata"]["segue.parts"] = Json::array(); }, "no \"segue.parts\""},
      {"parts that are none", [](Json &m, const Path &) { m["metadata"]["segue.parts"] = "x"; }, "no \"segue.parts\""},
      {"no step", [](Json &m, const Path &) { m["metadata"].erase("segue.step"); },
       "\"segue.step\" is \"\", not a number"},
      {"a step that is none", [](Json &m, const Path &) { m["metadata"]["segue.step"] = "1e3"; }, "\"segue.step\""},
      {"a step below 0", [](Json &m, const Path &) { m["metadata"]["segue.step"] = "-3"; }, "step -3 is negative"},
      {"another version", [](Json &m, const Path &) { m["metadata"]["segue.checkpoint"] = "5"; }, "version \"5\""},
      {"a version that is none", [](Json &m, const Path &) { m["metadata"]["segue.checkpoint"] = 4; }, "version 4"},
      {"a tensor that no part has", [](Json &m, const Path &) { m["weight_map"]["x"] = m["weight_map"]["w"]; },
       "the tensor \"x\" should be in "},
      {"a tensor that is not named", [](Json &m, const Path &) { m["weight_map"].erase("w"); },
       "the tensor \"w\" is in segue-"},
      {"a tensor elsewhere", [](Json &m, const Path &) { m["weight_map"]["w"] = "../x.safetensors"; },
       "the tensor \"w\" should be in \"../x.safetensors\", and is in segue-"},
      {"a tensor at the root", [](Json &m, const Path &) { m["weight_map"]["w"] = "/etc/passwd"; },
       "the tensor \"w\" should be in \"/etc/passwd\""},
      {"a tensor in a number", [](Json &m, const Path &) { m["weight_map"]["w"] = 3; },
       "the tensor \"w\" should be in 3"},
      {"no weight_map", [](Json &m, const Path &) { m.erase("weight_map"); }, "no \"weight_map\""},
      {"a list as weight_map", [](Json &m, const Path &) { m["weight_map"] = Json::array(); }, "no \"weight_map\""},
      {"a tensor in two parts",
       [&](Json &m, const Path &f) {
         Path second = in(f, 1);
         std::filesystem::copy_file(in(f, 0), second, std::filesystem::copy_options::overwrite_existing);
         m["metadata"]["segue.parts"][1] = m["metadata"]["segue.parts"][0];
       },
       "is twice there, in segue-"},
  };
  for (const Wrong &each : all) {
    SCOPED_TRACE(each.what);
    TemporaryFolder folder;
    saveInParts(folder / "c/", ofStep(3), 2);
    Json manifest = jsonOf(folder / "c" / manifestFile);
    each.make(manifest, folder / "c");
    writeHashed(folder / "c" / manifestFile, manifest);
    std::string said;
    try {
      load(folder / "c");
    } catch (const Error &error) {
      said = error.what();
    }
    EXPECT_NE(said.find(each.said), said.npos) << said;
    EXPECT_NE(said.find((folder / "c").string()), said.npos) << said;
  }
}

TEST(CheckpointFolder, ManifestsThatAreNoneAreRefused) {
  TemporaryFolder folder;
  saveInParts(folder / "c/", ofStep(3), 2);
  const std::filesystem::path path = folder / "c" / manifestFile;
  const std::string whole = readText(path);
  for (const char *text :
       {"", "{", "[]", "7", R"({"metadata": 3})", R"({"metadata": {}, "metadata": {}})", "\xff\xff"}) {
    writeText(path, text);
    EXPECT_THROW(load(folder / "c"), Error) << text;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = char(changed[at] ^ 1 << at % 8);
    writeText(path, changed);
    EXPECT_THROW(load(folder / "c"), Error) << at;
  }
  writeText(path, whole);
  expectStep(load(folder / "c"), 3);
  std::filesystem::remove(path);
  writeText(folder / "elsewhere", whole);
  std::filesystem::create_symlink(folder / "elsewhere", path);
  EXPECT_ERROR(load(folder / "c"), FileCorrupt, "is a link");
  EXPECT_ERROR(saveCheckpoint(folder / "c", ofStep(4)), FileCorrupt, "is a link");
  EXPECT_EQ(readText(folder / "elsewhere"), whole);
}
