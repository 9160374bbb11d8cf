//===- SlabBuilder.cpp - makes a slab from a checkpoint -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// All sizes are known before the first weight is read, so the partial file has
// its header and its length at once and layers are written to their places.
// What is not known from names and shapes alone, a bound on the error or a NaN,
// is found out by a first pass that writes nothing.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include "BuildJournal.h"
#include "Digest.h"
#include "KeepRules.h"
#include "SlabLayout.h"
#include "StoredFile.h"
#include "segue/runtime/Config/ConfigError.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "segue/runtime/Engine/LowBitForms.h"
#include "segue/runtime/OutputFile.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <future>
#include <sys/stat.h>

namespace segue::inline runtime {

static constexpr std::string_view toolVersion = "segue " SEGUE_VERSION;

SlabPaths::SlabPaths(const std::filesystem::path &given) {
  std::string stem = given.string();
  constexpr std::string_view extension = ".safetensors";
  if (stem.size() > extension.size() && stem.ends_with(extension))
    stem.resize(stem.size() - extension.size());
  slab = stem + std::string(extension);
  manifest = stem + ".manifest.json";
  report = stem + ".report.json";
}

//===----------------------------------------------------------------------===//
// The report
//===----------------------------------------------------------------------===//

Json BuildReport::telemetry() const {
  return {
      {"layers", layers.size()},     {"kept_bf16", keptBf16.size()}, {"bytes_in", bytesIn},     {"bytes_out", bytesOut},
      {"floored_rows", flooredRows}, {"max_rel_rmse", maxRelRmse},   {"min_cosine", minCosine}, {"seconds", seconds}};
}

Json BuildReport::json() const {
  Json json = telemetry();
  json.erase("seconds"); // the file does not depend on time
  json["mean_cosine"] = meanCosine;
  json["per_layer"] = Json::array();
  for (const LayerReport &layer : layers)
    json["per_layer"].push_back({{"name", layer.name},
                                 {"shape", layer.shape},
                                 {"rel_rmse", layer.error.relRmse},
                                 {"cosine", layer.error.cosine},
                                 {"floored_rows", layer.error.flooredRows},
                                 {"rotated", layer.rotated},
                                 {"rank", layer.rank},
                                 {"slab_bytes", layer.size.slab()},
                                 {"bf16_bytes", layer.size.bf16},
                                 {"ratio", layer.size.ratio()}});
  json["kept"] = keptBf16;
  json["not_rotated"] = notRotated;
  return json;
}

//===----------------------------------------------------------------------===//
// The plan
//===----------------------------------------------------------------------===//

namespace {

struct PlannedLayer {
  std::string name;
  const SafetensorsEntry *weight = nullptr;
  /// Null if it has none.
  const SafetensorsEntry *bias = nullptr;
  /// The form of the build, without what the layer is too small or odd for.
  SlabForm form;
  SlabSize size;
};

} // namespace

/// The path through the first number of a layer's name: "blocks.3" of
/// "blocks.3.attn.to_q"; nothing without one.
static std::optional<std::string> blockOf(std::string_view layer) {
  for (size_t begin = 0; begin < layer.size();) {
    size_t end = std::min(layer.find('.', begin), layer.size());
    std::string_view component = layer.substr(begin, end - begin);
    if (!component.empty() && component.find_first_not_of("0123456789") == std::string_view::npos)
      return std::string(layer.substr(0, end));
    begin = end + 1;
  }
  return std::nullopt;
}

/// Returns a reader of the rows of a stored weight as f32.
static RowReader rowsOf(const StoredFile &file, const SafetensorsEntry &entry, int64_t in) {
  return [&file, &entry, in](int64_t first, int64_t count, std::span<float> values) {
    uint64_t width = byteSize(*entry.element), from = uint64_t(first) * uint64_t(in) * width;
    if (entry.element == ElementType::f32)
      return file.read(entry, from, std::as_writable_bytes(values));
    // The halves are read into the upper end of the floats they become:
    // converted from the front, none is overwritten before it was read.
    std::byte *halves = reinterpret_cast<std::byte *>(values.data()) + values.size() * (4 - width);
    file.read(entry, from, {halves, values.size() * width});
    bool isBf16 = entry.element == ElementType::bf16;
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, halves + 2 * i, sizeof bits);
      values[i] = isBf16 ? bf16ToFloat(bits) : f16ToFloat(bits);
    }
  };
}

