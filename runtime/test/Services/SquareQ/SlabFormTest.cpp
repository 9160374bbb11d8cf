//===- SlabFormTest.cpp - names, sizes, signatures, configs ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabForm.h"
#include "Session/ExpectError.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include "segue/runtime/Services/WeightNames.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;

// The worked example of docs/specs/squareq.md, from tensors and from a list.
TEST(LinearLayers, SignatureOfTheSpecification) {
  std::vector<LinearLayer> layers{{"fc2", 8, 4, false}, {"fc1", 4, 8, true}};
  EXPECT_EQ(signatureText(layers), "fc1:4:8:True|fc2:8:4:False");
  EXPECT_EQ(modelSignature(layers), "ad64e3c65840ef89");

  Shape fc1{8, 4}, bias{8}, fc2{4, 8};
  std::vector<NamedShape> tensors{{"fc2.weight", fc2, ElementType::bf16},
                                  {"fc1.bias", bias, ElementType::f32},
                                  {"fc1.weight", fc1, ElementType::f32}};
  EXPECT_EQ(modelSignature(collectLinearLayers(tensors)), "ad64e3c65840ef89");
}

// Only weights of two dimensions in a float type are linear layers; tables of
// embeddings are not, and a tensor called bias of another length is not one.
TEST(LinearLayers, LeavesOutWhatIsNoLinearLayer) {
  Shape matrix{8, 4}, vector{8}, other{4}, conv{8, 4, 3, 3};
  std::vector<NamedShape> tensors{
      {"a.weight", matrix, ElementType::f32},    {"a.bias", other, ElementType::f32},
      {"norm.weight", vector, ElementType::f32}, {"conv.weight", conv, ElementType::f32},
      {"wte.weight", matrix, ElementType::f32},  {"m.embed_tokens.weight", matrix, ElementType::f32},
      {"ids.weight", matrix, ElementType::i64},  {"half.weight", matrix, std::nullopt},
      {"w", matrix, ElementType::f32},           {".weight", matrix, ElementType::f32}};
  EXPECT_EQ(signatureText(collectLinearLayers(tensors)), "a:4:8:False");
  EXPECT_EQ(signatureText({}), "");
}

// "a:" sorts behind "a.b:": the lines are sorted, not the names.
TEST(LinearLayers, SortsByBytesOfTheLines) {
  std::vector<LinearLayer> layers{{"a", 1, 1, false}, {"a.b", 1, 1, false}, {"Z", 1, 1, false}};
  EXPECT_EQ(signatureText(layers), "Z:1:1:False|a.b:1:1:False|a:1:1:False");
}

namespace {
struct SizeRow {
  int64_t out, in, padded;
  uint64_t slab, bf16;
  double ratio;
};
} // namespace

// The table of docs/specs/squareq.md.
TEST(SlabForm, SizesOfTheSpecification) {
  for (const SizeRow &row : {SizeRow{3072, 3072, 3072, 9461760, 18874368, 0.501},
                             SizeRow{128, 100, 128, 17408, 25600, 0.680}, SizeRow{320, 4, 64, 23040, 2560, 9.0}}) {
    SlabSize size = slabSize(SlabForm(), row.out, row.in, false).value();
    EXPECT_EQ(size.padded, row.padded);
    EXPECT_EQ(size.slab(), row.slab);
    EXPECT_EQ(size.bf16, row.bf16);
    EXPECT_NEAR(size.ratio(), row.ratio, 0.0005);
    EXPECT_EQ(slabSize(SlabForm(), row.out, row.in, true)->slab(), row.slab + 4 * uint64_t(row.out));
    // A zero point that is all zero does not cross the link.
    EXPECT_EQ(size.sent(false), row.slab - 4 * uint64_t(row.out));
    EXPECT_EQ(size.sent(true), row.slab);
  }
}

TEST(SlabForm, SizesOfTheOtherForms) {
  SlabSize fp8 = slabSize({.scheme = SlabScheme::Fp8E4M3Row}, 128, 100, false).value();
  EXPECT_EQ(fp8.slab(), 128u * 128 + 4 * 128);
  SlabSize int4 = slabSize({.scheme = SlabScheme::Int4Group}, 128, 100, false).value();
  EXPECT_EQ(int4.qweight, 128u * 64);
  EXPECT_EQ(int4.scale, 128u * 2 * 2);
  EXPECT_EQ(int4.packedShape(), (Shape{128, 64}));
  EXPECT_FALSE(slabSize({.scheme = SlabScheme::Int4Group, .padK = 16, .group = 32}, 128, 100, false));
}

// Extents come from files: none of them may overflow.
TEST(SlabForm, RefusesExtentsThatOverflow) {
  EXPECT_FALSE(slabSize(SlabForm(), 0, 4, false));
  EXPECT_FALSE(slabSize(SlabForm(), 4, -1, false));
  EXPECT_FALSE(slabSize(SlabForm(), INT64_MAX, INT64_MAX, false));
  EXPECT_FALSE(slabSize(SlabForm(), 1, INT64_MAX, false));
  EXPECT_FALSE(slabSize({.padK = 0}, 1, 1, false));
  Shape wide{2, INT64_MAX, INT64_MAX}, empty{2, 0}, scalar{}, vector{3}, conv{8, 4, 3, 3};
  EXPECT_FALSE(flattenWeight(wide));
  EXPECT_FALSE(flattenWeight(empty));
  EXPECT_FALSE(flattenWeight(scalar));
  EXPECT_FALSE(flattenWeight(vector));
  EXPECT_EQ(flattenWeight(conv), std::pair(int64_t(8), int64_t(36)));
}

