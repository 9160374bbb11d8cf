//===- CheckpointTest.cpp - what a training run is resumed from -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/Checkpoint.h"
#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Device/Device.h"
#include <cstring>
#include <gtest/gtest.h>

using namespace segue;

static const DeviceRef device = Device::open("cpu");

/// A tensor whose bytes count up from `first`.
static Tensor counting(Shape shape, ElementType element, int first = 1) {
  Tensor tensor = Tensor::empty(device, TensorDesc(std::move(shape), element));
  for (uint64_t i = 0; i < tensor.elementCount() * byteSize(element); ++i)
    tensor.bytes()[i] = std::byte(uint64_t(first) + i);
  return tensor;
}

static void expectEqual(const Tensor &a, const Tensor &b) {
  ASSERT_EQ(a.desc().str(), b.desc().str().substr(0, a.desc().str().size()));
  EXPECT_EQ(std::memcmp(a.bytes(), b.bytes(), a.elementCount() * byteSize(a.element())), 0);
}

/// Two states of one shape, two element types, an empty tensor.
static Checkpoint small() {
  return {{{"w", counting({2, 3}, ElementType::bf16)}, {"none", counting({0, 4}, ElementType::i8)}},
          {{"m.w", counting({2, 3}, ElementType::f32, 9)}, {"v.w", counting({2, 3}, ElementType::f32, 99)}},
          41,
          -7,
          R"({"units":1})"};
}

/// Returns what loading a file says, or "" if it is accepted.
static std::string refusal(const std::filesystem::path &path) {
  try {
    loadCheckpoint(device, path);
    return "";
  } catch (const Error &error) {
    return error.what();
  }
}
static std::string refusal(const TemporaryFolder &folder, const std::string &bytes) {
  writeText(folder / "changed", bytes);
  return refusal(folder / "changed");
}

/// Returns what loading a file says with one byte of it changed, which it is for as long. The file says that it was written
/// long ago: whoever reads one that was written just now waits until its clock has moved on.
static std::string refusalOf(const std::filesystem::path &path, const std::string &whole, uint64_t at, int mask) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(std::streamoff(at)).put(char(whole[at] ^ mask)).flush();
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  std::string said = refusal(path);
  file.seekp(std::streamoff(at)).put(whole[at]);
  return said;
}

TEST(Checkpoint, RoundTrip) {
  TemporaryFolder folder;
  Checkpoint saved = small();
  saveCheckpoint(folder / "c", saved);
  Checkpoint read = loadCheckpoint(device, folder / "c", [](const std::string &text) { ADD_FAILURE() << text; });
  EXPECT_EQ(read.step, 41);
  EXPECT_EQ(read.seed, -7);
  EXPECT_EQ(read.precision, saved.precision);
  ASSERT_EQ(read.parameters.size(), 2u);
  ASSERT_EQ(read.state.size(), 2u);
  expectEqual(saved.parameters["w"], read.parameters["w"]);
  expectEqual(saved.state["m.w"], read.state["m.w"]);
}

TEST(Checkpoint, RefusesForeignFiles) {
  TemporaryFolder folder;
  saveSafetensors(folder / "weights", {{"w", counting({1}, ElementType::f32)}});
  EXPECT_ERROR(loadCheckpoint(device, folder / "weights"), InvalidArgument, "no checkpoint");
  saveSafetensors(folder / "later", {}, {{"segue.checkpoint", "4"}});
  EXPECT_ERROR(loadCheckpoint(device, folder / "later"), VersionUnsupported, "version 4");
  saveSafetensors(folder / "broken", {}, {{"segue.checkpoint", "1"}, {"segue.step", "1x"}, {"segue.seed", "0"}});
  EXPECT_ERROR(loadCheckpoint(device, folder / "broken"), FileCorrupt, "\"segue.step\" is \"1x\"");
  EXPECT_ERROR(saveCheckpoint(folder / "c", {{{"segue.state.w", counting({1}, ElementType::f32)}}, {}, 0, 0}),
               InvalidArgument, "kept for optimizer state");
}

// What was written before there were hashes is read, and said to be unchecked.
TEST(Checkpoint, OfVersion1IsReadWithAWarning) {
  TemporaryFolder folder;
  saveSafetensors(folder / "old", {{"w", counting({3}, ElementType::f32)}},
                  {{"segue.checkpoint", "1"}, {"segue.step", "5"}, {"segue.seed", "0"}});
  std::string said;
  EXPECT_EQ(loadCheckpoint(device, folder / "old", [&](const std::string &text) { said += text; }).step, 5);
  EXPECT_NE(said.find("version 1 has no hashes"), std::string::npos) << said;
}

