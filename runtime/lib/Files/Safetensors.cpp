//===- Safetensors.cpp - tensors in files by name -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// https://huggingface.co/docs/safetensors: the rules of the format. A header is
// data from outside; no number of it is used before it was checked.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Files/Safetensors.h"
#include "../FileMapping.h"
#include "../Tensor/NullHandles.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The format's own bound on the header, bytes.
static constexpr uint64_t greatestHeader = 100'000'000;

struct DType {
  std::string_view name;
  uint64_t bytes;
  std::optional<ElementType> element;
};

static constexpr DType dtypes[] = {
    {"F32", 4, ElementType::f32}, {"BF16", 2, ElementType::bf16}, {"F16", 2, ElementType::f16},
    {"I64", 8, ElementType::i64}, {"I32", 4, ElementType::i32},   {"I8", 1, ElementType::i8},
    {"BOOL", 1, ElementType::i1}, {"F64", 8, ElementType::f64},   {"U64", 8, std::nullopt},
    {"U32", 4, std::nullopt},     {"I16", 2, std::nullopt},       {"U16", 2, std::nullopt},
    {"U8", 1, std::nullopt},      {"F8_E4M3", 1, std::nullopt},   {"F8_E5M2", 1, std::nullopt},
};

namespace {

/// Turns the JSON header into entries, checking each against the file.
class HeaderReader {
public:
  HeaderReader(const std::filesystem::path &path, uint64_t dataBegin, uint64_t dataBytes)
      : path_(path), dataBegin_(dataBegin), dataBytes_(dataBytes) {}

  void read(std::string_view header) {
    Json json;
    if (std::optional<JsonProblem> problem = readJson(header, json))
      throw corrupt("the header is not a JSON object: " + problem->sentence);
    if (!json.is_object())
      throw corrupt("the header is not a JSON object");
    for (const auto &[name, item] : json.items()) {
      if (name == "__metadata__")
        readMetadata(item);
      else
        entries.push_back(readEntry(name, item));
    }
    std::ranges::sort(entries, {}, &SafetensorsEntry::name);
    checkCover();
  }

  Metadata metadata;
  std::vector<SafetensorsEntry> entries;

  Error corrupt(const std::string &what) const {
    return Error(ErrorCode::FileCorrupt, path_.string() + ": " + what + "; get the file again");
  }

private:
  void readMetadata(const Json &item) {
    if (!item.is_object())
      throw corrupt("\"__metadata__\" is not an object");
    for (const auto &[key, value] : item.items()) {
      if (!value.is_string())
        throw corrupt("metadata \"" + key + "\" is not a string");
      metadata[key] = value.get<std::string>();
    }
  }

  SafetensorsEntry readEntry(const std::string &name, const Json &item) const {
    SafetensorsEntry entry;
    entry.name = name;
    auto wrong = [&](const std::string &what) { return corrupt("tensor \"" + name + "\" " + what); };
    if (!item.is_object() || !item.contains("dtype") || !item["dtype"].is_string() || !item.contains("shape") ||
        !item["shape"].is_array() || !item.contains("data_offsets") || !item["data_offsets"].is_array() ||
        item["data_offsets"].size() != 2)
      throw wrong("lacks dtype, shape or data_offsets");
    entry.dtype = item["dtype"].get<std::string>();
    const DType *dtype = std::find_if(std::begin(dtypes), std::end(dtypes),
                                      [&](const DType &known) { return known.name == entry.dtype; });
    if (dtype == std::end(dtypes))
      throw wrong("has the unknown dtype \"" + entry.dtype + "\"");
    entry.element = dtype->element;
    for (const auto &extent : item["shape"]) {
      if (!extent.is_number_unsigned() || extent.get<uint64_t>() > uint64_t(INT64_MAX))
        throw wrong("has an extent that is not a number from 0 on");
      entry.shape.push_back(extent.get<int64_t>());
    }
    for (const auto &offset : item["data_offsets"])
      if (!offset.is_number_unsigned())
        throw wrong("has an offset that is not a number from 0 on");
    uint64_t begin = item["data_offsets"][0].get<uint64_t>(), end = item["data_offsets"][1].get<uint64_t>();
    if (begin > end || !rangeFits(begin, end - begin, dataBytes_))
      throw wrong("lies at bytes " + std::to_string(begin) + " to " + std::to_string(end) + ", but the file has " +
                  std::to_string(dataBytes_) + " bytes of data; it is truncated or was changed");
    std::optional<uint64_t> elements = checkedElementCount(entry.shape);
    std::optional<uint64_t> bytes = elements ? checkedMultiply(*elements, dtype->bytes) : std::nullopt;
    if (bytes != end - begin)
      throw wrong("has " + std::to_string(end - begin) + " bytes, which is not what its shape and dtype need");
    entry.offset = dataBegin_ + begin;
    entry.bytes = end - begin;
    return entry;
  }