struct SlabBuilder::Impl {
  explicit Impl(BuildOptions given)
      : options(std::move(given)), paths(options.slab), form(options.config.form()), threads(options.threads),
        source(options.source) {}

  BuildOptions options;
  SlabPaths paths;
  SlabForm form;
  Threads threads;
  StoredFile source;
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();

  std::vector<PlannedLayer> layers;
  std::map<std::string, std::string> kept;
  std::string signature;
  SlabLayout layout;

  std::unique_ptr<OutputFile> output;
  std::unique_ptr<BuildJournal> journal;
  /// True if the slab has its final name already: only the rest is missing.
  bool slabInPlace = false;
  std::string restartReason;
  size_t resumed = 0, done = 0;
  BuildState state = BuildState::New;

  QuantizedLayer quantized;
  std::vector<std::byte> bias;

  /// The hash of the whole source, made beside the build.
  std::atomic<bool> stop{false};
  std::future<std::string> sourceHash;

  ~Impl() { stop = true; }

  void plan();
  void survey();
  void begin();
  size_t countResumable();
  void quantize(const PlannedLayer &layer);
  void doLayer(const PlannedLayer &layer);
  Json identity() const;
  BuildReport report() const;
  SlabManifest manifest(const std::string &sourceSha256) const;
  BuildReport finish();
};

static Error nonFinite(const BuildOptions &options, const std::string &layer, std::pair<int64_t, int64_t> place) {
  return Error(ErrorCode::NonFinite, options.source.string() + ": layer \"" + layer + "\", row " +
                                         std::to_string(place.first) + ", column " + std::to_string(place.second) +
                                         ": the weight is NaN or infinite; repair the checkpoint, or leave the layer "
                                         "out with --keep-nonfinite-bf16");
}

/// Plans the layers by name, and decides what follows from names and shapes alone.
void SlabBuilder::Impl::plan() {
  std::vector<NamedShape> shapes;
  for (const SafetensorsEntry &entry : source.header().entries())
    shapes.push_back({entry.name, entry.shape, entry.element});
  signature = modelSignature(collectLinearLayers(shapes));
  KeepRules rules(options.config.keepBf16);
  const auto &prefixes = options.config.includePrefixes;
  std::vector<bool> prefixUsed(prefixes ? prefixes->size() : 0);
  for (const SafetensorsEntry &entry : source.header().entries()) {
    std::string_view name = layerOfWeight(entry.name);
    if (name.empty() || entry.shape.size() < 2)
      continue;
    PlannedLayer layer{.name = std::string(name), .weight = &entry};
    bool included = !prefixes;
    for (size_t i = 0; i < prefixUsed.size(); ++i)
      if (name.starts_with((*prefixes)[i]))
        included = prefixUsed[i] = true;
    const SafetensorsEntry *bias = source.header().find(layer.name + ".bias");
    if (bias && bias->shape == Shape{entry.shape[0]} && bias->element && isComputedInF32(*bias->element))
      layer.bias = bias;
    std::optional<std::pair<int64_t, int64_t>> flat = flattenWeight(entry.shape);
    layer.form = form;
    if (flat) {
      layer.form.rotated = form.rotated && canRotate(flat->second);
      layer.form.rank = form.rank < std::min(flat->first, flat->second) ? form.rank : 0;
    }
    std::optional<SlabSize> size = flat ? slabSize(layer.form, flat->first, flat->second, layer.bias) : std::nullopt;
    std::string reason = !included ? "not in include_prefixes" : rules.reasonFor(name);
    if (reason.empty() && (!entry.element || !isComputedInF32(*entry.element)))
      reason = entry.dtype + " weights are not quantised";
    else if (reason.empty() && !size)
      reason = "no elements";
    if (reason.empty() && size->ratio() > options.config.maxRatio) {
      char text[64];
      std::snprintf(text, sizeof text, "max_ratio: %.4g of its bf16 bytes", size->ratio());
      reason = text;
    }
    if (!reason.empty()) {
      kept[layer.name] = reason;
      continue;
    }
    layer.size = *size;
    layers.push_back(std::move(layer));
  }
  for (size_t i = 0; i < prefixUsed.size(); ++i)
    if (!prefixUsed[i])
      throw ConfigError(std::string(SquareQConfig::section), "include_prefixes",
                        "no layer of " + options.source.string() + " begins with \"" + (*prefixes)[i] + "\"",
                        (*prefixes)[i]);
  // Layers are sorted by name, which need not be the order of the tensors.
  std::sort(layers.begin(), layers.end(), [](const PlannedLayer &a, const PlannedLayer &b) { return a.name < b.name; });
}

