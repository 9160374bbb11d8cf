//===- SlabChecks.cpp - may this slab serve this program? -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabChecks.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include <algorithm>
#include <cmath>
#include <set>

namespace segue::inline runtime {

std::string safetensorsType(std::string_view type) {
  static constexpr std::pair<std::string_view, std::string_view> names[] = {
      {"int8", "I8"}, {"uint8", "U8"}, {"float32", "F32"}, {"bfloat16", "BF16"}, {"float8_e4m3fn", "F8_E4M3"}};
  for (const auto &[torch, safetensors] : names)
    if (type == torch)
      return std::string(safetensors);
  return std::string(type);
}

static std::string str(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i)
    text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

SlabNames::SlabNames(const SlabManifest &manifest) {
  for (size_t i = 0; i < manifest.layers.size(); ++i)
    layers_.emplace(manifest.layers[i].canonicalName, std::pair(i, manifest.layers[i].biasKey.has_value()));
}

std::optional<SlabMatch> SlabNames::find(std::string_view name, const NameAliases &aliases) const {
  for (const std::string &candidate : sourceNames(name, aliases)) {
    if (auto it = layers_.find(layerOfWeight(candidate)); it != layers_.end())
      return SlabMatch{it->second.first, false};
    if (auto it = layers_.find(layerOfBias(candidate)); it != layers_.end() && it->second.second)
      return SlabMatch{it->second.first, true};
    if (auto it = layers_.find(candidate); it != layers_.end())
      return SlabMatch{it->second.first, false};
  }
  return std::nullopt;
}

std::optional<SlabMatch> findLayer(const SlabNames &names, const ProgramWeight &weight, const NameAliases &aliases) {
  for (const std::string &name : weight.names)
    if (std::optional<SlabMatch> match = names.find(name, aliases); match && !match->isBias)
      return match;
  return std::nullopt;
}

namespace {

/// A linear layer of the program, called as the slab calls it.
struct ProgramLinear {
  LinearLayer layer;
  const ProgramWeight *weight;
  bool isKnown = false, isKept = false;
};

/// One method per check; each adds what it finds.
class Checker {
public:
  Checker(const SlabManifest &manifest, const TensorTable &tensors, const TensorValues &values,
          const SlabExpectation &expected)
      : manifest_(manifest), tensors_(tensors), values_(values), expected_(expected), names_(manifest) {
    findLinears();
  }

  void abiVersion() {
    if (manifest_.kernelAbiVersion > supportedKernelAbi)
      add("kernel_abi_version", "unsupported kernel ABI version " + std::to_string(manifest_.kernelAbiVersion));
  }

  void forms() {
    for (const SlabLayer &layer : manifest_.layers) {
      std::optional<SlabForm> form = layer.form();
      if (!form)
        add(layer.canonicalName, "layer \"" + layer.canonicalName + "\": unsupported quant_scheme \"" +
                                     layer.quantScheme + "\" with quant_bits " + std::to_string(layer.quantBits) +
                                     formDetails(layer));
      else if (layer.quantAxis != 0)
        add(layer.canonicalName,
            "layer \"" + layer.canonicalName + "\": unsupported quant_axis " + std::to_string(layer.quantAxis));
    }
  }

  void counts() {
    if (manifest_.layerCount < 0 || uint64_t(manifest_.layerCount) != manifest_.layers.size())
      add("layer_count", "layer_count is " + std::to_string(manifest_.layerCount) + ", but " +
                             std::to_string(manifest_.layers.size()) + " layers are listed");
    uint64_t sum = 0;
    for (const SlabLayer &layer : manifest_.layers)
      sum = checkedAdd(sum, checkedElementCount(layer.packedShape).value_or(UINT64_MAX)).value_or(UINT64_MAX);
    if (manifest_.totalQweightBytes < 0 || uint64_t(manifest_.totalQweightBytes) != sum)
      add("total_qweight_bytes", "total_qweight_bytes is " + std::to_string(manifest_.totalQweightBytes) +
                                     ", but the layers have " + std::to_string(sum));
  }

  void tensors() {
    for (const SlabLayer &layer : manifest_.layers)
      tensorsOf(layer, *layer.form());
  }

