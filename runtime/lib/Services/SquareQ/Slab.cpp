//===- Slab.cpp - quantised frozen weights in a file ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/Slab.h"
#include "Digest.h"
#include "StoredFile.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "segue/runtime/Engine/LowBitForms.h"
#include "segue/runtime/Transfer/CopyPlan.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace segue::inline runtime {

std::filesystem::path manifestPathOf(const std::filesystem::path &slab) {
  std::filesystem::path manifest = slab;
  manifest.replace_extension(".manifest.json");
  return manifest;
}

namespace {

/// A layer with its tensors in the file.
struct OpenLayer {
  SlabForm form;
  SlabSize size;
  const SafetensorsEntry *qweight = nullptr, *scale = nullptr, *zeroPoint = nullptr, *bias = nullptr;
  const SafetensorsEntry *lowRankA = nullptr, *lowRankB = nullptr;
  /// True if not all zero points are 0.
  bool zeroPoints = false;
  /// The CRC of the weight; nothing where it is not checked.
  std::optional<std::string> qweightCrc;
  /// True once the CRC was right. Two threads may both find that out.
  mutable std::atomic<bool> isVerified{false};
};

} // namespace

struct Slab::Opened {
  Opened(const std::filesystem::path &path, SlabManifest manifest, SlabExpectation expected)
      : file(path), manifest(std::move(manifest)), expected(std::move(expected)), names(this->manifest),
        layers(this->manifest.layers.size()) {}

  StoredFile file;
  SlabManifest manifest;
  SlabExpectation expected;
  SlabNames names;
  /// The layers, in the order of manifest.layers.
  std::vector<OpenLayer> layers;
  std::vector<std::string> unused, notes;

  SlabMatch find(std::string_view name) const;
  const OpenLayer &weight(std::string_view name) const { return layers[find(name).layer]; }
  void readWeight(const OpenLayer &layer, std::span<std::byte> bytes) const;
};

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

static Error invalid(const std::filesystem::path &path, int check, std::span<const SlabProblem> problems) {
  std::string text = path.string() + ": check " + std::to_string(check) + " of the slab failed";
  for (const SlabProblem &problem : problems)
    text += "\n  " + problem.sentence;
  return Error(ErrorCode::SlabInvalid, text + "\nbuild the slab again from the program's checkpoint, or name another");
}

