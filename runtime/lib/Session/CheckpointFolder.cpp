//===- CheckpointFolder.cpp - checkpoints with a file of each rank --------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "CheckpointFolder.h"
#include "../FileMapping.h"
#include "../Hash.h"
#include "CheckpointHashes.h"
#include "CheckpointValues.h"
#include "SealedCheckpoint.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace segue::inline runtime {

static constexpr std::string_view manifestName = "model.safetensors.index.json", folderVersion = "4";
static constexpr std::string_view saveKey = "segue.save", partsKey = "segue.parts", hashKey = "segue.hash";
/// A manifest may be as large as the header of a safetensors file.
static constexpr uint64_t greatestManifest = 100'000'000;
/// Names of parts: a * is a hexadecimal digit of the save, a # one of a number.
static constexpr std::string_view partPattern = "segue-****************-#####-of-#####.safetensors";
static constexpr std::string_view partialSuffix = ".partial";
static constexpr size_t saveAt = 6, saveDigits = 16, mostParts = 99999;

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

bool isCheckpointFolder(const std::filesystem::path &path) {
  std::error_code unknown;
  return !path.empty() && (path.filename().empty() || std::filesystem::is_directory(path, unknown));
}

std::filesystem::path checkpointFileOf(const std::filesystem::path &path) {
  return isCheckpointFolder(path) ? path / manifestName : path;
}

void checkCheckpointPath(const std::filesystem::path &path) {
  isCheckpointFolder(path) ? void(CheckpointSave(path)) : OutputFile::check(path);
}

static std::string partName(const std::string &save, size_t index, size_t count) {
  char numbers[32];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", index + 1, count);
  return "segue-" + save + numbers + ".safetensors";
}

static bool isDigit(char c, char kind) {
  return (c >= '0' && c <= '9') || (kind == '*' && c >= 'a' && c <= 'f');
}

static bool isSaveName(std::string_view name) {
  return name.size() == saveDigits && std::ranges::all_of(name, [](char c) { return isDigit(c, '*'); });
}

/// Returns the save whose part has such a name, whole or being written; empty for the name of another file.
static std::string_view saveOfPart(std::string_view name) {
  if (name.ends_with(partialSuffix))
    name.remove_suffix(partialSuffix.size());
  if (name.size() != partPattern.size())
    return {};
  for (size_t i = 0; i < name.size(); ++i)
    if (char kind = partPattern[i]; kind == '*' || kind == '#' ? !isDigit(name[i], kind) : name[i] != kind)
      return {};
  return name.substr(saveAt, saveDigits);
}

//===----------------------------------------------------------------------===//
// Manifests
//===----------------------------------------------------------------------===//

namespace {
/// A Manifest is what a file says, which comes from outside.
struct Manifest {
  std::filesystem::path path;
  Json json;

  Error corrupt(const std::string &what) const {
    return Error(ErrorCode::FileCorrupt, path.string() + ": " + what + "; use another checkpoint");
  }
  /// Returns the entry of "metadata", or null.
  const Json *value(std::string_view key) const {
    auto metadata = json.find("metadata");
    if (metadata == json.end() || !metadata->is_object())
      return nullptr;
    auto found = metadata->find(key);
    return found == metadata->end() ? nullptr : &*found;
  }
  /// Returns true unless it is an index of other tensors.
  bool isOfCheckpoint() const { return value(versionKey) != nullptr; }
  /// Returns the save whose parts are in force; empty where it says none.
  std::string save() const {
    const Json *save = value(saveKey);
    bool isNamed = save && save->is_string() && isSaveName(save->get_ref<const std::string &>());
    return isNamed ? save->get<std::string>() : std::string();
  }
};
} // namespace

/// Throws unless `path` is a file in its folder itself: a link may lead anywhere.
static struct stat statusOf(const std::filesystem::path &path, const std::string &missing) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0)
    throw Error(ErrorCode::IoFailed, path.string() + ": " + (errno == ENOENT ? missing : std::strerror(errno)));
  if (!S_ISREG(status.st_mode))
    throw Error(ErrorCode::FileCorrupt,
                path.string() + ": is a link, a folder or a device, and no file of a checkpoint");
  return status;
}