  void numbers() {
    if (!values_)
      return;
    for (const SlabLayer &layer : manifest_.layers) {
      std::vector<float> scales = values_(layer.scaleKey);
      bool allZero = std::all_of(scales.begin(), scales.end(), [](float scale) { return scale == 0; });
      if (allZero && !scales.empty())
        add(layer.scaleKey, "tensor \"" + layer.scaleKey + "\": all scales are 0");
      else if (auto bad = std::find_if(scales.begin(), scales.end(),
                                       [](float scale) { return !std::isfinite(scale) || scale <= 0; });
               bad != scales.end())
        add(layer.scaleKey, badNumber(layer.scaleKey, "scale", scales, bad, "finite and above 0"));
      if (layer.form()->rank)
        for (const std::string &key : {*layer.lowRankAKey, *layer.lowRankBKey}) {
          std::vector<float> factors = values_(key);
          auto bad = std::find_if(factors.begin(), factors.end(), [](float factor) { return !std::isfinite(factor); });
          if (bad != factors.end())
            add(key, badNumber(key, "factor", factors, bad, "finite"));
        }
      if (!layer.form()->hasZeroPoint())
        continue;
      std::vector<float> zeros = values_(*layer.zeroPointKey);
      if (auto bad = std::find_if(zeros.begin(), zeros.end(), [](float zero) { return !std::isfinite(zero); });
          bad != zeros.end())
        add(*layer.zeroPointKey, badNumber(*layer.zeroPointKey, "zero point", zeros, bad, "finite"));
    }
  }

  void signature() {
    if (expected_.signature && *expected_.signature != manifest_.modelSignature)
      add("model_signature",
          "model signature is \"" + manifest_.modelSignature + "\", the program's is \"" + *expected_.signature + "\"");
    if (expected_.program.empty())
      return;
    std::string own = signatureOf([](const ProgramLinear &each) { return each.isKnown || !each.weight->isTrained; });
    if (own == manifest_.modelSignature ||
        signatureOf([](const ProgramLinear &) { return true; }) == manifest_.modelSignature)
      return;
    add("model_signature", "model signature is \"" + manifest_.modelSignature + "\", the program's is \"" + own +
                               "\": the slab is of another model, or of one whose layers are called otherwise (declare "
                               "aliases)");
    // Two hashes tell nobody where to look.
    std::vector<std::string> unused;
    programWants(unused);
    for (const std::string &name : unused)
      add(name, "the slab holds \"" + name + "\", which the program does not want");
  }

  void wants(std::vector<std::string> &unused) {
    if (!expected_.program.empty())
      return programWants(unused);
    if (!expected_.wants)
      return;
    std::vector<bool> used(manifest_.layers.size());
    std::vector<std::string_view> known = knownNames();
    for (const WantedWeight &want : *expected_.wants) {
      std::optional<SlabMatch> match = names_.find(want.name, expected_.aliases);
      if (!match) {
        std::string_view layer = layerOfWeight(want.name);
        auto kept = manifest_.keptBf16.find(std::string(layer.empty() ? std::string_view(want.name) : layer));
        add(want.name, "the program wants \"" + want.name + "\", which the slab does not hold" +
                           (kept != manifest_.keptBf16.end() ? "; it was kept in bf16: " + kept->second
                                                             : nearestHint(want.name, known)));
        continue;
      }
      const SlabLayer &layer = manifest_.layers[match->layer];
      used[match->layer] = used[match->layer] || !match->isBias;
      Shape shape = match->isBias ? Shape{layer.origShape[0]} : layer.origShape;
      if (!want.shape.empty() && want.shape != shape)
        add(want.name,
            "the program wants \"" + want.name + "\" of shape " + str(want.shape) + ", the slab holds " + str(shape));
    }
    addUnused(used, unused);
  }

  std::vector<SlabProblem> problems;

private:
  std::vector<std::string_view> knownNames() const {
    std::vector<std::string_view> known;
    for (const SlabLayer &layer : manifest_.layers)
      known.push_back(layer.canonicalName);
    return known;
  }

  void addUnused(const std::vector<bool> &used, std::vector<std::string> &unused) const {
    for (size_t i = 0; i < used.size(); ++i)
      if (!used[i])
        unused.push_back(manifest_.layers[i].canonicalName);
  }

