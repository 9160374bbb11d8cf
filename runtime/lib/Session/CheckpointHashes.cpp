//===- CheckpointHashes.cpp - whether a checkpoint is as it was written ---===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CheckpointHashes.h"
#include "../Hash.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstdio>

namespace segue::inline runtime {

static constexpr std::string_view hashPrefix = "segue.hash.", tensorPrefix = "segue.hash.tensor.",
                                  metadataPrefix = "segue.hash.metadata.";

static std::string join(std::string_view prefix, std::string_view name) {
  return std::string(prefix) + std::string(name);
}

std::string hashText(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

/// The hash of what a tensor is called and how it is to be read is the seed of
/// the hash of its bytes. The name stands last, so that no two texts are equal.
static uint64_t seedOf(std::string_view name, std::string_view element, std::span<const int64_t> shape) {
  std::string text = join(name.starts_with(statePrefix) ? "state " : "parameter ", element);
  for (int64_t extent : shape)
    text += " " + std::to_string(extent);
  text += ": " + std::string(name);
  return hashOf(text.data(), text.size());
}

static std::string metadataHash(std::string_view key, std::string_view value) {
  return hashText(hashOf(value.data(), value.size(), hashOf(key.data(), key.size())));
}

void addHashes(Metadata &metadata, const DeferredTensors &tensors) {
  Metadata hashes;
  for (const auto &[key, value] : metadata)
    hashes[join(metadataPrefix, key)] = metadataHash(key, value);
  for (const auto &[name, each] : tensors) {
    Tensor tensor = each.read();
    if (!tensor.device()->hasBytes())
      continue;
    HashOfPieces hash(seedOf(name, runtime::name(tensor.element()), tensor.shape()));
    forEachPiece(tensor, [&](std::span<const std::byte> bytes) { hash.add(bytes.data(), bytes.size()); });
    hashes[join(tensorPrefix, name)] = hashText(hash.value());
  }
  metadata.merge(hashes);
}

bool hasHashes(const SafetensorsFile &file) {
  auto first = file.metadata().lower_bound(hashPrefix);
  return first != file.metadata().end() && first->first.starts_with(hashPrefix);
}

/// The hash under `key` is the `found` one of `what`.
static void check(const SafetensorsFile &file, const std::string &what, const std::string &key,
                  const std::string &found) {
  auto stored = file.metadata().find(key);
  if (stored != file.metadata().end() && stored->second == found)
    return;
  throw Error(ErrorCode::FileCorrupt,
              file.path().string() + ": " + what + " " +
                  (stored == file.metadata().end() ? "has no hash" : "does not match its hash") +
                  ": it was damaged or changed since it was written; use another checkpoint");
}

void checkMetadataHashes(const SafetensorsFile &file) {
  for (const auto &[key, value] : file.metadata()) {
    if (!key.starts_with(hashPrefix)) {
      check(file, "metadata \"" + key + "\"", join(metadataPrefix, key), metadataHash(key, value));
      continue;
    }
    bool isOfTensor = key.starts_with(tensorPrefix);
    std::string_view name = std::string_view(key).substr(
        isOfTensor ? tensorPrefix.size() : std::min(metadataPrefix.size(), key.size()));
    bool isThere = isOfTensor ? file.find(name) != nullptr
                              : key.starts_with(metadataPrefix) && file.metadata().contains(name);
    if (!isThere)
      throw Error(ErrorCode::FileCorrupt, file.path().string() + ": metadata \"" + key + "\" is the hash of " +
                                              (isOfTensor ? "a tensor" : "a value") +
                                              " that is not in the file; use another checkpoint");
  }
}

void checkTensorHash(const SafetensorsFile &file, const SafetensorsEntry &entry) {
  std::string element = entry.element ? std::string(name(*entry.element)) : entry.dtype;
  std::span<const std::byte> bytes = file.bytes(entry);
  check(file, "tensor \"" + entry.name + "\"", join(tensorPrefix, entry.name),
        hashText(hashOf(bytes.data(), bytes.size(), seedOf(entry.name, element, entry.shape))));
}

} // namespace segue::inline runtime