// An adapter's name and the words of a family, both ways and several at once.
TEST(WeightNames, KnowsAdaptersAndAliases) {
  EXPECT_EQ(sourceNames("b.to_q.weight"), (std::vector<std::string>{"b.to_q.weight", "b.to_q.orig.weight"}));
  EXPECT_EQ(sourceNames("b.to_q.orig.weight"), (std::vector<std::string>{"b.to_q.orig.weight", "b.to_q.weight"}));
  EXPECT_EQ(sourceNames("to_q.orig"), (std::vector<std::string>{"to_q.orig", "to_q"}));
  EXPECT_EQ(sourceNames("w"), std::vector<std::string>{"w"});
  NameAliases aliases{{"attn", "self_attn"}, {"to_q", "q_proj"}};
  auto has = [&](std::string_view name, std::string_view other) {
    std::vector<std::string> names = sourceNames(name, aliases);
    return std::find(names.begin(), names.end(), other) != names.end();
  };
  EXPECT_TRUE(has("h.0.attn.to_q.weight", "h.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(has("h.0.self_attn.q_proj.weight", "h.0.attn.to_q.weight"));
  EXPECT_TRUE(has("h.0.attn.to_q.orig.weight", "h.0.attn.q_proj.weight"));
  // Parts of components are other words.
  EXPECT_FALSE(has("h.0.cross_attn.to_q.weight", "h.0.cross_self_attn.to_q.weight"));
  EXPECT_FALSE(has("h.0.attn2.to_q.weight", "h.0.self_attn2.to_q.weight"));
  // A table that never ends gives at most 64 names.
  EXPECT_EQ(sourceNames("a.weight", {{"a", "a.a"}}).size(), 64u);
}

static SquareQConfig readConfig(const std::string &text) {
  Json json = parseJson(text, "test");
  ConfigReader reader(json, std::string(SquareQConfig::section));
  return SquareQConfig::read(reader);
}

TEST(SquareQConfig, ReadsEveryKey) {
  SquareQConfig defaults = readConfig("{}");
  EXPECT_EQ(defaults.padK, 64);
  EXPECT_EQ(defaults.scheme, SlabScheme::PerRowSymmetric);
  EXPECT_FALSE(defaults.includePrefixes);
  EXPECT_EQ(defaults.keepBf16, SquareQConfig::defaultKeepBf16());
  EXPECT_EQ(defaults.scaleSearch, ScaleSearch::AbsMax);
  EXPECT_EQ(defaults.maxRatio, 0.9);
  EXPECT_EQ(defaults.serve, SlabServe::Dequant);
  EXPECT_EQ(defaults.verify, SlabVerify::Open);
  SquareQConfig config = readConfig(R"({"pad_k": 16, "scheme": "fp8_e4m3_row", "include_prefixes": ["blocks."],
      "keep_bf16": ["*.out", "rmse>0.02"], "scale_search": "mse", "max_ratio": 1, "serve": "fused", "verify": "full"})");
  EXPECT_EQ(config.padK, 16);
  EXPECT_EQ(config.scheme, SlabScheme::Fp8E4M3Row);
  EXPECT_EQ(config.includePrefixes, std::vector<std::string>{"blocks."});
  EXPECT_EQ(config.keepBf16, (std::vector<std::string>{"*.out", "rmse>0.02"}));
  EXPECT_EQ(config.scaleSearch, ScaleSearch::Mse);
  EXPECT_EQ(config.maxRatio, 1);
  EXPECT_EQ(config.serve, SlabServe::Fused);
  EXPECT_EQ(config.verify, SlabVerify::Full);
  EXPECT_EQ(readConfig(R"({"pack_k": 32})").padK, 32); // v2's name
  EXPECT_EQ(readConfig(R"({"keep_bf16": ["default", "cosine<0.99"]})").keepBf16.size(), defaults.keepBf16.size() + 1);
}

// The section is one of the config file's: what is wrong is said at loading.
TEST(SquareQConfig, RefusesWhatIsOutOfRange) {
  auto refuse = [](const std::string &text, const char *part) {
    EXPECT_ERROR(readConfig(text), ConfigInvalid, part);
    EXPECT_ERROR(Config::parse(R"({"memory": {"stagehand": {"squareq": )" + text + "}}}", "run.json"), ConfigInvalid,
                 part);
  };
  for (const char *value : {"0", "2", "8", "24", "1040", "-64"})
    refuse(R"({"pad_k": )" + std::string(value) + "}", "squareq.pad_k");
  refuse(R"({"pack_k": 7})", "1, or a multiple of 16 up to 1024");
  refuse(R"({"pack_k": 16, "pad_k": 32})", "the v2 name of pad_k");
  refuse(R"({"scheme": "int8"})", "per_row_symmetric");
  refuse(R"({"scale_search": "best"})", "absmax");
  refuse(R"({"max_ratio": 0})", "max_ratio");
  refuse(R"({"max_ratio": 1.01})", "max_ratio");
  refuse(R"({"serve": "int8"})", "fused");
  refuse(R"({"verify": "all"})", "full");
  refuse(R"({"keep_bf16": ["rmse>x"]})", "keep_bf16[0]");
  refuse(R"({"keep_bf16": ["ok", "rmse<0.1"]})", "keep_bf16[1]");
  refuse(R"({"keep_bf16": ["cosine<2"]})", "is not a bound");
  refuse(R"({"keep_bf16": [""]})", "an empty pattern");
  refuse(R"({"group": 16})", "32 or 64");
  refuse(R"({"scheme": "int4_group", "pad_k": 16})", "a multiple of group (64)");
  refuse(R"({"pad": 64})", "pad_k");
}
