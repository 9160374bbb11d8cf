//===- SlabTest.cpp - opening and reading slabs ---------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/Slab.h"
#include "Services/SquareQ/SlabFixture.h"
#include "Session/ExpectError.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include <functional>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

using namespace segue;

namespace {

class SlabTest : public SlabFixture {
protected:
  /// Rewrites the manifest, as its writer would have with other values.
  void edit(const std::function<void(Json &)> &change) {
    Json json = Json::parse(readText(manifestPath()));
    change(json);
    json[manifestHashKey] = manifestHash(json);
    writeText(manifestPath(), json.dump(2));
  }

  /// Overwrites bytes of a tensor, `from` bytes behind its start.
  void patch(const std::string &key, uint64_t from, std::span<const std::byte> bytes) {
    SafetensorsFile file = SafetensorsFile::open(slabPath());
    const SafetensorsEntry *entry = file.find(key);
    ASSERT_TRUE(entry) << key;
    std::fstream stream(slabPath(), std::ios::binary | std::ios::in | std::ios::out);
    stream.seekp(std::streamoff(entry->offset + from));
    stream.write(reinterpret_cast<const char *>(bytes.data()), std::streamsize(bytes.size()));
  }
  void patchFloat(const std::string &key, size_t index, float value) {
    patch(key, 4 * index, std::as_bytes(std::span(&value, 1)));
  }

  /// Opening fails with all of `parts` in its message, and nothing was loaded.
  void expectInvalid(const std::vector<std::string> &parts, const SlabExpectation &expected = {},
                     SlabVerify verify = SlabVerify::Open) {
    Slab slab(slabPath());
    for (const std::string &part : parts)
      EXPECT_ERROR(slab.open(expected, verify), SlabInvalid, part);
    EXPECT_EQ(slab.state(), SlabState::Closed);
  }

  std::vector<float> original(const std::string &name) const { return valuesOf(model_.find(name)->second); }
};

} // namespace