  /// Finds the linear layers by collectLinearLayers, as the slab's builder does; here by full names, which are all
  /// different.
  void findLinears() {
    std::vector<NamedShape> shapes;
    std::map<std::string_view, const ProgramWeight *> byName;
    for (const ProgramWeight &weight : expected_.program) {
      shapes.push_back({weight.names.back(), weight.desc.shape, weight.desc.element});
      byName.emplace(weight.names.back(), &weight);
    }
    std::set<std::string> seen; // ties
    for (LinearLayer &layer : collectLinearLayers(shapes)) {
      const ProgramWeight *weight = byName.at(layer.name + ".weight");
      ProgramLinear linear{std::move(layer), weight};
      linear.layer.name = layerOfWeight(linear.weight->names.front());
      if (std::optional<SlabMatch> match = findLayer(names_, *linear.weight, expected_.aliases)) {
        linear.isKnown = true;
        linear.layer.name = manifest_.layers[match->layer].canonicalName;
      } else if (std::string kept = keptName(*linear.weight); !kept.empty()) {
        linear.isKnown = linear.isKept = true;
        linear.layer.name = std::move(kept);
      }
      if (seen.insert(linear.layer.name).second)
        linears_.push_back(std::move(linear));
    }
  }

  /// Returns the name of a weight among the layers that stayed in bf16, or an empty text.
  std::string keptName(const ProgramWeight &weight) const {
    for (const std::string &name : weight.names)
      for (const std::string &candidate : sourceNames(name, expected_.aliases))
        if (auto kept = manifest_.keptBf16.find(std::string(layerOfWeight(candidate)));
            kept != manifest_.keptBf16.end())
          return kept->first;
    return {};
  }

  template <typename Chosen> std::string signatureOf(Chosen &&isChosen) const {
    std::vector<LinearLayer> layers;
    for (const ProgramLinear &linear : linears_)
      if (isChosen(linear))
        layers.push_back(linear.layer);
    return modelSignature(layers);
  }

  void programWants(std::vector<std::string> &unused) {
    std::vector<bool> used(manifest_.layers.size());
    std::vector<std::string_view> known = knownNames();
    for (const ProgramWeight &weight : expected_.program) {
      const std::string &name = weight.names.front();
      std::optional<SlabMatch> match = findLayer(names_, weight, expected_.aliases);
      if (!match)
        continue;
      const SlabLayer &layer = manifest_.layers[match->layer];
      if (weight.isTrained) {
        if (!expected_.mayTrain)
          add(name, "the program trains \"" + name +
                        "\", which the slab holds: it serves frozen weights alone; freeze it, or build the slab with "
                        "--keep-bf16 \"" +
                        layer.canonicalName + "\"");
        continue;
      }
      used[match->layer] = true;
      if (weight.desc.shape != layer.origShape)
        add(name, "the program wants \"" + name + "\" of shape " + str(weight.desc.shape) + ", the slab holds " +
                      str(layer.origShape));
    }
    for (const ProgramLinear &linear : linears_)
      if (!linear.isKnown && !linear.weight->isTrained)
        add(linear.weight->names.front(), "the program wants \"" + linear.weight->names.front() +
                                              "\", which the slab does not hold" +
                                              nearestHint(linear.layer.name, known));
    addUnused(used, unused);
  }

  void add(std::string subject, std::string sentence) { problems.push_back({std::move(subject), std::move(sentence)}); }

  /// Returns what else makes a form, where it is said.
  static std::string formDetails(const SlabLayer &layer) {
    return (layer.group ? ", group " + std::to_string(*layer.group) : "") +
           (layer.rotation ? ", rotation \"" + *layer.rotation + "\"" : "") +
           (layer.rank ? ", rank " + std::to_string(*layer.rank) : "");
  }