static Manifest readManifest(const std::filesystem::path &folder) {
  Manifest manifest{.path = folder / manifestName, .json = {}};
  statusOf(manifest.path, "is not there, so that the folder has no checkpoint, or one whose save did not end");
  FileMapping mapping(manifest.path);
  std::string text(reinterpret_cast<const char *>(mapping.bytes().data()),
                   size_t(std::min<uint64_t>(mapping.bytes().size(), greatestManifest)));
  if (text.size() < mapping.bytes().size())
    throw manifest.corrupt("has " + std::to_string(mapping.bytes().size()) + " bytes, which no manifest has");
  if (std::optional<JsonProblem> problem = readJson(text, manifest.json))
    throw manifest.corrupt("the manifest is no JSON: " + problem->sentence);
  if (!manifest.json.is_object())
    throw manifest.corrupt("the manifest is no JSON object");
  return manifest;
}

/// Takes the hash out of the manifest. Throws unless it is that of the rest.
static void takeHash(Manifest &manifest) {
  const Json *hash = manifest.value(hashKey);
  if (!hash || !hash->is_string())
    throw manifest.corrupt("the manifest has no hash");
  std::string stored = hash->get<std::string>();
  manifest.json["metadata"].erase(std::string(hashKey));
  std::string text = manifest.json.dump();
  if (hashText(hashOf(text.data(), text.size())) != stored)
    throw manifest.corrupt("the manifest does not match its hash: it was damaged or changed since it was written");
}

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

CheckpointWriters shareWriting(std::vector<CheckpointTensor> tensors, int ranks) {
  std::vector<uint64_t> bytes(size_t(ranks), 0);
  CheckpointWriters writers;
  for (const CheckpointTensor &tensor : tensors)
    if (tensor.owner) {
      writers[tensor.name] = *tensor.owner;
      bytes[size_t(*tensor.owner)] += tensor.bytes;
    }
  std::erase_if(tensors, [](const CheckpointTensor &tensor) { return tensor.owner.has_value(); });
  std::ranges::stable_sort(tensors, std::ranges::greater(), &CheckpointTensor::bytes);
  for (const CheckpointTensor &tensor : tensors) {
    auto least = std::ranges::min_element(bytes);
    writers[tensor.name] = int(least - bytes.begin());
    *least += tensor.bytes;
  }
  return writers;
}

static CheckpointPart describe(const SafetensorsFile &file) {
  return {file.mapping().bytes().size(), hashText(hashOf(file.header().data(), file.header().size()))};
}

CheckpointPart writeCheckpointPart(const std::filesystem::path &folder, const std::string &save, size_t index,
                                   size_t count, const DeferredTensors &tensors) {
  std::filesystem::path path = folder / partName(save, index, count);
  Metadata metadata = {{std::string(partKey), std::to_string(index + 1) + " of " + std::to_string(count)}};
  addHashes(metadata, tensors);
  saveDeferred(path, tensors, metadata);
  return describe(SafetensorsFile::open(path));
}