  /// The entries cover the data once: no gap, no overlap, no rest.
  void checkCover() const {
    std::vector<const SafetensorsEntry *> byOffset;
    for (const SafetensorsEntry &entry : entries)
      byOffset.push_back(&entry);
    std::sort(byOffset.begin(), byOffset.end(), [](const auto *a, const auto *b) {
      return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
    });
    uint64_t next = dataBegin_;
    for (const SafetensorsEntry *entry : byOffset) {
      if (entry->offset != next)
        throw corrupt("tensor \"" + entry->name + "\" does not begin where the one before it ends");
      next += entry->bytes;
    }
    if (next != dataBegin_ + dataBytes_)
      throw corrupt("the last tensor ends before the file does");
  }

  const std::filesystem::path &path_;
  uint64_t dataBegin_, dataBytes_;
};

} // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path &path) {
  SafetensorsFile file;
  file.path_ = path;
  file.mapping_ = {std::make_shared<const FileMapping>(path)};
  const std::byte *data = file.mapping_->bytes().data();
  uint64_t bytes = file.mapping_->bytes().size(), headerBytes = 0;
  if (bytes < sizeof headerBytes)
    throw Error(ErrorCode::FileCorrupt, path.string() + ": " + std::to_string(bytes) +
                                            " bytes are too few for a safetensors file; get the file again");
  std::memcpy(&headerBytes, data, sizeof headerBytes);
  if (headerBytes > greatestHeader || !rangeFits(sizeof headerBytes, headerBytes, bytes))
    throw Error(ErrorCode::FileCorrupt, path.string() + ": the header should have " + std::to_string(headerBytes) +
                                            " bytes, the file has " + std::to_string(bytes) +
                                            "; it is truncated, or not a safetensors file");
  uint64_t dataBegin = sizeof headerBytes + headerBytes;
  HeaderReader reader(path, dataBegin, bytes - dataBegin);
  reader.read({reinterpret_cast<const char *>(data) + sizeof headerBytes, headerBytes});
  file.checkUnchanged();
  file.metadata_ = std::move(reader.metadata);
  file.entries_ = std::move(reader.entries);
  file.headerBytes_ = dataBegin;
  return file;
}

void SafetensorsFile::checkUnchanged() const { mapping_->checkUnchanged(); }
void SafetensorsFile::settle() const { mapping_->settle(); }

std::span<const std::byte> SafetensorsFile::bytes(const SafetensorsEntry &entry) const & {
  return mapping_->bytes().subspan(entry.offset, entry.bytes);
}

std::span<const std::byte> SafetensorsFile::header() const & { return mapping_->bytes().first(headerBytes_); }

const SafetensorsEntry *SafetensorsFile::find(std::string_view name) const & {
  auto it = std::lower_bound(entries_.begin(), entries_.end(), name,
                             [](const SafetensorsEntry &entry, std::string_view key) { return entry.name < key; });
  return it != entries_.end() && it->name == name ? &*it : nullptr;
}