  void tensorsOf(const SlabLayer &layer, const SlabForm &form) {
    SlabSize size;
    if (auto flat = flattenWeight(layer.origShape))
      size = slabSize(form, flat->first, flat->second, layer.biasKey.has_value()).value_or(SlabSize());
    bool isSized = size.out > 0;
    if (!isSized || layer.packedShape != size.packedShape())
      add(layer.canonicalName, "layer \"" + layer.canonicalName + "\": packed_shape " + str(layer.packedShape) +
                                   " is not orig_shape " + str(layer.origShape) + " padded to pad_k " +
                                   std::to_string(layer.padK) + formDetails(layer) +
                                   (isSized ? ", which is " + str(size.packedShape()) : ""));
    if (!isSized)
      return;
    declared(layer, "dtype_qweight", layer.dtypeQweight, form.qweightType());
    declared(layer, "dtype_scale", layer.dtypeScale, form.scaleType());
    stored(layer, layer.qweightKey, form.qweightType(), layer.packedShape);
    bool isInt4 = form.scheme == SlabScheme::Int4Group;
    stored(layer, layer.scaleKey, form.scaleType(),
           isInt4 ? Shape{size.padded / form.group, size.out} : Shape{size.out});
    if (form.hasZeroPoint()) {
      declared(layer, "dtype_zero_point", layer.dtypeZeroPoint, "F32");
      if (layer.zeroPointKey)
        stored(layer, *layer.zeroPointKey, "F32", {size.out});
      else
        add(layer.canonicalName, "layer \"" + layer.canonicalName + "\": no zero_point_key");
    }
    if (layer.biasKey)
      stored(layer, *layer.biasKey, "F32", {size.out});
    if (form.rank == 0)
      return;
    if (!layer.lowRankAKey || !layer.lowRankBKey)
      return add(layer.canonicalName, "layer \"" + layer.canonicalName + "\": no lowrank_a_key and lowrank_b_key");
    stored(layer, *layer.lowRankAKey, "BF16", {size.out, form.rank});
    stored(layer, *layer.lowRankBKey, "BF16", {form.rank, size.in});
  }

  void declared(const SlabLayer &layer, const char *field, const std::string &type, std::string_view wanted) {
    if (safetensorsType(type) != wanted)
      add(layer.canonicalName, "layer \"" + layer.canonicalName + "\": " + field + " is \"" + type + "\", but " +
                                   layer.quantScheme + " stores " + std::string(wanted));
  }

  void stored(const SlabLayer &layer, const std::string &key, std::string_view type, const Shape &shape) {
    auto it = tensors_.find(key);
    if (it == tensors_.end())
      return add(key, "layer \"" + layer.canonicalName + "\": the slab has no tensor \"" + key + "\"");
    if (safetensorsType(it->second.type) != type || it->second.shape != shape)
      add(key, "tensor \"" + key + "\" is " + it->second.type + str(it->second.shape) + ", the manifest declares " +
                   std::string(type) + str(shape));
  }

  static std::string badNumber(const std::string &key, const char *what, const std::vector<float> &values,
                               std::vector<float>::const_iterator bad, const char *rule) {
    return "tensor \"" + key + "\": " + what + " " + std::to_string(*bad) + " at " +
           std::to_string(bad - values.begin()) + " is not " + rule;
  }

  const SlabManifest &manifest_;
  const TensorTable &tensors_;
  const TensorValues &values_;
  const SlabExpectation &expected_;
  SlabNames names_;
  std::vector<ProgramLinear> linears_;
};

} // namespace

SlabFindings checkSlab(const SlabManifest &manifest, std::vector<SlabProblem> problems, const TensorTable &tensors,
                       const TensorValues &values, const SlabExpectation &expected) {
  SlabFindings findings;
  Checker checker(manifest, tensors, values, expected);
  checker.problems = std::move(problems);
  for (int check = 1; check <= 8; ++check) {
    switch (check) {
    case 1: // the caller's
      break;
    case 2:
      checker.abiVersion();
      break;
    case 3:
      checker.forms();
      break;
    case 4:
      checker.counts();
      break;
    case 5:
      checker.tensors();
      break;
    case 6:
      checker.numbers();
      break;
    case 7:
      checker.signature();
      break;
    case 8:
      checker.wants(findings.unused);
      break;
    }
    if (checker.problems.empty())
      continue;
    findings.failedCheck = check;
    findings.problems = std::move(checker.problems);
    return findings;
  }
  return findings;
}

} // namespace segue::inline runtime