// Every bit of the data, and all bits of each byte, belong to a tensor that the
// refusal names.
TEST(Checkpoint, EveryFlippedBitOfTheDataIsRefused) {
  TemporaryFolder folder;
  saveCheckpoint(folder / "c", small());
  SafetensorsFile file = SafetensorsFile::open(folder / "c");
  const std::string whole = readText(folder / "c");
  size_t flipped = 0;
  for (const SafetensorsEntry &entry : file.entries())
    for (uint64_t at = entry.offset; at < entry.offset + entry.bytes; ++at)
      for (int mask : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
        EXPECT_NE(refusalOf(folder / "c", whole, at, mask).find("tensor \"" + entry.name + "\" does not match its hash"),
                  std::string::npos)
            << "byte " << at << ", mask " << mask;
        ++flipped;
      }
  EXPECT_EQ(flipped, 9u * (2 * 6 + 4 * 6 + 4 * 6));
}

// The header: whatever one byte of it says instead is refused, and where a value
// of the metadata is another one, by its key.
TEST(Checkpoint, EveryFlippedBitOfTheHeaderIsRefused) {
  TemporaryFolder folder;
  saveCheckpoint(folder / "c", small());
  const std::string whole = readText(folder / "c");
  uint64_t header;
  std::memcpy(&header, whole.data(), 8);
  for (size_t at = 0; at < header + 8; ++at)
    for (int mask : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      EXPECT_NE(refusalOf(folder / "c", whole, at, mask), "") << "byte " << at << ", mask " << mask << ": " << whole.substr(at, 40);
    }
  auto expectNamed = [&](const std::string &from, const std::string &to, const std::string &part) {
    std::string changed = whole;
    ASSERT_EQ(from.size(), to.size());
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    std::string said = refusal(folder, changed.replace(changed.find(from), from.size(), to));
    EXPECT_NE(said.find(part), std::string::npos) << from << " → " << to << ": " << said;
  };
  expectNamed(R"("segue.step":"41")", R"("segue.step":"42")", "metadata \"segue.step\" does not match its hash");
  expectNamed(R"("segue.seed":"-7")", R"("segue.seed":"-8")", "metadata \"segue.seed\" does not match its hash");
  expectNamed(R"(units\":1)", R"(units\":2)", "metadata \"segue.precision\" does not match its hash");
  expectNamed(R"("segue.step":)", R"("segue.stop":)", "metadata \"segue.hash.metadata.segue.step\"");
  expectNamed(R"("segue.hash.metadata.segue.step")", R"("segue.hash.metadata.segue.stop")",
              "metadata \"segue.hash.metadata.segue.stop\" is the hash of a value that is not in the file");
  expectNamed(R"("segue.hash.tensor.w")", R"("segue.hash.tensor.x")",
              "metadata \"segue.hash.tensor.x\" is the hash of a tensor that is not in the file");
  expectNamed(R"("segue.checkpoint":"2")", R"("segue.checkpoint":"1")", "metadata \"segue.checkpoint\"");
  // Another role, name, shape or element type of the same bytes.
  expectNamed(R"("segue.state.m.w")", R"("segue.stale.m.w")", "segue.hash.tensor.segue.state.m.w");
  expectNamed(R"("dtype":"BF16","shape":[2,3])", R"("dtype":"BF16","shape":[3,2])", "tensor \"w\" does not match");
  expectNamed(R"("dtype":"F32","shape":[2,3])", R"("dtype":"I32","shape":[2,3])", "does not match its hash");
  expectNamed(R"("dtype":"I8","shape":[0,4])", R"("dtype":"I8","shape":[4,0])", "tensor \"none\" does not match");
}

// Two states of one shape, exchanged in the data or by their names.
TEST(Checkpoint, ExchangedTensorsAreRefused) {
  TemporaryFolder folder;
  saveCheckpoint(folder / "c", small());
  SafetensorsFile file = SafetensorsFile::open(folder / "c");
  const std::string whole = readText(folder / "c");
  const SafetensorsEntry &m = *file.find("segue.state.m.w"), &v = *file.find("segue.state.v.w");
  std::string changed = whole;
  for (uint64_t i = 0; i < m.bytes; ++i)
    std::swap(changed[m.offset + i], changed[v.offset + i]);
  EXPECT_NE(refusal(folder, changed).find("tensor \"segue.state.m.w\" does not match its hash"), std::string::npos);
  changed = whole;
  changed[whole.find("\"segue.state.m.w\"") + 13] = 'v';
  changed[whole.find("\"segue.state.v.w\"") + 13] = 'm';
  EXPECT_NE(refusal(folder, changed).find("tensor \"segue.state.m.w\" does not match its hash"), std::string::npos);
}