/// Takes out the layers that only quantising shows to be unfit.
void SlabBuilder::Impl::survey() {
  KeepRules rules(options.config.keepBf16);
  if (!rules.hasBounds() && !options.keepNonfiniteBf16)
    return;
  std::erase_if(layers, [&](const PlannedLayer &layer) {
    quantize(layer);
    std::string reason;
    if (quantized.nonFinite && !options.keepNonfiniteBf16)
      throw nonFinite(options, layer.name, *quantized.nonFinite);
    if (quantized.nonFinite)
      reason = "not finite at row " + std::to_string(quantized.nonFinite->first) + ", column " +
               std::to_string(quantized.nonFinite->second);
    else
      reason = rules.reasonFor(quantized.error.relRmse, quantized.error.cosine);
    if (!reason.empty())
      kept[layer.name] = reason;
    return !reason.empty();
  });
}

/// Returns everything that the bytes of the slab depend on.
Json SlabBuilder::Impl::identity() const {
  const SquareQConfig &config = options.config;
  struct stat status = source.status();
  return {{"tool_version", toolVersion},
          {"source", std::filesystem::absolute(options.source).string()},
          {"source_bytes", status.st_size},
          {"source_inode", status.st_ino},
          {"source_modified", {status.st_mtim.tv_sec, status.st_mtim.tv_nsec}},
          {"scheme", name(config.scheme)},
          {"pad_k", config.padK},
          {"group", config.group},
          {"rotated", config.rotated},
          {"rank", config.rank},
          {"scale_search", name(config.scaleSearch)},
          {"max_ratio", config.maxRatio},
          {"keep_bf16", config.keepBf16},
          {"include_prefixes", config.includePrefixes ? Json(*config.includePrefixes) : Json(nullptr)},
          {"keep_nonfinite_bf16", options.keepNonfiniteBf16},
          {"architecture_id", options.architectureId}};
}

/// Returns true if a line of the journal says all that a finished layer has.
static bool isLayerLine(const Json &line, const std::string &layer) {
  auto has = [&](const char *key, auto &&isRight) { return line.contains(key) && isRight(line[key]); };
  auto isNumber = [](const Json &value) { return value.is_number(); };
  auto isTexts = [](const Json &value) {
    return value.is_object() &&
           std::all_of(value.begin(), value.end(), [](const Json &text) { return text.is_string(); });
  };
  return has("layer", [&](const Json &value) { return value == layer; }) && has("sha256", isTexts) &&
         has("crc32", isTexts) && has("rel_rmse", isNumber) && has("cosine", isNumber) && has("floored_rows", isNumber);
}

