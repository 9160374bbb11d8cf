//===- SlabManifestText.cpp - a manifest as SquareQ v2 writes it ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Only who builds slabs writes manifests: apart from reading them, in the
// builder's library.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabManifest.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static Json orNull(const std::optional<std::string> &text) { return text ? Json(*text) : Json(nullptr); }

static Json layerJson(const SlabLayer &layer) {
  Json json{{"canonical_name", layer.canonicalName}, {"qweight_key", layer.qweightKey},
            {"scale_key", layer.scaleKey},           {"zero_point_key", orNull(layer.zeroPointKey)},
            {"bias_key", orNull(layer.biasKey)},     {"orig_shape", layer.origShape},
            {"packed_shape", layer.packedShape},     {"pad_k", layer.padK},
            {"quant_bits", layer.quantBits},         {"quant_scheme", layer.quantScheme},
            {"quant_axis", layer.quantAxis},         {"dtype_qweight", layer.dtypeQweight},
            {"dtype_scale", layer.dtypeScale},       {"dtype_zero_point", layer.dtypeZeroPoint},
            {"block_id", orNull(layer.blockId)}};
  if (layer.group)
    json["group"] = *layer.group;
  if (layer.rotation)
    json["rotation"] = *layer.rotation;
  if (layer.rank) {
    json["rank"] = *layer.rank;
    json["lowrank_a_key"] = orNull(layer.lowRankAKey);
    json["lowrank_b_key"] = orNull(layer.lowRankBKey);
  }
  if (!layer.sha256.empty())
    json["sha256"] = layer.sha256;
  if (!layer.crc32.empty())
    json["crc32"] = layer.crc32;
  return json;
}

std::string SlabManifest::text() const {
  Json json{{"model_signature", modelSignature},
            {"architecture_id", architectureId},
            {"quant_version", quantVersion},
            {"kernel_abi_version", kernelAbiVersion},
            {"min_runtime_version", minRuntimeVersion},
            {"layer_count", layerCount},
            {"total_qweight_bytes", totalQweightBytes},
            {"layers", Json::array()}};
  for (const SlabLayer &layer : layers)
    json["layers"].push_back(layerJson(layer));
  if (sourceSha256)
    json["source_sha256"] = *sourceSha256;
  if (toolVersion)
    json["tool_version"] = *toolVersion;
  if (sourceSha256 || !keptBf16.empty())
    json["kept_bf16"] = keptBf16;
  json[manifestHashKey] = manifestHash(json);
  // Names that are not ASCII are escaped, as Python's json does.
  return json.dump(2, ' ', /*ensure_ascii=*/true);
}

} // namespace segue::inline runtime
