//===- SquareQConfig.cpp - how slabs are built and read -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include "KeepRules.h"
#include "segue/runtime/Services/SquareQ/SlabManifest.h"

namespace segue::inline runtime {

static constexpr std::pair<std::string_view, SlabScheme> schemes[] = {
    {name(SlabScheme::PerRowSymmetric), SlabScheme::PerRowSymmetric},
    {name(SlabScheme::Fp8E4M3Row), SlabScheme::Fp8E4M3Row},
    {name(SlabScheme::Int4Group), SlabScheme::Int4Group}};
static constexpr std::pair<std::string_view, ScaleSearch> searches[] = {{"absmax", ScaleSearch::AbsMax},
                                                                        {"mse", ScaleSearch::Mse}};
static constexpr std::pair<std::string_view, bool> rotations[] = {{"none", false}, {rotationName, true}};
static constexpr std::pair<std::string_view, SlabServe> serves[] = {{"dequant", SlabServe::Dequant},
                                                                    {"fused", SlabServe::Fused}};
static constexpr std::pair<std::string_view, SlabVerify> verifies[] = {
    {"none", SlabVerify::None}, {"open", SlabVerify::Open}, {"full", SlabVerify::Full}};

std::string_view name(SlabVerify verify) { return verifies[size_t(verify)].first; }
std::string_view name(ScaleSearch search) { return searches[size_t(search)].first; }

std::vector<std::string> SquareQConfig::defaultKeepBf16() {
  return {// norms
          "*norm*",
          // embeddings of tokens, positions, images, time, text
          "*embed*", "wte", "*.wte", "wpe", "*.wpe", "*patchify*", "*caption*",
          // modulation
          "*modulation*", "*adaln*", "*scale_shift*", "*gate_logits*",
          // the output head
          "lm_head", "*.lm_head", "head", "output_head", "proj_out", "final_layer", "final_layer.*"};
}

static bool isPadK(int64_t value) { return value == 1 || (value >= 16 && value <= 1024 && value % 16 == 0); }

SquareQConfig SquareQConfig::read(ConfigReader &reader) {
  SquareQConfig config;
  // v2 called it pack_k.
  for (std::string_view key : {"pack_k", "pad_k"}) {
    config.padK = reader.getInt(key, config.padK);
    if (!isPadK(config.padK))
      reader.failValue(key, "1, or a multiple of 16 up to 1024");
  }
  if (reader.has("pack_k") && reader.has("pad_k") && reader.getInt("pack_k", 0) != config.padK)
    reader.fail("pack_k", "the v2 name of pad_k, which has another value; leave it out");
  config.scheme = reader.getEnum<SlabScheme>("scheme", config.scheme, schemes);
  config.group = reader.getInt("group", config.group);
  if (config.group != 32 && config.group != 64)
    reader.failValue("group", "32 or 64");
  config.rotated = reader.getEnum<bool>("rotation", config.rotated, rotations);
  config.rank = reader.getInt("rank", config.rank, Range::between(0, 1024));
  config.includePrefixes = reader.getOptionalStrings("include_prefixes");
  config.keepBf16.clear();
  std::vector<std::string> patterns = reader.getStrings("keep_bf16", {"default"});
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (std::string wrong = KeepRules::whatIsWrong(patterns[i]); !wrong.empty())
      reader.fail("keep_bf16[" + std::to_string(i) + "]", wrong);
    if (patterns[i] != "default")
      config.keepBf16.push_back(patterns[i]);
    else
      for (std::string &pattern : defaultKeepBf16())
        config.keepBf16.push_back(pattern);
  }
  config.scaleSearch = reader.getEnum<ScaleSearch>("scale_search", config.scaleSearch, searches);
  config.maxRatio = reader.getNumber("max_ratio", config.maxRatio, Range::aboveUpTo(0, 1));
  config.serve = reader.getEnum<SlabServe>("serve", config.serve, serves);
  config.verify = reader.getEnum<SlabVerify>("verify", config.verify, verifies);
  reader.finish();
  if (config.scheme == SlabScheme::Int4Group && config.padK % config.group != 0)
    reader.fail(reader.has("pad_k") ? "pad_k" : "pack_k",
                "int4_group needs a multiple of group (" + std::to_string(config.group) + ")");
  if (config.scheme != SlabScheme::Int4Group && config.rotated)
    reader.fail("rotation", "only int4_group is rotated");
  if (config.scheme != SlabScheme::Int4Group && config.rank)
    reader.fail("rank", "only int4_group has a low-rank product");
  if (config.rotated && config.serve == SlabServe::Fused)
    reader.fail("serve", "a rotated weight is served by dequant");
  return config;
}

} // namespace segue::inline runtime
