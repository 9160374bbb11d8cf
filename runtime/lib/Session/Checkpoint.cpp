//===- Checkpoint.cpp - what a training run is resumed from ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/Checkpoint.h"
#include "CheckpointFolder.h"
#include "CheckpointHashes.h"
#include "CheckpointValues.h"
#include "SealedCheckpoint.h"
#include "segue/runtime/Error.h"
#include <charconv>

namespace segue::inline runtime {

static constexpr std::string_view stepKey = "segue.step", seedKey = "segue.seed";
/// Texts that a checkpoint may have.
static constexpr std::pair<std::string_view, std::string Checkpoint::*> checkpointTexts[] = {
    {"segue.precision", &Checkpoint::precision},
    {"segue.loss_scale", &Checkpoint::lossScale},
    {"segue.notes", &Checkpoint::notes}};
/// Raised when a reader of the version before would misunderstand the file.
static constexpr std::string_view version = "2", sealedVersion = "3";
/// The version of checkpoints whose tensors have no hashes.
static constexpr std::string_view versionWithoutHashes = "1";

DeferredTensors tensorsOf(const Checkpoint &checkpoint) {
  DeferredTensors tensors = checkpoint.deferred;
  for (const auto &[key, tensor] : checkpoint.parameters)
    tensors.emplace(key, deferred(tensor));
  for (const auto &[key, tensor] : tensors)
    if (key.starts_with(statePrefix))
      throw Error(ErrorCode::InvalidArgument, "parameter \"" + key + "\": names that begin with \"" +
                                                  std::string(statePrefix) + "\" are kept for optimizer state");
  for (const auto &[key, tensor] : checkpoint.state)
    tensors.emplace(std::string(statePrefix) + key, deferred(tensor));
  for (const auto &[key, tensor] : checkpoint.deferredState)
    tensors.emplace(std::string(statePrefix) + key, tensor);
  return tensors;
}

Metadata valuesOf(const Checkpoint &checkpoint, std::string_view version) {
  Metadata values = {{std::string(versionKey), std::string(version)},
                     {std::string(stepKey), std::to_string(checkpoint.step)},
                     {std::string(seedKey), std::to_string(checkpoint.seed)}};
  for (auto [key, member] : checkpointTexts)
    if (const std::string &text = checkpoint.*member; !text.empty())
      values[std::string(key)] = text;
  return values;
}

static void write(const std::filesystem::path &path, const Checkpoint &checkpoint, const Metadata *sealed) {
  DeferredTensors tensors = tensorsOf(checkpoint);
  Metadata metadata = valuesOf(checkpoint, sealed ? sealedVersion : version);
  if (sealed)
    metadata.insert(sealed->begin(), sealed->end());
  addHashes(metadata, tensors);
  saveDeferred(path, tensors, metadata);
}

void saveCheckpoint(const std::filesystem::path &path, const Checkpoint &checkpoint) {
  isCheckpointFolder(path) ? saveToFolder(path, checkpoint) : write(path, checkpoint, nullptr);
}

void saveSealedCheckpoint(const std::filesystem::path &path, const Checkpoint &inMemory, const Metadata &sealed) {
  write(path, inMemory, &sealed);
}

static int64_t readNumber(const Metadata &values, const std::filesystem::path &path, std::string_view key) {
  auto it = values.find(key);
  std::string_view text = it == values.end() ? std::string_view() : it->second;
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size())
    throw Error(ErrorCode::FileCorrupt, path.string() + ": metadata \"" + std::string(key) + "\" is \"" +
                                            std::string(text) + "\", not a number; use another checkpoint");
  return number;
}

void readValues(const Metadata &values, const std::filesystem::path &path, Checkpoint &checkpoint) {
  checkpoint.step = readNumber(values, path, stepKey);
  checkpoint.seed = readNumber(values, path, seedKey);
  for (auto [key, member] : checkpointTexts)
    if (auto found = values.find(key); found != values.end())
      checkpoint.*member = found->second;
  if (checkpoint.step < 0)
    throw Error(ErrorCode::FileCorrupt,
                path.string() + ": step " + std::to_string(checkpoint.step) + " is negative; use another checkpoint");
}