Tensor SafetensorsFile::tensor(const DeviceRef &device, std::string_view name) const {
  const SafetensorsEntry *entry = find(name);
  if (!entry) {
    std::vector<std::string_view> known;
    for (const SafetensorsEntry &each : entries_)
      known.push_back(each.name);
    throw Error(ErrorCode::NameUnknown,
                path_.string() + ": there is no tensor \"" + std::string(name) + "\"" + nearestHint(name, known));
  }
  if (!entry->element)
    throw Error(ErrorCode::Unsupported, path_.string() + ": tensor \"" + entry->name + "\" is " + entry->dtype +
                                            ", which Segue has no element type for; convert it to F32 or BF16");
  const std::byte *data = mapping_->bytes().data() + entry->offset;
  TensorDesc desc(entry->shape, *entry->element);
  if (reinterpret_cast<uintptr_t>(data) % byteSize(*entry->element) != 0) {
    Tensor copy = Tensor::onHost(device, entry->shape, *entry->element);
    std::memcpy(copy.bytes(), data, entry->bytes);
    return copy;
  }
  auto drop = [mapping = mapping_, bytes = std::span(data, entry->bytes)] { mapping->drop(bytes); };
  return Tensor::wrap(device, std::move(desc), const_cast<std::byte *>(data), std::move(drop), /*writable=*/false);
}

Tensor SafetensorsFile::copyOf(const DeviceRef &device, std::string_view name) const {
  Tensor view = tensor(device, name), copy = Tensor::onHost(device, view.shape(), view.element());
  std::memcpy(copy.bytes(), view.bytes(), view.desc().spanBytes());
  checkUnchanged();
  return copy;
}

TensorMap loadSafetensors(const DeviceRef &device, const std::filesystem::path &path) {
  SafetensorsFile file = SafetensorsFile::open(path);
  TensorMap tensors;
  for (const SafetensorsEntry &entry : file.entries())
    tensors[entry.name] = file.tensor(device, entry.name);
  return tensors;
}

static std::string_view dtypeName(ElementType element) {
  for (const DType &dtype : dtypes)
    if (dtype.element == element)
      return dtype.name;
  return "?";
}

DeferredTensor deferred(const Tensor &tensor) {
  return {tensor.shape(), tensor.element(), [tensor] { return tensor; }};
}

void saveSafetensors(const std::filesystem::path &path, const TensorMap &tensors, const Metadata &metadata) {
  DeferredTensors all;
  for (const auto &[name, tensor] : tensors)
    all.emplace(name, deferred(tensor));
  saveDeferred(path, all, metadata);
}

void saveDeferred(const std::filesystem::path &path, const DeferredTensors &tensors, const Metadata &metadata) {
  // Wide elements first, then by name: every tensor is aligned to its element.
  std::vector<const DeferredTensors::value_type *> order;
  for (const auto &item : tensors) {
    requireGiven(item.second.read, path.string() + ": tensor \"" + item.first + "\"");
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto *a, const auto *b) {
    return byteSize(a->second.element) > byteSize(b->second.element);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty())
    header["__metadata__"] = std::map<std::string, std::string>(metadata.begin(), metadata.end());
  uint64_t offset = 0;
  for (const auto *item : order) {
    uint64_t bytes = TensorDesc(item->second.shape, item->second.element).spanBytes();
    header[item->first] = {{"dtype", dtypeName(item->second.element)},
                           {"shape", item->second.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception &error) { // a name that is not UTF-8
    throw Error(ErrorCode::InvalidArgument, path.string() + ": a name cannot be written: " + error.what());
  }
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' '); // data begins at a multiple of 64
  uint64_t headerBytes = text.size();
  OutputFile file(path);
  file.write(std::as_bytes(std::span(&headerBytes, 1)));
  file.write(text);
  for (const auto *item : order) {
    Tensor tensor = item->second.read();
    if (!tensor.device()->hasBytes())
      throw Error(ErrorCode::Unsupported, path.string() + ": tensor \"" + item->first + "\" is on " +
                                              tensor.device()->name() +
                                              ", which holds no bytes; train on a device that does to save");
    forEachPiece(tensor, [&](std::span<const std::byte> bytes) { file.write(bytes); });
  }
  file.commit();
}

} // namespace segue::inline runtime