/// Makes a folder, whose name is as durable as what will be in it.
static void makeFolder(const std::filesystem::path &folder) {
  std::error_code failed;
  bool isNew = std::filesystem::create_directory(folder, failed);
  if (failed || !std::filesystem::is_directory(folder, failed))
    throw Error(ErrorCode::IoFailed, folder.string() + ": cannot be made a folder for checkpoints" +
                                         (failed ? ": " + failed.message() : ""));
  int descriptor = isNew ? ::open((folder / "..").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  if (descriptor >= 0) {
    ::fsync(descriptor);
    ::close(descriptor);
  }
}

/// Removes parts: those of `save`, or of all saves but that. Throws nothing.
static void removeParts(const std::filesystem::path &folder, const std::string &save, bool butThese) noexcept {
  try {
    std::vector<std::filesystem::path> unused;
    for (const auto &entry : std::filesystem::directory_iterator(folder)) {
      std::string name = entry.path().filename().string();
      if (std::string_view of = saveOfPart(name); !of.empty() && (of == save) != butThese)
        unused.push_back(entry.path());
    }
    for (const std::filesystem::path &path : unused)
      removeUnlocked(path); // a process that ended may have left one half written, and others write theirs
  } catch (const std::exception &) { // they stay, and the next save tries again
  }
}

CheckpointSave::CheckpointSave(std::filesystem::path folder) : folder_(std::move(folder)) {
  makeFolder(folder_);
  std::error_code unknown;
  if (std::filesystem::exists(std::filesystem::symlink_status(folder_ / manifestName, unknown)))
    if (Manifest before = readManifest(folder_); !before.isOfCheckpoint())
      throw Error(ErrorCode::InvalidArgument,
                  before.path.string() + ": is the index of weights that are no checkpoint of Segue, and would be "
                                         "lost; save to another folder");
  manifest_.emplace(folder_ / manifestName);
  std::random_device random;
  name_ = hashText(uint64_t(random()) << 32 | random());
}

CheckpointSave::~CheckpointSave() {
  if (!manifest_)
    return;
  // A file system may say that a rename has failed which it has made.
  try {
    if (std::filesystem::exists(folder_ / manifestName) && readManifest(folder_).save() == name_)
      return;
    removeParts(folder_, name_, /*butThese=*/false);
  } catch (const std::exception &) { // nobody knows what is in force
  }
}

void CheckpointSave::commit(const Checkpoint &checkpoint, std::span<const CheckpointPart> parts,
                            const CheckpointWriters &writers) {
  std::map<std::string, std::string> weightMap;
  Json described = Json::array();
  uint64_t totalBytes = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::string name = partName(name_, rank, parts.size());
    std::string notSeen = "is not here as rank " + std::to_string(rank) +
                          " has written it: ranks that save to a folder need a file system that all see; name a file, "
                          "which rank 0 writes";
    statusOf(folder_ / name, notSeen);
    SafetensorsFile file = SafetensorsFile::open(folder_ / name);
    CheckpointPart seen = describe(file);
    if (seen.bytes != parts[rank].bytes || seen.hash != parts[rank].hash)
      throw Error(ErrorCode::IoFailed, (folder_ / name).string() + ": " + notSeen);
    described.push_back({{"bytes", seen.bytes}, {"hash", seen.hash}});
    for (const SafetensorsEntry &entry : file.entries()) {
      weightMap[entry.name] = name;
      totalBytes += entry.bytes;
      if (auto writer = writers.find(entry.name); writer == writers.end() || size_t(writer->second) != rank)
        throw Error(ErrorCode::FileCorrupt, (folder_ / name).string() + ": has the tensor \"" + entry.name +
                                                "\", which another rank writes");
    }
  }
  for (const auto &[name, rank] : writers)
    if (!weightMap.contains(name))
      throw Error(ErrorCode::FileCorrupt,
                  folder_.string() + ": rank " + std::to_string(rank) + " has not written the tensor \"" + name + "\"");
  Json json{{"metadata", {{"total_size", totalBytes}}}};
  for (const auto &[key, value] : valuesOf(checkpoint, folderVersion))
    json["metadata"][key] = value;
  json["metadata"][std::string(saveKey)] = name_;
  json["metadata"][std::string(partsKey)] = std::move(described);
  json["weight_map"] = weightMap;
  std::string text;
  try {
    text = json.dump();
    json["metadata"][std::string(hashKey)] = hashText(hashOf(text.data(), text.size()));
    text = json.dump(1);
  } catch (const nlohmann::json::exception &error) { // notes that are not UTF-8
    throw Error(ErrorCode::InvalidArgument, folder_.string() + ": a text cannot be written: " + error.what());
  }
  manifest_->write(text);
  manifest_->commit();
  removeParts(folder_, name_, /*butThese=*/true);
}