void readTensors(const SafetensorsFile &file, const DeviceRef &device, const IsNeeded &isNeeded, bool haveHashes,
                 Checkpoint &checkpoint) {
  auto stateOf = [](const SafetensorsEntry &entry) { return entry.name.starts_with(statePrefix); };
  auto keyOf = [&](const SafetensorsEntry &entry) {
    return stateOf(entry) ? entry.name.substr(statePrefix.size()) : entry.name;
  };
  for (const SafetensorsEntry &entry : file.entries())
    if (haveHashes && (!isNeeded || isNeeded(keyOf(entry), stateOf(entry))))
      checkTensorHash(file, entry);
  for (const SafetensorsEntry &entry : file.entries())
    (stateOf(entry) ? checkpoint.state : checkpoint.parameters)[keyOf(entry)] = file.tensor(device, entry.name);
}

/// Throws unless the file is a checkpoint of a known version whose values are as they were written. Returns true if it
/// has hashes.
static bool checkValues(const SafetensorsFile &file, const std::function<void(const std::string &)> &warn) {
  const std::string path = file.path().string();
  auto found = file.metadata().find(versionKey);
  bool isVersioned = found != file.metadata().end();
  if (file.metadata().contains(partKey))
    throw Error(ErrorCode::InvalidArgument, path + ": this is a part of a checkpoint; resume from the folder, with its "
                                                   "slash, where the manifest names all parts");
  if (!isVersioned && !hasHashes(file))
    throw Error(ErrorCode::InvalidArgument,
                path + ": these are tensors, but no checkpoint (no step, no optimizer state); load it as weights");
  if (isVersioned && found->second != version && found->second != versionWithoutHashes &&
      found->second != sealedVersion)
    throw Error(ErrorCode::VersionUnsupported, path + ": metadata \"" + std::string(versionKey) + "\": version " +
                                                   found->second + ", this runtime reads up to version " +
                                                   std::string(sealedVersion));
  if (isVersioned && found->second == versionWithoutHashes && !hasHashes(file)) {
    if (warn)
      warn(path + ": a checkpoint of version " + std::string(versionWithoutHashes) +
           " has no hashes, so that damage to it cannot be seen; save it again");
    return false;
  }
  checkMetadataHashes(file);
  return true;
}

static Checkpoint loadFromFile(const DeviceRef &device, const std::filesystem::path &path,
                               const std::function<void(const std::string &)> &warn, const IsNeeded &isNeeded) {
  auto source = std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
  const SafetensorsFile &file = *source;
  file.settle();
  bool haveHashes = checkValues(file, warn);
  Checkpoint checkpoint;
  readValues(file.metadata(), path, checkpoint);
  readTensors(file, device, isNeeded, haveHashes, checkpoint);
  std::function<void()> checkSealed;
  if (auto found = file.metadata().find(versionKey); found != file.metadata().end() && found->second == sealedVersion)
    checkSealed = readSealed(file, device, checkpoint);
  checkpoint.checkSource = [source, checkSealed] {
    source->checkUnchanged();
    if (checkSealed)
      checkSealed();
  };
  checkpoint.checkSource();
  return checkpoint;
}

Checkpoint loadCheckpoint(const DeviceRef &device, const std::filesystem::path &path,
                          const std::function<void(const std::string &)> &warn, const IsNeeded &isNeeded) {
  if (isCheckpointFolder(path))
    return loadFromFolder(device, path, isNeeded);
  constexpr int mostTries = 5; // each time another run would have to take its turn in between
  for (int i = 0; i < mostTries; ++i)
    try {
      return loadFromFile(device, path, warn, isNeeded);
    } catch (const SealedAnew &) {
    }
  throw Error(ErrorCode::SourceChanged,
              path.string() + ": was sealed anew while it was read; wait until the runs that seal there have ended");
}

} // namespace segue::inline runtime
