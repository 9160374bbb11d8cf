//===- SafetensorsTest.cpp - tensors in files by name ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Files/Safetensors.h"
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
    tensor.bytes()[i] = std::byte(element == ElementType::i1 ? i & 1 : uint64_t(first) + i);
  return tensor;
}

/// A file as another writer would make it.
static std::string fileOf(const std::string &header, const std::string &data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char *>(&length), 8) + header + data;
}

// Every element type, a scalar, an empty tensor, and odd sizes that would put
// wide elements at odd places if they were written in the order of their names.
TEST(Safetensors, RoundTrip) {
  TemporaryFolder folder;
  TensorMap tensors;
  for (ElementType element : allElementTypes)
    tensors["a." + std::string(name(element))] = counting({3, 5}, element, 7);
  tensors["scalar"] = counting({}, ElementType::f32);
  tensors["empty"] = counting({0, 4}, ElementType::f32);
  saveSafetensors(folder / "t.safetensors", tensors, {{"format", "pt"}});
  SafetensorsFile file = SafetensorsFile::open(folder / "t.safetensors");
  EXPECT_EQ(file.metadata().find("format")->second, "pt");
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const auto &[name, tensor] : tensors) {
    Tensor read = file.tensor(device, name);
    ASSERT_EQ(read.shape(), tensor.shape());
    ASSERT_EQ(read.element(), tensor.element());
    EXPECT_EQ(std::memcmp(read.bytes(), tensor.bytes(), tensor.elementCount() * byteSize(tensor.element())), 0);
    EXPECT_FALSE(read.storage()->isWritable());
  }
}

// A strided tensor is written dense.
TEST(Safetensors, WritesDense) {
  TemporaryFolder folder;
  Tensor transposed = Tensor::empty(device, TensorDesc({2, 2}, ElementType::f32, Layout{.strides = {1, 2}}));
  for (int i = 0; i < 4; ++i)
    transposed.data<float>()[i] = float(i);
  saveSafetensors(folder / "t", {{"t", transposed}});
  Tensor read = loadSafetensors(device, folder / "t").find("t")->second;
  EXPECT_EQ(read.data<float>()[1], 2);
  EXPECT_EQ(read.data<float>()[2], 1);
}

// Data that is not aligned to its element is copied, not read askew.
TEST(Safetensors, ReadsUnalignedData) {
  TemporaryFolder folder;
  float value = 1.5;
  std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize(header.size() | 1, ' ');
  writeText(folder / "t", fileOf(header, std::string(reinterpret_cast<const char *>(&value), 4)));
  EXPECT_EQ(*SafetensorsFile::open(folder / "t").tensor(device, "w").data<float>(), 1.5);
}

// A loop over the tensors of a file that nobody else holds goes over what is there.
TEST(Safetensors, ATemporaryGivesItsTensorsAway) {
  TemporaryFolder folder;
  saveSafetensors(folder / "t", {{"a", counting({3}, ElementType::f32)}, {"b", counting({5}, ElementType::i8)}},
                  {{"format", "pt"}});
  std::string names;
  for (const SafetensorsEntry &entry : SafetensorsFile::open(folder / "t").entries())
    names += entry.name + entry.dtype;
  for (const auto &[key, value] : SafetensorsFile::open(folder / "t").metadata())
    names += key + value;
  EXPECT_EQ(names, "aF32bI8formatpt");
}

TEST(Safetensors, WhatWasMovedFromSaysSo) {
  TemporaryFolder folder;
  saveSafetensors(folder / "t", {{"a", counting({3}, ElementType::f32)}});
  SafetensorsFile file = SafetensorsFile::open(folder / "t"), other = std::move(file);
  EXPECT_ERROR(file.checkUnchanged(), InvalidArgument, "SafetensorsFile: used after it was moved from");
  EXPECT_ERROR(file.header(), InvalidArgument, "SafetensorsFile: used after it was moved from");
  EXPECT_EQ(other.tensor(device, "a").elementCount(), 3u);
  DeferredTensors unread;
  unread["a"] = {{3}, ElementType::f32, {}};
  EXPECT_ERROR(saveDeferred(folder / "u", unread), InvalidArgument, "tensor \"a\": an empty function");
  EXPECT_FALSE(std::filesystem::exists(folder / "u"));
}

