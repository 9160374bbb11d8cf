//===- SlabManifest.cpp - what a slab says about itself -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabManifest.h"
#include "Digest.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace segue::inline runtime {

std::optional<SlabForm> SlabLayer::form() const {
  std::optional<SlabScheme> scheme = parseSlabScheme(quantScheme);
  if (!scheme)
    return std::nullopt;
  SlabForm form{.scheme = *scheme, .padK = padK, .group = group.value_or(64)};
  form.rotated = rotation.has_value();
  form.rank = rank.value_or(0);
  if ((rotation && *rotation != rotationName) || form.rank < 0 ||
      (form.scheme != SlabScheme::Int4Group && (rotation || rank)))
    return std::nullopt;
  bool isKnown = form.scheme != SlabScheme::Int4Group || form.group == groupExtent(form.storage());
  return isKnown && form.quantBits() == quantBits ? std::optional(form) : std::nullopt;
}

std::vector<std::string> SlabLayer::keys() const {
  std::vector<std::string> keys{qweightKey, scaleKey};
  if (zeroPointKey)
    keys.push_back(*zeroPointKey);
  for (const auto &key : {biasKey, lowRankAKey, lowRankBKey})
    if (key)
      keys.push_back(*key);
  return keys;
}

bool SlabManifest::hasHashes() const {
  return std::all_of(layers.begin(), layers.end(), [](const SlabLayer &layer) {
    std::vector<std::string> keys = layer.keys();
    return std::all_of(keys.begin(), keys.end(),
                       [&](const std::string &key) { return layer.sha256.contains(key) && layer.crc32.contains(key); });
  });
}

namespace {

/// Reads the keys of one object, noting each that is missing or of another type.
class Fields {
public:
  Fields(const Json &object, std::string path, std::vector<SlabProblem> &problems)
      : object_(object), path_(std::move(path)), problems_(problems) {}

  void read(const char *key, std::string &value, bool required) {
    if (const Json *found = find(key, required))
      found->is_string() ? void(value = found->get<std::string>()) : wrong(key, *found, "a text");
  }

  void read(const char *key, std::optional<std::string> &value) {
    if (const Json *found = find(key, false))
      found->is_string() ? void(value = found->get<std::string>()) : wrong(key, *found, "a text or null");
  }

  void read(const char *key, int64_t &value, bool required) {
    if (const Json *found = find(key, required))
      isWhole(*found) ? void(value = found->get<int64_t>()) : wrong(key, *found, "a whole number");
  }

  void read(const char *key, std::optional<int64_t> &value) {
    if (const Json *found = find(key, false))
      isWhole(*found) ? void(value = found->get<int64_t>()) : wrong(key, *found, "a whole number or null");
  }

  void read(const char *key, Shape &shape) {
    const Json *found = find(key, true);
    if (!found)
      return;
    if (!found->is_array() ||
        !std::all_of(found->begin(), found->end(), [](const Json &extent) { return isWhole(extent) && extent > 0; }))
      return wrong(key, *found, "a list of extents above 0");
    shape = found->get<Shape>();
  }

  /// An object of texts; absent is empty.
  template <typename Map> void readTexts(const char *key, Map &texts) {
    const Json *found = find(key, false);
    if (!found)
      return;
    if (!found->is_object() ||
        !std::all_of(found->begin(), found->end(), [](const Json &value) { return value.is_string(); }))
      return wrong(key, *found, "an object of texts");
    for (const auto &[name, value] : found->items())
      texts[name] = value.template get<std::string>();
  }

private:
  static bool isWhole(const Json &value) {
    return value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(INT64_MAX));
  }

  /// Null where the key is absent or null; a problem if it is required.
  const Json *find(const char *key, bool required) {
    auto it = object_.find(key);
    if (it != object_.end() && !it->is_null())
      return &*it;
    if (required)
      problems_.push_back({path_ + key, "manifest: \"" + path_ + key + "\" is missing"});
    return nullptr;
  }

  void wrong(const char *key, const Json &found, const char *wanted) {
    std::string text = found.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 60)
      text = text.substr(0, 57) + "...";
    problems_.push_back({path_ + key, "manifest: \"" + path_ + key + "\" is " + text + ", not " + wanted});
  }

  const Json &object_;
  std::string path_;
  std::vector<SlabProblem> &problems_;
};

} // namespace

