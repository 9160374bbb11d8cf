//===- SquareQConfig.h - how slabs are built and read -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The section `memory.stagehand.squareq` of a config file; the flags of
// `segue-run quantize` have the same names.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_SQUAREQCONFIG_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_SQUAREQCONFIG_H

#include "segue/runtime/Config/ConfigReader.h"
#include "segue/runtime/Services/SquareQ/SlabForm.h"
#include "segue/runtime/Layout/RowStorage.h"

namespace segue::inline runtime {

/// The part of a slab's bytes that is checked.
enum class SlabVerify : int8_t {
  /// Checks no hashes. The eight checks of opening are made all the same: they keep reads
  /// inside the file.
  None,
  /// Checks the hashes of scales, zero points and biases at opening, and the CRC of each
  /// weight when it is first read.
  Open,
  /// Checks the hash of every tensor at opening, which reads the whole file.
  Full,
};

/// The way in which the device uses a served layer: it makes floats of it, or its products read the codes.
enum class SlabServe : int8_t { Dequant, Fused };

struct SquareQConfig {
  int64_t padK = 64;
  SlabScheme scheme = SlabScheme::PerRowSymmetric;
  /// The columns per scale of int4_group: 32 or 64.
  int64_t group = 64;
  /// For int4_group alone: whether layers whose columns are a multiple of 256 are rotated,
  /// and the rank of a bf16 product that is added, or 0.
  bool rotated = false;
  int64_t rank = 0;
  /// Prefixes of the names of the layers to quantise; without them, all layers.
  std::optional<std::vector<std::string>> includePrefixes;
  /// Globs over names of layers, and bounds such as "rmse>0.02" and
  /// "cosine<0.999". In a file, "default" stands for defaultKeepBf16().
  std::vector<std::string> keepBf16 = defaultKeepBf16();
  ScaleSearch scaleSearch = ScaleSearch::AbsMax;
  /// The greatest ratio of the stored bytes of a layer to its bf16 bytes; layers above it
  /// stay bf16.
  double maxRatio = 0.9;
  SlabServe serve = SlabServe::Dequant;
  SlabVerify verify = SlabVerify::Open;

  /// The path of the section.
  static constexpr std::string_view section = "memory.stagehand.squareq";
  /// Reads the section. Throws ConfigError.
  static SquareQConfig read(ConfigReader &reader);
  /// Returns globs of norms, embeddings, modulation and the output head.
  static std::vector<std::string> defaultKeepBf16();

  SlabForm form() const { return {.scheme = scheme, .padK = padK, .group = group, .rotated = rotated, .rank = rank}; }
};

inline constexpr ScaleSearch allScaleSearches[] = {ScaleSearch::AbsMax, ScaleSearch::Mse};

/// Return "none", "open", "full"; "absmax", "mse".
std::string_view name(SlabVerify verify);
std::string_view name(ScaleSearch search);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_SQUAREQCONFIG_H