/// Returns what `staging`, laid out as `desc` says, holds: found index by index.
static std::vector<float> decode(const TensorDesc &desc, const std::vector<std::byte> &staging) {
  std::vector<float> values(desc.elementCount());
  if (desc.layout.storage == StorageType::Element) {
    std::memcpy(values.data(), staging.data(), 4 * values.size());
    return values;
  }
  LayoutParts parts = checkedParts(desc.shape, desc.element, desc.layout).value();
  size_t rowLength = values.size() / size_t(desc.shape[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    size_t row = i / rowLength;
    if (int64_t group = groupExtent(desc.layout.storage)) {
      size_t at = row * size_t(desc.layout.strides[0]) + i % rowLength;
      uint16_t bits;
      std::memcpy(&bits, &staging[parts.scales + 2 * (i % rowLength / size_t(group) * size_t(parts.rows) + row)], 2);
      values[i] = float(int8_t(uint8_t(staging[at / 2]) << (at % 2 ? 0 : 4)) >> 4) * bf16ToFloat(bits);
      continue;
    }
    float scale, zero = 0;
    std::memcpy(&scale, &staging[parts.scales + 4 * row], 4);
    if (desc.layout.zeroPoints)
      std::memcpy(&zero, &staging[parts.zeroPoints + 4 * row], 4);
    auto code = uint8_t(staging[row * size_t(desc.layout.strides[0]) + i % rowLength]);
    values[i] = (codeToFloat(code, desc.layout.storage) - zero) * scale;
  }
  return values;
}

/// A layer as copyLayer gives it, decoded.
static std::vector<float> served(const Slab &slab, const std::string &name) {
  std::vector<std::byte> staging(slab.layerBytes(name));
  slab.copyLayer(name, staging);
  return decode(slab.desc(name, ElementType::f32), staging);
}

// What a layer is served as: row storage of the layout model, whose values are
// those that copyDequantized gives, to the bit.
TEST_F(SlabTest, ServesLayersAsRowStorage) {
  Slab slab(slabPath());
  slab.open();
  EXPECT_EQ(slab.state(), SlabState::Open);
  EXPECT_TRUE(slab.notes().empty());
  for (const char *name : {"blocks.0.fc1.weight", "blocks.1.fc2.weight", "blocks.0.out.weight", "conv.weight"}) {
    TensorDesc desc = slab.desc(name, ElementType::f32);
    EXPECT_EQ(desc.shape, model_.find(name)->second.shape());
    EXPECT_EQ(desc.layout.storage, StorageType::Int8Row);
    EXPECT_FALSE(desc.layout.zeroPoints);
    std::vector<float> expected = dequantized(slab, name);
    EXPECT_EQ(served(slab, name), expected) << name;
    double error = 0, sum = 0;
    std::vector<float> weight = original(name);
    for (size_t i = 0; i < weight.size(); ++i) {
      error += std::pow(double(weight[i]) - double(expected[i]), 2);
      sum += std::pow(double(weight[i]), 2);
    }
    EXPECT_LT(std::sqrt(error / sum), 0.05) << name;

    std::vector<uint16_t> halves(expected.size());
    slab.copyDequantized(name, ElementType::bf16, std::as_writable_bytes(std::span(halves)));
    for (size_t k = 0; k < halves.size(); ++k)
      ASSERT_EQ(halves[k], floatToBf16(expected[k]));
  }
  EXPECT_EQ(slab.layerBytes("blocks.0.fc1.weight"), 159u * 128 + 96 + 32 + 160 * 4); // 96 of 128, scales at 64
  std::vector<float> bias(160);
  slab.copyBias("blocks.0.fc1.bias", bias);
  EXPECT_EQ(bias, original("blocks.0.fc1.bias"));
  EXPECT_ERROR(slab.copyBias("blocks.0.fc2.weight", bias), NameUnknown, "has no bias");
  EXPECT_EQ(slab.mapped("blocks.0.fc1.qweight").size(), 160u * 128);
  EXPECT_ERROR(slab.mapped("blocks.0.fc1.weight"), NameUnknown, "no tensor");
  std::vector<std::byte> tooSmall(10);
  EXPECT_ERROR(slab.copyLayer("conv.weight", tooSmall), InvalidArgument, "10 were given");
  EXPECT_ERROR(slab.copyDequantized("conv.weight", ElementType::i8, tooSmall), InvalidArgument, "not i8");
  EXPECT_ERROR(slab.copyDequantized("conv.weight", ElementType::f32, tooSmall), InvalidArgument, "10 were given");
  EXPECT_ERROR(slab.copyLayer("blocks.0.fc3.weight", tooSmall), NameUnknown, "the nearest is \"blocks.0.fc");
  slab.readAhead("conv.weight");
}

// A zero point that is not all zero comes along and is subtracted.
TEST_F(SlabTest, ServesZeroPoints) {
  patchFloat("conv.zero_point", 3, 2.0f);
  Slab slab(slabPath());
  slab.open({}, SlabVerify::None);
  EXPECT_TRUE(slab.desc("conv.weight").layout.zeroPoints);
  EXPECT_FALSE(slab.desc("blocks.0.fc1.weight").layout.zeroPoints);
  std::vector<float> expected = dequantized(slab, "conv");
  EXPECT_EQ(served(slab, "conv"), expected);
  std::span<const std::byte> codes = slab.mapped("conv.qweight");
  float scale;
  std::memcpy(&scale, slab.mapped("conv.scale").data() + 12, 4);
  EXPECT_EQ(expected[3 * 144], (float(int8_t(codes[3 * 192])) - 2.0f) * scale);
}

TEST_F(SlabTest, ServesTheOtherForms) {
  for (int64_t group : {0, 32, 64}) {
    SlabScheme scheme = group ? SlabScheme::Int4Group : SlabScheme::Fp8E4M3Row;
    build({.scheme = scheme, .group = group ? group : 64});
    Slab slab(slabPath());
    slab.open({}, SlabVerify::Full);
    EXPECT_EQ(slab.layer("conv").quantScheme, name(scheme));
    EXPECT_EQ(groupExtent(slab.desc("conv").layout.storage), group);
    std::vector<float> expected = dequantized(slab, "conv.weight");
    EXPECT_EQ(served(slab, "conv.weight"), expected);
    std::vector<float> weight = original("conv.weight");
    double product = 0, a = 0, b = 0;
    for (size_t i = 0; i < weight.size(); ++i) {
      product += double(weight[i]) * double(expected[i]);
      a += double(weight[i]) * double(weight[i]);
      b += double(expected[i]) * double(expected[i]);
    }
    EXPECT_GT(product / std::sqrt(a * b), scheme == SlabScheme::Int4Group ? 0.99 : 0.9993);
  }
}

// CLOSED → OPEN → CLOSED; reading while closed is an error.
TEST_F(SlabTest, IsReadOnlyWhileOpen) {
  Slab slab(slabPath());
  std::vector<std::byte> bytes(100000);
  EXPECT_EQ(slab.state(), SlabState::Closed);
  EXPECT_ERROR(slab.copyLayer("conv", bytes), StateTransition, "is CLOSED; open it before reading");
  EXPECT_ERROR(slab.manifest(), StateTransition, "CLOSED");
  slab.open();
  slab.copyLayer("conv", bytes);
  EXPECT_ERROR(slab.open(), StateTransition, "is OPEN already");
  slab.close();
  EXPECT_EQ(slab.state(), SlabState::Closed);
  EXPECT_ERROR(slab.copyLayer("conv", bytes), StateTransition, "CLOSED");
  slab.open();
  slab.copyLayer("conv", bytes);
}

//===----------------------------------------------------------------------===//
// The eight checks, in their order
//===----------------------------------------------------------------------===//

TEST_F(SlabTest, Check1FilesExistAndParse) {
  std::string slab = readText(slabPath()), manifest = readText(manifestPath());
  // Both files are looked at before anything is said.
  std::filesystem::remove(slabPath());
  std::filesystem::remove(manifestPath());
  expectInvalid(
      {"check 1 of the slab failed", "slab.manifest.json: cannot be read", "slab.safetensors: cannot be opened"});
  // Cut anywhere, the slab is no slab.
  writeText(manifestPath(), manifest);
  for (size_t bytes : {size_t(0), size_t(7), size_t(100), slab.size() / 2, slab.size() - 1}) {
    writeText(slabPath(), slab.substr(0, bytes));
    expectInvalid({"check 1", "FILE_CORRUPT"});
  }
  // A header of more than 100 MB.
  std::string huge = slab;
  uint64_t length = 100'000'001;
  std::memcpy(huge.data(), &length, 8);
  writeText(slabPath(), huge);
  expectInvalid({"check 1", "the header should have 100000001 bytes"});
  // Offsets that overlap.
  size_t at = slab.find("\"data_offsets\":[0,");
  std::string overlap = slab;
  overlap.replace(at + 16, 1, "4");
  writeText(slabPath(), overlap);
  expectInvalid({"check 1", "FILE_CORRUPT"});
  writeText(slabPath(), slab);
  writeText(manifestPath(), manifest.substr(0, manifest.size() / 2));
  expectInvalid({"check 1", "not JSON; it is truncated"});
  writeText(manifestPath(), "[]");
  expectInvalid({"check 1", "not a JSON object"});
  writeText(manifestPath(), manifest);
  edit([](Json &json) {
    json.erase("model_signature");
    json["layers"][0]["pad_k"] = "64";
    json["layers"][1]["orig_shape"] = {0, 4};
    json["layers"][2]["canonical_name"] = json["layers"][1]["canonical_name"];
    json["layer_count"] = 18446744073709551615ull;
    json["layers"][3] = 7;
  });
  expectInvalid({"\"model_signature\" is missing", "\"layers.0.pad_k\" is \"64\", not a whole number",
                 "\"layers.1.orig_shape\" is [0,4], not a list of extents above 0", "is listed twice",
                 "\"layer_count\" is 18446744073709551615", "\"layers.3\" is not an object"});
}

TEST_F(SlabTest, Check2KernelAbi) {
  edit([](Json &json) {
    json["kernel_abi_version"] = 2;
    json["layer_count"] = 99; // a later check: not said
  });
  expectInvalid({"check 2", "unsupported kernel ABI version 2"});
  try {
    Slab(slabPath()).open();
  } catch (const Error &error) {
    EXPECT_EQ(std::string(error.what()).find("layer_count"), std::string::npos);
  }
}

TEST_F(SlabTest, Check3FormsNamingTheLayer) {
  edit([](Json &json) {
    json["layers"][0]["quant_bits"] = 4;
    json["layers"][2]["quant_scheme"] = "per_tensor";
    json["layers"][3]["quant_axis"] = 1;
  });
  expectInvalid({"check 3", "layer \"blocks.0.fc1\": unsupported quant_scheme \"per_row_symmetric\" with quant_bits 4",
                 "layer \"blocks.0.out\": unsupported quant_scheme \"per_tensor\"",
                 "layer \"blocks.1.fc1\": unsupported quant_axis 1"});
}

TEST_F(SlabTest, Check4CountsAndSums) {
  edit([](Json &json) {
    json["layer_count"] = 8;
    json["total_qweight_bytes"] = json["total_qweight_bytes"].get<int64_t>() + 1;
  });
  expectInvalid({"check 4", "layer_count is 8, but 7 layers are listed", "total_qweight_bytes is"});
  edit([](Json &json) {
    json["layer_count"] = -7;
    json["layers"][0]["packed_shape"] = {INT64_MAX, INT64_MAX};
  });
  expectInvalid({"layer_count is -7", "but the layers have 18446744073709551615"});
}

TEST_F(SlabTest, Check5TensorsAndShapes) {
  edit([](Json &json) {
    json["layers"][0]["scale_key"] = "gone.scale";
    json["layers"][1]["orig_shape"] = {96, 300};
    json["layers"][2]["scale_key"] = "blocks.0.fc1.scale"; // of another shape
    json["layers"][3]["dtype_qweight"] = "uint8";
    json["layers"][4]["zero_point_key"] = nullptr;
    json["layers"][5]["bias_key"] = "blocks.1.out.qweight";
    json["layers"][6]["qweight_key"] = "conv.scale";
  });
  expectInvalid({"check 5", "the slab has no tensor \"gone.scale\"",
                 "packed_shape [96,192] is not orig_shape [96,300] padded to pad_k 64, which is [96,320]",
                 "tensor \"blocks.0.fc1.scale\" is F32[160], the manifest declares F32[96]",
                 "dtype_qweight is \"uint8\", but per_row_symmetric stores I8", "no zero_point_key",
                 "tensor \"blocks.1.out.qweight\" is I8[96,128], the manifest declares F32[96]",
                 "tensor \"conv.scale\" is F32[32], the manifest declares I8[32,192]"});
}

TEST_F(SlabTest, Check6Numbers) {
  patchFloat("conv.scale", 2, std::nanf(""));
  patchFloat("blocks.0.fc1.scale", 0, -1.0f);
  patchFloat("blocks.0.fc2.scale", 5, INFINITY);
  patchFloat("blocks.0.out.zero_point", 1, INFINITY);
  std::vector<float> zeros(160);
  patch("blocks.1.fc1.scale", 0, std::as_bytes(std::span(zeros)));
  expectInvalid({"check 6", "tensor \"conv.scale\": scale nan at 2", "tensor \"blocks.0.fc1.scale\": scale -1.0",
                 "tensor \"blocks.0.fc2.scale\": scale inf at 5",
                 "tensor \"blocks.0.out.zero_point\": zero point inf at 1",
                 "tensor \"blocks.1.fc1.scale\": all scales are 0"});
}

TEST_F(SlabTest, Check7Signature) {
  std::vector<NamedShape> shapes;
  for (const auto &[name, tensor] : model_)
    shapes.push_back({name, tensor.shape(), tensor.element()});
  std::string signature = modelSignature(collectLinearLayers(shapes));
  Slab slab(slabPath());
  slab.open({.signature = signature}); // that of the checkpoint
  expectInvalid({"check 7", "model signature is \"" + signature + "\", the program's is \"0123456789abcdef\""},
                {.signature = "0123456789abcdef"});
}

// Both sides are listed: what the program wants and does not get, and why; what
// the slab has and nobody wants.
TEST_F(SlabTest, Check8EveryWantedWeight) {
  SlabExpectation expected;
  expected.wants = {{"blocks.0.fc1.weight", {160, 96}}, {"blocks.0.fc1.bias", {160}}, {"blocks.0.fc2.orig.weight", {}},
                    {"blocks.0.out.weight", {}},        {"blocks.1.fc1.weight", {}},  {"blocks.1.fc2.weight", {}},
                    {"blocks.1.out.weight", {}}};
  Slab slab(slabPath());
  slab.open(expected);
  EXPECT_EQ(slab.unused(), std::vector<std::string>{"conv"});
  ASSERT_EQ(slab.notes().size(), 1u);
  EXPECT_NE(slab.notes()[0].find("does not want conv"), std::string::npos);
  EXPECT_TRUE(slab.holds("blocks.0.fc2.orig.weight"));

  expected.wants->push_back({"lm_head.weight", {}});
  expected.wants->push_back({"blocks.2.fc1.weight", {}});
  expected.wants->push_back({"blocks.0.fc2.bias", {}});
  expected.wants->push_back({"conv.weight", {32, 144}});
  expectInvalid({"check 8",
                 "wants \"lm_head.weight\", which the slab does not hold; it was kept in bf16: keep_bf16 \"lm_head\"",
                 "wants \"blocks.2.fc1.weight\", which the slab does not hold; the nearest is \"blocks.0.fc1\"",
                 "wants \"blocks.0.fc2.bias\"", "wants \"conv.weight\" of shape [32,144], the slab holds [32,16,3,3]"},
                expected);
  // Declared aliases, both ways.
  Slab aliased(slabPath());
  aliased.open({.wants = {{{"layers.1.down.weight", {}}}}, .aliases = {{"blocks", "layers"}, {"down", "fc2"}}});
  EXPECT_EQ(aliased.layer("layers.1.down.weight").canonicalName, "blocks.1.fc2");
}

//===----------------------------------------------------------------------===//
// Hashes and faults
//===----------------------------------------------------------------------===//

// A slab of the same model trained further: every check passes but the hashes,
// and the first differing tensor is named at opening.
TEST_F(SlabTest, FindsManifestAndSlabOfDifferentBuilds) {
  std::string manifest = readText(manifestPath());
  model_ = smallModel(2);
  build({});
  writeText(manifestPath(), manifest);
  expectInvalid({"tensor \"blocks.0.fc1.scale\" has other bytes than the manifest's hash says", "different builds"});
  Slab slab(slabPath());
  slab.open({}, SlabVerify::None); // does as it was told
}

// One bit of one weight: met when the layer is first read, or at opening with
// `full`; other layers are served; `none` does not look.
TEST_F(SlabTest, FindsAFlippedBit) {
  std::byte flipped;
  {
    Slab slab(slabPath());
    slab.open();
    flipped = slab.mapped("blocks.1.out.qweight")[77] ^ std::byte(1);
  }
  patch("blocks.1.out.qweight", 77, std::span(&flipped, 1));
  std::vector<std::byte> bytes(1 << 16);
  Slab slab(slabPath());
  slab.open();
  slab.copyLayer("blocks.0.out.weight", bytes);
  for (int i = 0; i < 2; ++i)
    EXPECT_ERROR(slab.copyLayer("blocks.1.out.weight", bytes), ChecksumMismatch,
                 "tensor \"blocks.1.out.qweight\" has CRC-32");
  EXPECT_ERROR(slab.copyDequantized("blocks.1.out.weight", ElementType::f32, bytes), ChecksumMismatch, "CRC-32");
  expectInvalid({"tensor \"blocks.1.out.qweight\" has other bytes"}, {}, SlabVerify::Full);
  Slab unchecked(slabPath());
  unchecked.open({}, SlabVerify::None);
  unchecked.copyLayer("blocks.1.out.weight", bytes);
}

// The padding of the last row is not part of what is served, but of the hash.
TEST_F(SlabTest, FindsAFlippedBitInThePadding) {
  std::byte one{1};
  patch("blocks.1.out.qweight", 96 * 128 - 1, std::span(&one, 1));
  Slab slab(slabPath());
  slab.open();
  std::vector<std::byte> bytes(1 << 16);
  EXPECT_ERROR(slab.copyLayer("blocks.1.out.weight", bytes), ChecksumMismatch, "CRC-32");
}

// Each bit of scales and zero points is found at opening already.
TEST_F(SlabTest, FindsAChangedScale) {
  patchFloat("conv.scale", 0, 0.5f);
  expectInvalid({"tensor \"conv.scale\" has other bytes"});
}

// Size, time or inode: a file that is not the one that was opened.
TEST_F(SlabTest, NoticesAReplacedFile) {
  std::vector<std::byte> bytes(1 << 16), before(1 << 16);
  Slab slab(slabPath());
  slab.open();
  std::span<const std::byte> mapped = slab.mapped("conv.qweight");
  std::vector<std::byte> copy(mapped.begin(), mapped.end());
  // Another file under the name: what is mapped stays valid.
  std::filesystem::copy_file(slabPath(), folder_ / "other");
  std::filesystem::rename(folder_ / "other", slabPath());
  EXPECT_ERROR(slab.copyLayer("conv", bytes), SourceChanged, "inode than when it was opened");
  EXPECT_EQ(std::memcmp(mapped.data(), copy.data(), copy.size()), 0);
  slab.close();

  slab.open();
  slab.copyLayer("conv", bytes);
  std::filesystem::last_write_time(slabPath(), std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_ERROR(slab.copyLayer("conv", bytes), SourceChanged, "another modification time");
  slab.close();

  // Cut in place: an error, not a signal.
  slab.open();
  std::filesystem::resize_file(slabPath(), std::filesystem::file_size(slabPath()) / 2);
  EXPECT_ERROR(slab.copyLayer("conv", bytes), SourceChanged, "another size");
  EXPECT_ERROR(slab.copyLayer("blocks.0.fc1", bytes), SourceChanged, "another size");
  slab.close();
}

TEST_F(SlabTest, NoticesAFileThatIsGone) {
  Slab slab(slabPath());
  slab.open();
  std::filesystem::remove(slabPath());
  std::vector<std::byte> bytes(1 << 16);
  EXPECT_ERROR(slab.copyLayer("conv", bytes), SourceChanged, "is gone (No such file or directory)");
}

// As SquareQ v2 wrote them: no hashes and none of our keys. Read with a note.
TEST_F(SlabTest, ReadsV2SlabsWithANote) {
  edit([](Json &json) {
    for (const char *key : {"source_sha256", "tool_version", "kept_bf16"})
      json.erase(key);
    for (Json &layer : json["layers"]) {
      layer.erase("sha256");
      layer.erase("crc32");
    }
  });
  Slab slab(slabPath());
  slab.open({}, SlabVerify::Full);
  ASSERT_EQ(slab.notes().size(), 1u);
  EXPECT_NE(slab.notes()[0].find("no hashes"), std::string::npos);
  std::vector<std::byte> bytes(1 << 16);
  slab.copyLayer("conv", bytes);
}

// Many readers at once, the first reads included.
TEST_F(SlabTest, IsReadByManyThreads) {
  Slab slab(slabPath());
  slab.open();
  std::vector<std::vector<std::byte>> read(4, std::vector<std::byte>(slab.layerBytes("conv")));
  std::vector<std::thread> threads;
  for (std::vector<std::byte> &bytes : read)
    threads.emplace_back([&] {
      for (const SlabLayer &layer : slab.manifest().layers) {
        std::vector<std::byte> other(slab.layerBytes(layer.canonicalName));
        slab.copyLayer(layer.canonicalName, other);
      }
      slab.copyLayer("conv", bytes);
    });
  for (std::thread &thread : threads)
    thread.join();
  for (const std::vector<std::byte> &bytes : read)
    EXPECT_EQ(bytes, read[0]);
}

// No digit of a manifest can change unnoticed, by the eight checks or by its hash.
TEST_F(SlabTest, EveryDigitOfTheManifestCounts) {
  std::string text = readText(manifestPath());
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '9')
      continue;
    std::string changed = text;
    changed[at] = text[at] == '9' ? '8' : char(text[at] + 1);
    std::vector<SlabProblem> problems;
    SlabManifest manifest = parseManifest(changed, problems);
    EXPECT_TRUE(!problems.empty() || !manifest.hasOwnHash) << changed.substr(at < 40 ? 0 : at - 40, 80);
  }
  writeText(manifestPath(), std::regex_replace(text, std::regex("\"pad_k\": (\\d)"), "\"pad_k\":    $1"));
  Slab(slabPath()).open(); // spaces are none of its values
  edit([](Json &json) { json["layers"][0]["block_id"] = "blocks.7"; });
  Slab(slabPath()).open();
  writeText(manifestPath(), text.replace(text.find("\"blocks.0\""), 10, "\"blocks.7\""));
  expectInvalid({"check 1 of the slab failed", "its values do not match its hash \"manifest_sha256\""});
}

// A manifest says the same after it was read and written.
TEST_F(SlabTest, ManifestRoundTrip) {
  std::string text = readText(manifestPath());
  std::vector<SlabProblem> problems;
  SlabManifest manifest = parseManifest(text, problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(manifest.text(), text);
  EXPECT_EQ(manifest.layers.size(), 7u);
  EXPECT_EQ(manifest.layers[0].blockId, "blocks.0");
  EXPECT_EQ(manifest.layers[6].blockId, std::nullopt); // conv
  EXPECT_TRUE(manifest.hasHashes());
  EXPECT_TRUE(manifest.hasOwnHash);
}