static SlabLayer readLayer(const Json &json, const std::string &path, std::vector<SlabProblem> &problems) {
  SlabLayer layer;
  if (!json.is_object()) {
    problems.push_back({path, "manifest: \"" + path + "\" is not an object"});
    return layer;
  }
  Fields fields(json, path + ".", problems);
  fields.read("canonical_name", layer.canonicalName, true);
  fields.read("qweight_key", layer.qweightKey, true);
  fields.read("scale_key", layer.scaleKey, true);
  fields.read("zero_point_key", layer.zeroPointKey);
  fields.read("bias_key", layer.biasKey);
  fields.read("orig_shape", layer.origShape);
  fields.read("packed_shape", layer.packedShape);
  fields.read("pad_k", layer.padK, true);
  fields.read("quant_bits", layer.quantBits, true);
  fields.read("quant_scheme", layer.quantScheme, true);
  fields.read("quant_axis", layer.quantAxis, false);
  fields.read("dtype_qweight", layer.dtypeQweight, true);
  fields.read("dtype_scale", layer.dtypeScale, true);
  fields.read("dtype_zero_point", layer.dtypeZeroPoint, false);
  fields.read("block_id", layer.blockId);
  fields.read("group", layer.group);
  fields.read("rotation", layer.rotation);
  fields.read("rank", layer.rank);
  fields.read("lowrank_a_key", layer.lowRankAKey);
  fields.read("lowrank_b_key", layer.lowRankBKey);
  fields.readTexts("sha256", layer.sha256);
  fields.readTexts("crc32", layer.crc32);
  return layer;
}

std::string manifestHash(Json manifest) {
  manifest.erase(manifestHashKey);
  std::string text = manifest.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return sha256Hex(std::as_bytes(std::span(text)));
}

SlabManifest readManifest(const Json &json, std::vector<SlabProblem> &problems) {
  SlabManifest manifest;
  if (!json.is_object()) {
    problems.push_back({"manifest", "manifest: not a JSON object"});
    return manifest;
  }
  Fields fields(json, "", problems);
  fields.read("model_signature", manifest.modelSignature, true);
  fields.read("architecture_id", manifest.architectureId, false);
  fields.read("quant_version", manifest.quantVersion, false);
  fields.read("kernel_abi_version", manifest.kernelAbiVersion, true);
  fields.read("min_runtime_version", manifest.minRuntimeVersion, false);
  fields.read("layer_count", manifest.layerCount, true);
  fields.read("total_qweight_bytes", manifest.totalQweightBytes, true);
  fields.read("source_sha256", manifest.sourceSha256);
  fields.read("tool_version", manifest.toolVersion);
  fields.readTexts("kept_bf16", manifest.keptBf16);
  std::optional<std::string> hash;
  fields.read(manifestHashKey, hash);
  manifest.hasOwnHash = hash && *hash == manifestHash(json);
  if (hash && !manifest.hasOwnHash)
    problems.push_back({manifestHashKey, "manifest: its values do not match its hash \"" +
                                             std::string(manifestHashKey) +
                                             "\": it was damaged or changed since it was written"});
  auto layers = json.find("layers");
  if (layers == json.end() || !layers->is_array()) {
    problems.push_back({"layers", "manifest: \"layers\" is missing or not a list"});
    return manifest;
  }
  std::set<std::string> names;
  for (size_t i = 0; i < layers->size(); ++i) {
    std::string path = "layers." + std::to_string(i);
    manifest.layers.push_back(readLayer((*layers)[i], path, problems));
    const std::string &name = manifest.layers.back().canonicalName;
    if (!name.empty() && !names.insert(name).second)
      problems.push_back({name, "manifest: layer \"" + name + "\" is listed twice"});
  }
  return manifest;
}

SlabManifest parseManifest(std::string_view text, std::vector<SlabProblem> &problems) {
  Json json;
  std::optional<JsonProblem> problem = readJson(text, json);
  if (!problem)
    return readManifest(json, problems);
  problems.push_back({"manifest", "manifest: not JSON; it is truncated or was changed: " + problem->sentence});
  return {};
}

} // namespace segue::inline runtime