// Cut at every length: never a tensor, always FILE_CORRUPT naming the file.
TEST(Safetensors, RefusesEveryTruncation) {
  TemporaryFolder folder;
  saveSafetensors(folder / "whole", {{"a", counting({3}, ElementType::f32)}, {"b", counting({5}, ElementType::i8)}});
  std::string whole = readText(folder / "whole");
  for (size_t length = 0; length < whole.size(); ++length) {
    writeText(folder / "cut", whole.substr(0, length));
    EXPECT_ERROR(SafetensorsFile::open(folder / "cut"), FileCorrupt, "/cut: ");
  }
  writeText(folder / "cut", whole + "x");
  EXPECT_ERROR(SafetensorsFile::open(folder / "cut"), FileCorrupt, "ends before the file does");
}

// Every flipped byte of the header is refused or still describes bytes that lie
// in the file: reading what is accepted stays in bounds (run under ASan).
TEST(Safetensors, SurvivesEveryFlippedHeaderByte) {
  TemporaryFolder folder;
  saveSafetensors(folder / "whole", {{"a", counting({3}, ElementType::f32)}, {"b", counting({5}, ElementType::i8)}});
  std::string whole = readText(folder / "whole");
  uint64_t header;
  std::memcpy(&header, whole.data(), 8);
  for (size_t at = 0; at < header + 8; ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[at] = char(changed[at] ^ (1 << bit));
      writeText(folder / "changed", changed);
      try {
        SafetensorsFile file = SafetensorsFile::open(folder / "changed");
        for (const SafetensorsEntry &entry : file.entries())
          ASSERT_LE(entry.offset + entry.bytes, whole.size());
      } catch (const Error &error) {
        EXPECT_EQ(error.code(), ErrorCode::FileCorrupt) << error.what();
      }
    }
}

TEST(Safetensors, RefusesWrongHeaders) {
  TemporaryFolder folder;
  auto refuse = [&](const std::string &header, const std::string &data, const char *part) {
    writeText(folder / "t", fileOf(header, data));
    EXPECT_ERROR(SafetensorsFile::open(folder / "t"), FileCorrupt, part);
  };
  refuse("[]", "", "not a JSON object");
  refuse("{", "", "not a JSON object");
  refuse(std::string("{} \0 {", 7), "", "a byte of value 0");
  refuse(R"({"w":{"dtype":"F32"}})", "", "tensor \"w\" lacks dtype, shape or data_offsets");
  refuse(R"({"w":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", "1234", "unknown dtype \"F31\"");
  refuse(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234", "not what its shape and dtype need");
  refuse(R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234", "extent that is not a number");
  refuse(R"({"w":{"dtype":"I8","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]}})", "",
         "not what its shape and dtype need");
  refuse(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234", "bytes 4 to 0");
  refuse(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", "1234", "truncated");
  refuse(R"({"v":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})",
         "1234", "does not begin where the one before it ends");
  refuse(R"({"__metadata__":{"a":1}})", "", "metadata \"a\" is not a string");
}

TEST(Safetensors, NamesWhatIsMissing) {
  TemporaryFolder folder;
  saveSafetensors(folder / "t", {{"h.0.weight", counting({1}, ElementType::f32)}});
  SafetensorsFile file = SafetensorsFile::open(folder / "t");
  EXPECT_ERROR(file.tensor(device, "h.1.weight"), NameUnknown,
               "no tensor \"h.1.weight\"; the nearest is \"h.0.weight\"");
  EXPECT_ERROR(SafetensorsFile::open(folder / "none"), IoFailed, "none: cannot be opened: No such file");
  writeText(folder / "u8", fileOf(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234"));
  EXPECT_ERROR(SafetensorsFile::open(folder / "u8").tensor(device, "w"), Unsupported, "tensor \"w\" is U8");
}