/// True if the hashes of a journal's line are those of the bytes in `read`.
template <typename Read>
static bool hasBytes(const Json &line, const std::string &layer, const std::vector<PlacedTensor> &tensors,
                     const Read &read) {
  if (!isLayerLine(line, layer))
    return false;
  std::vector<std::byte> piece(size_t(1) << 20);
  for (const PlacedTensor &tensor : tensors) {
    Crc32 crc;
    for (uint64_t from = 0; from < tensor.bytes; from += piece.size()) {
      std::span<std::byte> part = std::span(piece).first(std::min<uint64_t>(piece.size(), tensor.bytes - from));
      read(tensor.offset + from, part);
      crc.add(part);
    }
    if (line["crc32"].value(tensor.key, "") != crc.hex())
      return false;
  }
  return true;
}

/// The layers, in order, that the journal tells of and whose bytes are there.
/// A process that was killed between the renames left the slab in its place.
size_t SlabBuilder::Impl::countResumable() {
  auto tensorsOf = [&](const PlannedLayer &layer) {
    std::vector<PlacedTensor> tensors = tensorsOfLayer(layer.name, layer.form, layer.size);
    for (PlacedTensor &tensor : tensors)
      tensor.offset = layout.tensors.find(tensor.key)->second.offset;
    return tensors;
  };
  auto count = [&](auto &&read) {
    size_t k = 0;
    while (k < layers.size() && k + 1 < journal->lines().size() &&
           hasBytes(journal->lines()[k + 1], layers[k].name, tensorsOf(layers[k]), read))
      ++k;
    return k;
  };
  if (output->size() == layout.fileBytes)
    return count([&](uint64_t offset, std::span<std::byte> bytes) { output->readAt(offset, bytes); });
  std::error_code absent;
  if (output->size() != 0 || journal->lines().size() != layers.size() + 1 ||
      std::filesystem::file_size(paths.slab, absent) != layout.fileBytes || absent)
    return 0;
  std::ifstream slab(paths.slab, std::ios::binary);
  size_t k = count([&](uint64_t offset, std::span<std::byte> bytes) {
    slab.seekg(std::streamoff(offset));
    slab.read(reinterpret_cast<char *>(bytes.data()), std::streamsize(bytes.size()));
  });
  slabInPlace = slab.good() && k == layers.size();
  return slabInPlace ? k : 0;
}

/// Opens partial file and journal, and goes on with them if they are of this build.
void SlabBuilder::Impl::begin() {
  std::vector<PlacedTensor> tensors;
  for (const PlannedLayer &layer : layers)
    for (PlacedTensor &tensor : tensorsOfLayer(layer.name, layer.form, layer.size))
      tensors.push_back(std::move(tensor));
  layout = layOutSlab(std::move(tensors));
  output = std::make_unique<OutputFile>(paths.slab, OutputFile::Existing::Keep);
  std::filesystem::path journalPath = paths.slab;
  journalPath += ".building";
  journal = std::make_unique<BuildJournal>(journalPath);
  Json head = identity();
  if (!journal->lines().empty()) {
    const Json &found = journal->lines().front();
    if (found == head)
      done = resumed = countResumable();
    else
      for (const auto &[key, value] : head.items())
        if (!found.contains(key) || found[key] != value) {
          restartReason = "the build that was begun had another " + key;
          break;
        }
  }
  journal->keep(done ? done + 1 : 0);
  try {
    if (!done)
      journal->append(head);
    if (!slabInPlace) {
      output->resize(layout.fileBytes);
      output->writeAt(0, std::as_bytes(std::span(layout.header)));
    }
  } catch (...) {
    // Nothing was built that would be worth keeping.
    if (!done) {
      output->discard();
      journal->remove();
    }
    throw;
  }
  auto hash = [this] { return source.sha256(stop); };
  try {
    sourceHash = std::async(std::launch::async, hash);
  } catch (const std::system_error &) { // the system has no thread left: it is hashed when that is asked for
    sourceHash = std::async(std::launch::deferred, hash);
  }
}