static std::string readManifestFile(const std::filesystem::path &path, std::vector<SlabProblem> &problems) {
  // The limit is that of the header of a slab: a hundred megabytes are more than any model needs.
  constexpr uintmax_t greatest = 100'000'000;
  std::error_code failed;
  uintmax_t bytes = std::filesystem::file_size(path, failed);
  std::ifstream file(path, std::ios::binary);
  if (failed || !file) {
    problems.push_back({"manifest", path.string() + ": cannot be read" + (failed ? ": " + failed.message() : "")});
    return {};
  }
  if (bytes > greatest) {
    problems.push_back({"manifest", path.string() + ": " + std::to_string(bytes) + " bytes are too many"});
    return {};
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

static TensorTable tableOf(const SafetensorsFile &file) {
  TensorTable table;
  for (const SafetensorsEntry &entry : file.entries())
    table.emplace(entry.name, StoredTensor{entry.dtype, entry.shape});
  return table;
}

/// Returns the values of a stored F32 or BF16 tensor.
static std::vector<float> valuesOf(const StoredFile &file, std::string_view key) {
  const SafetensorsEntry &entry = *file.header().find(key);
  std::vector<std::byte> bytes(entry.bytes);
  file.read(entry, 0, bytes);
  size_t width = entry.dtype == "BF16" ? 2 : 4;
  std::vector<float> values(bytes.size() / width);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    if (width == 2)
      std::memcpy(&half, &bytes[2 * i], 2);
    else
      std::memcpy(&values[i], &bytes[4 * i], 4);
    if (width == 2)
      values[i] = bf16ToFloat(half);
  }
  return values;
}

/// Reads a tensor in pieces and compares its hashes. Empty if they are right.
static std::string hashProblem(const StoredFile &file, const SlabLayer &layer, const std::string &key, bool full) {
  auto crc = layer.crc32.find(key), sha = layer.sha256.find(key);
  if (crc == layer.crc32.end() && sha == layer.sha256.end())
    return {};
  const SafetensorsEntry &entry = *file.header().find(key);
  std::vector<std::byte> piece(std::min<uint64_t>(entry.bytes, uint64_t(1) << 20));
  Crc32 crcFound;
  Sha256 shaFound;
  for (uint64_t from = 0; from < entry.bytes; from += piece.size()) {
    std::span<std::byte> part = std::span(piece).first(std::min<uint64_t>(piece.size(), entry.bytes - from));
    file.read(entry, from, part);
    crcFound.add(part);
    if (full)
      shaFound.add(part);
  }
  bool same = (crc == layer.crc32.end() || crc->second == crcFound.hex()) &&
              (!full || sha == layer.sha256.end() || sha->second == shaFound.hex());
  return same ? std::string()
              : "tensor \"" + key +
                    "\" has other bytes than the manifest's hash says: manifest and slab are of "
                    "different builds, or the file was changed";
}

Slab::Slab(std::filesystem::path slab, std::filesystem::path manifest)
    : path_(std::move(slab)), manifestPath_(manifest.empty() ? manifestPathOf(path_) : std::move(manifest)) {}

Slab::~Slab() = default;

void Slab::open(SlabExpectation expected, SlabVerify verify) {
  if (opened_)
    throw Error(ErrorCode::StateTransition, path_.string() + ": the slab is OPEN already; close it first");
  // Check 1 looks at both files before it complains.
  std::vector<SlabProblem> problems;
  std::string text = readManifestFile(manifestPath_, problems);
  SlabManifest manifest;
  if (problems.empty())
    manifest = parseManifest(text, problems);
  std::unique_ptr<Opened> opened;
  try {
    opened = std::make_unique<Opened>(path_, std::move(manifest), std::move(expected));
  } catch (const Error &error) {
    problems.push_back({"slab", error.what()});
    throw invalid(path_, 1, problems);
  }
  const StoredFile &file = opened->file;
  SlabFindings findings = checkSlab(
      opened->manifest, std::move(problems), tableOf(file.header()),
      [&](const std::string &key) { return valuesOf(file, key); }, opened->expected);
  if (findings.failedCheck)
    throw invalid(path_, findings.failedCheck, findings.problems);
  opened->unused = std::move(findings.unused);

  std::vector<SlabProblem> mismatches;
  for (size_t i = 0; i < opened->layers.size(); ++i) {
    const SlabLayer &stored = opened->manifest.layers[i];
    OpenLayer &layer = opened->layers[i];
    auto [out, in] = *flattenWeight(stored.origShape);
    layer.form = *stored.form();
    layer.size = *slabSize(layer.form, out, in, stored.biasKey.has_value());
    layer.qweight = file.header().find(stored.qweightKey);
    layer.scale = file.header().find(stored.scaleKey);
    if (stored.biasKey)
      layer.bias = file.header().find(*stored.biasKey);
    if (layer.form.rank) {
      layer.lowRankA = file.header().find(*stored.lowRankAKey);
      layer.lowRankB = file.header().find(*stored.lowRankBKey);
    }
    if (layer.form.hasZeroPoint()) {
      layer.zeroPoint = file.header().find(*stored.zeroPointKey);
      std::vector<float> zeros = valuesOf(file, *stored.zeroPointKey);
      layer.zeroPoints = std::any_of(zeros.begin(), zeros.end(), [](float zero) { return zero != 0; });
    }
    if (verify == SlabVerify::None)
      continue;
    // A build of other weights has other scales: that is found here, before
    // the weights, which are only read when somebody wants them.
    for (const std::string &key : stored.keys())
      if (verify == SlabVerify::Full || key != stored.qweightKey)
        if (std::string problem = hashProblem(file, stored, key, verify == SlabVerify::Full); !problem.empty())
          mismatches.push_back({key, problem});
    auto crc = stored.crc32.find(stored.qweightKey);
    if (verify == SlabVerify::Open && crc != stored.crc32.end())
      layer.qweightCrc = crc->second;
  }
  if (!mismatches.empty()) {
    std::string sentence = path_.string() + ": " + mismatches.front().sentence;
    if (mismatches.size() > 1)
      sentence += "; it is the first of " + std::to_string(mismatches.size());
    throw Error(ErrorCode::SlabInvalid, sentence + "; build the slab again");
  }
  if (verify != SlabVerify::None && !opened->manifest.hasHashes())
    opened->notes.push_back(
        manifestPath_.string() +
        ": no hashes for some tensors (SquareQ v2 wrote none): a changed byte would not be noticed");
  else if (!opened->manifest.hasOwnHash)
    opened->notes.push_back(manifestPath_.string() +
                            ": no hash of its own (older versions of Segue wrote none): a changed name or shape would "
                            "only be noticed where the slab's header contradicts it");
  if (!opened->unused.empty()) {
    std::string note = path_.string() + ": the program does not want";
    for (const std::string &name : opened->unused)
      note += (&name == &opened->unused.front() ? " " : ", ") + name;
    opened->notes.push_back(note);
  }
  file.checkUnchanged();
  opened_ = std::move(opened);
}

void Slab::close() { opened_.reset(); }

//===----------------------------------------------------------------------===//
// Looking
//===----------------------------------------------------------------------===//

const Slab::Opened &Slab::opened() const {
  if (!opened_)
    throw Error(ErrorCode::StateTransition, path_.string() + ": the slab is CLOSED; open it before reading");
  return *opened_;
}

SlabMatch Slab::Opened::find(std::string_view name) const {
  if (std::optional<SlabMatch> match = names.find(name, expected.aliases))
    return *match;
  std::vector<std::string_view> known;
  for (const SlabLayer &layer : manifest.layers)
    known.push_back(layer.canonicalName);
  throw Error(ErrorCode::NameUnknown, file.header().path().string() + ": the slab holds no \"" + std::string(name) +
                                          "\"" + nearestHint(name, known));
}

const SlabManifest &Slab::manifest() const { return opened().manifest; }
const std::vector<std::string> &Slab::unused() const { return opened().unused; }
const std::vector<std::string> &Slab::notes() const { return opened().notes; }

bool Slab::holds(std::string_view name) const {
  return opened().names.find(name, opened().expected.aliases).has_value();
}

const SlabLayer &Slab::layer(std::string_view name) const {
  return opened().manifest.layers[opened().find(name).layer];
}

SlabSize Slab::size(std::string_view name) const { return opened().weight(name).size; }

TensorDesc Slab::desc(std::string_view name, ElementType element) const {
  SlabMatch match = opened().find(name);
  const OpenLayer &layer = opened().layers[match.layer];
  TensorDesc desc(opened().manifest.layers[match.layer].origShape, element);
  desc.layout.space = Space::Host;
  desc.layout.storage = layer.form.storage();
  desc.layout.zeroPoints = layer.zeroPoints;
  desc.layout.strides = denseStrides(desc.shape);
  desc.layout.strides[0] = layer.size.padded;
  return desc;
}

bool Slab::isRestored(std::string_view name) const {
  const SlabForm &form = opened().weight(name).form;
  return form.rotated || form.rank;
}

/// Rounds up to the bytes of which the offset of a layer's part is a multiple.
static uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

Slab::LowRankPlaces Slab::lowRank(std::string_view name) const {
  const OpenLayer &layer = opened().weight(name);
  if (layer.form.rank == 0)
    return {};
  uint64_t a = aligned(desc(name).spanBytes());
  return {layer.form.rank, a, a + aligned(layer.lowRankA->bytes)};
}

uint64_t Slab::layerBytes(std::string_view name) const {
  LowRankPlaces places = lowRank(name);
  return places.rank ? places.b + opened().weight(name).lowRankB->bytes : desc(name).spanBytes();
}

std::span<const std::byte> Slab::mapped(std::string_view key) const {
  const SafetensorsFile &file = opened().file.header();
  const SafetensorsEntry *entry = file.find(key);
  if (!entry)
    throw Error(ErrorCode::NameUnknown, path_.string() + ": the slab has no tensor \"" + std::string(key) + "\"");
  return file.bytes(*entry);
}

void Slab::readAhead(std::string_view name) const { opened().file.readAhead(*opened().weight(name).qweight); }

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

/// The leading bytes of the weight's codes. What a span leaves out, the padding
/// of the last row, is read apart where the CRC needs it.
void Slab::Opened::readWeight(const OpenLayer &layer, std::span<std::byte> bytes) const {
  file.read(*layer.qweight, 0, bytes);
  if (!layer.qweightCrc || layer.isVerified.load(std::memory_order_acquire))
    return;
  Crc32 crc;
  crc.add(bytes);
  std::byte rest[1024]; // pad_k is at most that
  for (uint64_t from = bytes.size(); from < layer.qweight->bytes; from += sizeof rest) {
    std::span<std::byte> part = std::span(rest).first(std::min<uint64_t>(sizeof rest, layer.qweight->bytes - from));
    file.read(*layer.qweight, from, part);
    crc.add(part);
  }
  if (crc.hex() != *layer.qweightCrc) {
    file.checkUnchanged(); // the better reason, if there is one
    throw Error(ErrorCode::ChecksumMismatch, file.header().path().string() + ": tensor \"" + layer.qweight->name +
                                                 "\" has CRC-32 " + crc.hex() + ", the manifest says " +
                                                 *layer.qweightCrc + ": the file was damaged; build the slab again");
  }
  layer.isVerified.store(true, std::memory_order_release);
}

static void checkSpan(const std::filesystem::path &path, std::string_view name, uint64_t given, uint64_t needed) {
  if (given < needed)
    throw Error(ErrorCode::InvalidArgument, path.string() + ": \"" + std::string(name) + "\" needs " +
                                                std::to_string(needed) + " bytes, " + std::to_string(given) +
                                                " were given");
}

void Slab::copyLayer(std::string_view name, std::span<std::byte> staging) const {
  const OpenLayer &layer = opened().weight(name);
  LayoutParts parts = desc(name).parts();
  checkSpan(path_, name, staging.size(), layerBytes(name));
  const StoredFile &file = opened().file;
  opened().readWeight(layer, staging.first(parts.elements));
  std::fill(staging.begin() + ptrdiff_t(parts.elements), staging.begin() + ptrdiff_t(parts.scales), std::byte(0));
  file.read(*layer.scale, 0, staging.subspan(parts.scales, layer.size.scale));
  if (layer.zeroPoints)
    file.read(*layer.zeroPoint, 0, staging.subspan(parts.zeroPoints, layer.size.zeroPoint));
  if (LowRankPlaces places = lowRank(name); places.rank) {
    auto zero = [&](uint64_t from, uint64_t to) {
      std::fill(staging.begin() + ptrdiff_t(from), staging.begin() + ptrdiff_t(to), std::byte(0));
    };
    zero(parts.bytes, places.a);
    file.read(*layer.lowRankA, 0, staging.subspan(places.a, layer.lowRankA->bytes));
    zero(places.a + layer.lowRankA->bytes, places.b);
    file.read(*layer.lowRankB, 0, staging.subspan(places.b, layer.lowRankB->bytes));
  }
  file.checkUnchanged();
}

Tensor Slab::loadLayer(const DeviceRef &device, std::string_view name, ElementType element, Space space) const {
  if (isRestored(name))
    throw Error(ErrorCode::Unsupported, path_.string() + ": \"" + std::string(name) +
                                            "\" is rotated or has a low-rank product: its codes alone are not the "
                                            "weight; dequantise it");
  TensorDesc desc = this->desc(name, element);
  desc.layout.space = space;
  Tensor tensor = Tensor::empty(device, desc);
  waitForUses(tensor); // of who had the memory before
  copyLayer(name, {tensor.bytes(), desc.spanBytes()});
  return tensor;
}

void Slab::copyDequantized(std::string_view name, ElementType element, std::span<std::byte> dense) const {
  if (!isComputedInF32(element))
    throw Error(ErrorCode::InvalidArgument, path_.string() + ": \"" + std::string(name) +
                                                "\" can be dequantised to f32, bf16 or f16, not " +
                                                std::string(runtime::name(element)));
  TensorDesc stored = desc(name, element), wanted(stored.shape, element);
  checkSpan(path_, name, dense.size(), wanted.spanBytes());
  std::vector<std::byte> layer(layerBytes(name));
  copyLayer(name, layer);
  if (!isRestored(name)) {
    CopyPlan(stored, wanted).run(layer.data(), dense.data(), 1);
    return;
  }
  const SlabForm &form = opened().weight(name).form;
  const SlabSize &size = opened().weight(name).size;
  auto floats = [&](const TensorDesc &from, const std::byte *at) {
    TensorDesc f32(from.shape, ElementType::f32);
    std::vector<float> values(f32.elementCount());
    CopyPlan(from, f32).run(at, values.data(), 1);
    return values;
  };
  LowRankPlaces places = lowRank(name);
  std::vector<float> rows = floats(stored, layer.data()), a, b;
  if (places.rank) {
    a = floats(TensorDesc({size.out, places.rank}, ElementType::bf16), layer.data() + places.a);
    b = floats(TensorDesc({places.rank, size.in}, ElementType::bf16), layer.data() + places.b);
  }
  restoreRows(form.rotated, places.rank, a.data(), b.data(), 0, size.in, rows);
  CopyPlan(TensorDesc(stored.shape, ElementType::f32), wanted).run(rows.data(), dense.data(), 1);
}

void Slab::copyBias(std::string_view name, std::span<float> values) const {
  const OpenLayer &layer = opened().weight(name);
  if (!layer.bias)
    throw Error(ErrorCode::NameUnknown, path_.string() + ": \"" + std::string(name) + "\" has no bias in the slab");
  checkSpan(path_, name, values.size_bytes(), layer.bias->bytes);
  opened().file.read(*layer.bias, 0, std::as_writable_bytes(values.first(size_t(layer.size.out))));
  opened().file.checkUnchanged();
}

} // namespace segue::inline runtime