void saveToFolder(const std::filesystem::path &folder, const Checkpoint &checkpoint) {
  DeferredTensors tensors = tensorsOf(checkpoint);
  CheckpointWriters writers;
  for (const auto &[name, tensor] : tensors)
    writers[name] = 0;
  CheckpointSave save(folder);
  CheckpointPart part = writeCheckpointPart(folder, save.name(), 0, 1, tensors);
  save.commit(checkpoint, std::span(&part, 1), writers);
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

static CheckpointPart partOf(const Manifest &manifest, const Json &json) {
  if (!json.is_object() || !json.contains("bytes") || !json["bytes"].is_number_unsigned() || !json.contains("hash") ||
      !json["hash"].is_string())
    throw manifest.corrupt("\"" + std::string(partsKey) + "\" has an element that is no part");
  return {json["bytes"].get<uint64_t>(), json["hash"].get<std::string>()};
}

/// Opens a part that is as the manifest says.
static std::shared_ptr<const SafetensorsFile> openPart(const Manifest &manifest, const std::string &name,
                                                       const CheckpointPart &part) {
  std::filesystem::path path = manifest.path.parent_path() / name;
  auto wrong = [&](const std::string &what) {
    return Error(ErrorCode::FileCorrupt, path.string() + ": " + what + "; use another checkpoint");
  };
  struct stat status = statusOf(path, "is not there, and is a part of the checkpoint by " + std::string(manifestName));
  if (uint64_t(status.st_size) != part.bytes)
    throw wrong("has " + std::to_string(status.st_size) + " bytes, and had " + std::to_string(part.bytes) +
                " when it was saved");
  auto file = std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
  file->settle();
  if (describe(*file).hash != part.hash)
    throw wrong("its header is not that of the file that was saved: it was damaged or changed, or is of another save");
  return file;
}

/// Throws unless each tensor is in the part that the manifest says, and in no other.
static void checkWeightMap(const Manifest &manifest, std::span<const std::shared_ptr<const SafetensorsFile>> files) {
  auto map = manifest.json.find("weight_map");
  if (map == manifest.json.end() || !map->is_object())
    throw manifest.corrupt("the manifest has no \"weight_map\"");
  std::map<std::string_view, std::string> inFile;
  for (const auto &file : files)
    for (const SafetensorsEntry &entry : file->entries())
      if (auto [it, isNew] = inFile.emplace(entry.name, file->path().filename().string()); !isNew)
        throw manifest.corrupt("the tensor \"" + entry.name + "\" is twice there, in " + it->second + " and in " +
                               file->path().filename().string());
  for (const auto &[key, value] : map->items()) {
    auto found = inFile.find(key);
    if (found == inFile.end() || value != found->second)
      throw manifest.corrupt("the tensor \"" + key + "\" should be in " + value.dump() + ", and is " +
                             (found == inFile.end() ? "in no part" : "in " + found->second));
    inFile.erase(found);
  }
  if (!inFile.empty())
    throw manifest.corrupt("the tensor \"" + std::string(inFile.begin()->first) + "\" is in " + inFile.begin()->second +
                           ", and the manifest does not name it");
}

static Checkpoint readParts(const DeviceRef &device, Manifest manifest, const std::string &save,
                            const IsNeeded &isNeeded) {
  if (std::string version = manifest.value(versionKey)->dump(); version != '"' + std::string(folderVersion) + '"')
    throw Error(ErrorCode::VersionUnsupported, manifest.path.string() + ": a checkpoint of version " + version +
                                                   " in a folder; this runtime reads version " +
                                                   std::string(folderVersion));
  takeHash(manifest);
  if (save.empty())
    throw manifest.corrupt("the manifest has no \"" + std::string(saveKey) + "\"");
  Metadata values;
  for (const auto &[key, value] : manifest.json["metadata"].items())
    if (value.is_string())
      values[key] = value.get<std::string>();
  Checkpoint checkpoint;
  readValues(values, manifest.path, checkpoint);
  const Json *parts = manifest.value(partsKey);
  if (!parts || !parts->is_array() || parts->empty() || parts->size() > mostParts)
    throw manifest.corrupt("the manifest has no \"" + std::string(partsKey) + "\"");
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  for (size_t i = 0; i < parts->size(); ++i)
    files.push_back(openPart(manifest, partName(save, i, parts->size()), partOf(manifest, (*parts)[i])));
  checkWeightMap(manifest, files);
  for (const auto &file : files)
    readTensors(*file, device, isNeeded, /*haveHashes=*/true, checkpoint);
  checkpoint.checkSource = [files = std::move(files)] {
    for (const auto &file : files)
      file->checkUnchanged();
  };
  checkpoint.checkSource();
  return checkpoint;
}

Checkpoint loadFromFolder(const DeviceRef &device, const std::filesystem::path &folder, const IsNeeded &isNeeded) {
  constexpr int mostTries = 10;
  for (int tries = 1;; ++tries) {
    Manifest manifest = readManifest(folder);
    std::string save = manifest.save();
    if (!manifest.isOfCheckpoint())
      throw Error(ErrorCode::InvalidArgument,
                  manifest.path.string() + ": this is an index of tensors, but no checkpoint of Segue (no step, no "
                                           "optimizer state); load its files as weights");
    try {
      return readParts(device, std::move(manifest), save, isNeeded);
    } catch (const Error &) { // a run may have saved meanwhile, and removed the parts
      if (tries == mostTries || readManifest(folder).save() == save)
        throw;
    }
  }
}

} // namespace segue::inline runtime