void SlabBuilder::Impl::quantize(const PlannedLayer &layer) {
  quantizeLayer(layer.form, layer.size, options.config.scaleSearch, rowsOf(source, *layer.weight, layer.size.in),
                threads, quantized);
  bias.resize(layer.size.bias);
  if (!layer.bias)
    return;
  // Stored as f32 [out]: a weight of one column, to the reader.
  std::vector<float> values(static_cast<size_t>(layer.size.out));
  rowsOf(source, *layer.bias, 1)(0, layer.size.out, values);
  std::memcpy(bias.data(), values.data(), bias.size());
  for (size_t i = 0; i < values.size() && !quantized.nonFinite; ++i)
    if (!std::isfinite(values[i]))
      throw Error(ErrorCode::NonFinite, options.source.string() + ": the bias of layer \"" + layer.name + "\", row " +
                                            std::to_string(i) + ", is NaN or infinite; repair the checkpoint");
}

/// Quantises, writes and notes a layer. A restart relies on this order.
void SlabBuilder::Impl::doLayer(const PlannedLayer &layer) {
  quantize(layer);
  if (quantized.nonFinite)
    throw nonFinite(options, layer.name, *quantized.nonFinite);
  source.checkUnchanged();
  const std::pair<std::string_view, std::span<const std::byte>> parts[] = {
      {".qweight", quantized.qweight},
      {form.scheme == SlabScheme::Int4Group ? ".wscales" : ".scale", quantized.scale},
      {".zero_point", quantized.zeroPoint},
      {".bias", bias},
      {".lowrank_a", std::as_bytes(std::span(quantized.lowRank.a))},
      {".lowrank_b", std::as_bytes(std::span(quantized.lowRank.b))}};
  Json line{{"layer", layer.name}, {"sha256", Json::object()}, {"crc32", Json::object()}};
  for (const auto &[suffix, bytes] : parts) {
    if (bytes.empty())
      continue;
    std::string key = layer.name + std::string(suffix);
    output->writeAt(layout.tensors.find(key)->second.offset, bytes);
    line["sha256"][key] = sha256Hex(bytes);
    line["crc32"][key] = crc32Hex(bytes);
  }
  line["rel_rmse"] = quantized.error.relRmse;
  line["cosine"] = quantized.error.cosine;
  line["floored_rows"] = quantized.error.flooredRows;
  journal->append(line);
}

BuildReport SlabBuilder::Impl::report() const {
  BuildReport report{.keptBf16 = kept, .resumedLayers = resumed};
  double cosines = 0;
  for (size_t k = 0; k < layers.size(); ++k) {
    const Json &line = journal->lines()[k + 1];
    LayerReport layer{.name = layers[k].name, .shape = layers[k].weight->shape, .size = layers[k].size};
    layer.rotated = layers[k].form.rotated;
    layer.rank = layers[k].form.rank;
    if (form.rotated && !layer.rotated)
      report.notRotated.push_back(layer.name);
    layer.error = {.flooredRows = line["floored_rows"], .relRmse = line["rel_rmse"], .cosine = line["cosine"]};
    report.bytesIn += layers[k].weight->bytes + (layers[k].bias ? layers[k].bias->bytes : 0);
    report.bytesOut += layer.size.slab();
    report.flooredRows += layer.error.flooredRows;
    report.maxRelRmse = std::max(report.maxRelRmse, layer.error.relRmse);
    report.minCosine = std::min(report.minCosine, layer.error.cosine);
    cosines += layer.error.cosine;
    report.layers.push_back(std::move(layer));
  }
  if (!layers.empty())
    report.meanCosine = cosines / double(layers.size());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return report;
}

static std::string_view torchType(std::string_view type) {
  return type == "I8"     ? "int8"
         : type == "U8"   ? "uint8"
         : type == "BF16" ? "bfloat16"
         : type == "F32"  ? "float32"
                          : "float8_e4m3fn";
}

SlabManifest SlabBuilder::Impl::manifest(const std::string &sourceSha256) const {
  SlabManifest manifest;
  manifest.modelSignature = signature;
  manifest.architectureId = options.architectureId;
  manifest.layerCount = int64_t(layers.size());
  manifest.sourceSha256 = sourceSha256;
  manifest.toolVersion = toolVersion;
  manifest.keptBf16 = kept;
  for (size_t k = 0; k < layers.size(); ++k) {
    const PlannedLayer &planned = layers[k];
    const Json &line = journal->lines()[k + 1];
    SlabLayer layer;
    layer.canonicalName = planned.name;
    layer.qweightKey = planned.name + ".qweight";
    layer.scaleKey = planned.name + (form.scheme == SlabScheme::Int4Group ? ".wscales" : ".scale");
    if (form.hasZeroPoint())
      layer.zeroPointKey = planned.name + ".zero_point";
    if (planned.bias)
      layer.biasKey = planned.name + ".bias";
    layer.origShape = planned.weight->shape;
    layer.packedShape = planned.size.packedShape();
    layer.padK = form.padK;
    layer.quantBits = form.quantBits();
    layer.quantScheme = name(form.scheme);
    layer.dtypeQweight = torchType(form.qweightType());
    layer.dtypeScale = torchType(form.scaleType());
    layer.blockId = blockOf(planned.name);
    if (form.scheme == SlabScheme::Int4Group)
      layer.group = form.group;
    if (planned.form.rotated)
      layer.rotation = rotationName;
    if (planned.form.rank) {
      layer.rank = planned.form.rank;
      layer.lowRankAKey = planned.name + ".lowrank_a";
      layer.lowRankBKey = planned.name + ".lowrank_b";
    }
    layer.sha256 = line["sha256"].get<TensorHashes>();
    layer.crc32 = line["crc32"].get<TensorHashes>();
    manifest.totalQweightBytes += int64_t(planned.size.qweight);
    manifest.layers.push_back(std::move(layer));
  }
  return manifest;
}

BuildReport SlabBuilder::Impl::finish() {
  BuildReport result = report();
  // All bytes are on their way to the disk before the first name changes.
  OutputFile manifestFile(paths.manifest), reportFile(paths.report);
  manifestFile.write(manifest(sourceHash.get()).text());
  reportFile.write(result.json().dump(2) + "\n");
  source.checkUnchanged();
  if (slabInPlace)
    output->discard();
  else
    output->commit();
  manifestFile.commit();
  reportFile.commit();
  journal->remove();
  state = BuildState::Finalised;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return result;
}

//===----------------------------------------------------------------------===//
// The builder
//===----------------------------------------------------------------------===//

SlabBuilder::SlabBuilder(BuildOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  for (const std::filesystem::path *path : {&impl_->paths.slab, &impl_->paths.manifest, &impl_->paths.report})
    OutputFile::check(*path);
  impl_->plan();
  impl_->survey();
  impl_->begin();
}

SlabBuilder::~SlabBuilder() = default;

BuildState SlabBuilder::state() const { return impl_->state; }
size_t SlabBuilder::layersDone() const { return impl_->done; }
size_t SlabBuilder::layerCount() const { return impl_->layers.size(); }
const std::string &SlabBuilder::restartReason() const { return impl_->restartReason; }

std::string_view SlabBuilder::nextLayer() const {
  return impl_->done < impl_->layers.size() ? std::string_view(impl_->layers[impl_->done].name) : std::string_view();
}

bool SlabBuilder::step() {
  if (impl_->done == impl_->layers.size())
    return false;
  impl_->state = BuildState::Layer;
  impl_->doLayer(impl_->layers[impl_->done]);
  ++impl_->done;
  return true;
}

BuildReport SlabBuilder::finish() {
  if (impl_->state == BuildState::Finalised)
    throw Error(ErrorCode::StateTransition, impl_->paths.slab.string() + ": the build is FINALISED already");
  while (step()) {
  }
  return impl_->finish();
}

} // namespace segue::inline runtime
