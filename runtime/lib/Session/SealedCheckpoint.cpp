//===- SealedCheckpoint.cpp - checkpoints of what lies on a disk ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SealedCheckpoint.h"
#include "../FileMapping.h"
#include "../Hash.h"
#include "CheckpointHashes.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <random>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace segue::inline runtime {

static constexpr std::string_view fileKey = "segue.sealed.file", bytesKey = "segue.sealed.bytes",
                                  sealedTensorPrefix = "segue.sealed.tensor.";
static constexpr std::string_view namePrefix = "segue-", nameSuffix = ".sealed";
static constexpr size_t ownerDigits = 16, numberDigits = 32;

//===----------------------------------------------------------------------===//
// Names
//===----------------------------------------------------------------------===//

static std::filesystem::path wholePath(const std::filesystem::path &path) {
  std::error_code unknown;
  // A relative path of which nothing exists would stay as it is, and be another one as soon as it does.
  std::filesystem::path absolute = std::filesystem::absolute(path);
  std::filesystem::path whole = std::filesystem::weakly_canonical(absolute, unknown);
  return unknown ? absolute : whole;
}

/// Returns the beginning of the names of spill files that the checkpoint at `path` names.
static std::string ownPrefix(const std::filesystem::path &path) {
  std::string text = wholePath(path).string();
  return std::string(namePrefix) + hashText(hashOf(text.data(), text.size())) + "-";
}

static bool isSealedName(std::string_view name) {
  if (!name.starts_with(namePrefix) || !name.ends_with(nameSuffix) ||
      name.size() != namePrefix.size() + ownerDigits + 1 + numberDigits + nameSuffix.size())
    return false;
  for (size_t i = namePrefix.size(); i < name.size() - nameSuffix.size(); ++i) {
    bool isDigit = (name[i] >= '0' && name[i] <= '9') || (name[i] >= 'a' && name[i] <= 'f');
    if (i == namePrefix.size() + ownerDigits ? name[i] != '-' : !isDigit)
      return false;
  }
  return true;
}

std::filesystem::path sealedFileOf(const std::filesystem::path &path) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown))
    return {};
  try {
    SafetensorsFile file = SafetensorsFile::open(path);
    auto found = file.metadata().find(fileKey);
    return found == file.metadata().end() ? std::filesystem::path() : std::filesystem::path(found->second);
  } catch (const Error &) { // no checkpoint, or none that can be read
    return {};
  }
}

/// Calls `act` with a descriptor of a file that lies in its folder itself, unless a process has locked it.
template <typename Act> static void withUnlocked(const std::filesystem::path &file, Act act) noexcept {
  // NFS locks against all others what is open for writing alone.
  int descriptor = ::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0)
    return;
  struct stat status;
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0)
    act(descriptor);
  ::close(descriptor);
}

void removeUnlocked(const std::filesystem::path &file) noexcept {
  withUnlocked(file, [&](int) { ::unlink(file.c_str()); });
}

/// Returns true for what may be a spill file of the checkpoint at `path`, which says so itself.
static bool isOfCheckpoint(const std::filesystem::path &file, const std::filesystem::path &path) noexcept {
  try {
    std::string name = file.filename().string();
    return isSealedName(name) && name.starts_with(ownPrefix(path));
  } catch (const std::exception &) { // it stays, and the next run tries again
    return false;
  }
}

static void removeSealedFile(const std::filesystem::path &file, const std::filesystem::path &path) noexcept {
  if (isOfCheckpoint(file, path))
    removeUnlocked(file);
}

/// Notes in the mode of a spill file whether a checkpoint names it, as SpillFile::keep says.
static void noteNamed(const std::filesystem::path &file, const std::filesystem::path &path, bool isNamed) noexcept {
  if (isOfCheckpoint(file, path))
    withUnlocked(file, [&](int descriptor) { ::fchmod(descriptor, isNamed ? S_IRUSR | S_IWUSR : S_IRWXU); });
}

ReplacedSeal::ReplacedSeal(std::filesystem::path path) : path_(std::move(path)), file_(sealedFileOf(path_)) {
  noteNamed(file_, path_, /*isNamed=*/false);
}

ReplacedSeal::~ReplacedSeal() { noteNamed(file_, path_, /*isNamed=*/true); }

void ReplacedSeal::remove() noexcept { removeSealedFile(std::exchange(file_, {}), path_); }

//===----------------------------------------------------------------------===//
// Sealing
//===----------------------------------------------------------------------===//

bool canSealOn(const Device &device) { return device.hasSpace(Space::Disk); }

Error noDiskToSealOn(std::string_view spec) {
  return Error(ErrorCode::Unsupported, "device \"" + std::string(spec) +
                                           "\" has no disk below its memory, on which checkpoints could be sealed; "
                                           "save them whole, or seal on cpu:dram=...,disk=FOLDER");
}

static uint64_t wholeBlocks(uint64_t bytes) {
  return (bytes + SpillFile::block - 1) / SpillFile::block * SpillFile::block;
}

uint64_t copyBytes(const TensorDesc &desc) { return wholeBlocks(TensorDesc(desc.shape, desc.element).spanBytes()); }

uint64_t sealableBytes(const Tensor &tensor) {
  if (!tensor)
    return 0;
  const TensorDesc &desc = tensor.desc();
  if (desc.layout.space != Space::Disk || desc.layout.offset != 0 || !desc.isDense() ||
      isQuantized(desc.layout.storage) || !desc.layout.tile.empty() || tensor.storage()->isExternal())
    return 0;
  return wholeBlocks(desc.spanBytes());
}

CheckpointSealer::CheckpointSealer(DeviceRef device, std::filesystem::path path)
    : device_(std::move(device)), disk_(diskTier(*device_)), path_(std::move(path)) {
  if (!disk_)
    throw noDiskToSealOn(device_->name());
  // A file seals for one checkpoint at a time.
  if (std::string other = disk_->file().path().filename().string(); !other.empty()) {
    if (!other.starts_with(ownPrefix(path_)))
      throw Error(ErrorCode::InvalidArgument, path_.string() + ": the disk of \"" + device_->name() +
                                                  "\" has sealed a checkpoint at another path, which would be lost; "
                                                  "seal there, or open a device of its own");
    name_ = std::move(other);
    return;
  }
  std::random_device random;
  std::string number;
  for (int i = 0; i < 2; ++i)
    number += hashText(uint64_t(random()) << 32 | random());
  name_ = ownPrefix(path_) + number + std::string(nameSuffix);
}

bool CheckpointSealer::isAt(const std::filesystem::path &path) const { return wholePath(path) == wholePath(path_); }

void CheckpointSealer::takeRoom(const SealRoom &room) {
  disk_->require(room);
  std::span<const SpillExtent> extents = disk_->copyRoom();
  std::ranges::copy(extents.subspan(knownExtents_), std::back_inserter(copyRoom_));
  knownExtents_ = extents.size();
}

uint64_t CheckpointSealer::writtenBytes() const { return disk_->file().writeTraffic().bytes; }

std::string CheckpointSealer::whatIsTaken() const {
  char text[192];
  std::snprintf(text, sizeof text,
                "of the disk's %.1f MiB, checkpoints that seal what lies there take %.1f; it needs a larger capacity "
                "(--spill-capacity, spill_capacity=)",
                double(disk_->file().capacity()) / (1 << 20), double(disk_->taken().bytes()) / (1 << 20));
  return text;
}

static uint64_t hashOfBytes(const Tensor &tensor) {
  HashOfPieces hash;
  forEachPiece(tensor, [&](std::span<const std::byte> bytes) { hash.add(bytes.data(), bytes.size()); });
  return hash.value();
}

/// A tensor that is sealed where it is in use. It is read only where nobody has seen its bytes since they changed.
CheckpointSealer::Sealed CheckpointSealer::inPlace(const std::string &name, const Tensor &tensor,
                                                   const HashOf &hashOf) const {
  wait(tensor);
  SpillFile &file = disk_->file();
  SpillExtent range{uint64_t(tensor.bytes() - file.data()), sealableBytes(tensor)};
  Sealed sealed{tensor.shape(), tensor.element(), {range}};
  auto before = sealed_.find(name);
  if (before != sealed_.end() && before->second.ranges == sealed.ranges &&
      file.sealedBytes(range.offset, range.bytes) == range.bytes) {
    sealed.hash = before->second.hash;
  } else if (std::optional<uint64_t> known = hashOf(tensor)) {
    sealed.hash = *known;
  } else {
    sealed.hash = hashOfBytes(tensor);
  }
  return sealed;
}

std::vector<SpillExtent> CheckpointSealer::takeCopyRoom(uint64_t bytes) {
  std::vector<SpillExtent> taken;
  uint64_t missing = bytes;
  for (SpillExtent &extent : copyRoom_) {
    uint64_t size = std::min(missing, extent.bytes);
    if (size)
      taken.push_back({extent.offset, size});
    extent = {extent.offset + size, extent.bytes - size};
    missing -= size;
  }
  if (missing) {
    std::ranges::copy(taken, std::back_inserter(copyRoom_));
    return {};
  }
  return taken;
}

bool CheckpointSealer::hasSealed(const std::vector<SpillExtent> &ranges) const {
  return std::ranges::any_of(ranges, [&](const SpillExtent &range) {
    return disk_->file().sealedBytes(range.offset, range.bytes) != 0;
  });
}

void CheckpointSealer::write(const Tensor &tensor, std::vector<SpillExtent> to) const {
  size_t at = 0;
  forEachPiece(tensor, [&](std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      SpillExtent &range = to[at];
      uint64_t size = std::min<uint64_t>(bytes.size(), range.bytes);
      disk_->file().write(range.offset, bytes.data(), size);
      range = {range.offset + size, range.bytes - size};
      at += range.bytes == 0;
      bytes = bytes.subspan(size);
    }
  });
}

const CheckpointSealer::Sealed *CheckpointSealer::copyOf(const std::string &key, const DeferredTensor &tensor,
                                                         uint64_t number, const std::function<void()> &checkSource) {
  uint64_t bytes = copyBytes(TensorDesc(tensor.shape, tensor.element));
  if (!bytes)
    return nullptr;
  Copy &copy = copies_[key];
  if (copy.isWhole && number && copy.number == number)
    return &copy.sealed;
  Tensor source = tensor.read();
  uint64_t hash = hashOfBytes(source);
  if (!copy.isWhole || copy.sealed.hash != hash) {
    if (copy.sealed.ranges.empty())
      copy.sealed = {tensor.shape, tensor.element, takeCopyRoom(bytes)};
    // A seal is written over by nobody: the next one has the room free for other bytes.
    if (copy.sealed.ranges.empty() || hasSealed(copy.sealed.ranges))
      return nullptr;
    copy.isWhole = false;
    write(source, copy.sealed.ranges);
    if (checkSource)
      checkSource();
    copy.sealed.hash = hash;
    copy.isWhole = true;
  }
  copy.number = number;
  return &copy.sealed;
}

Metadata CheckpointSealer::describe(const SealedTensors &sealed) const {
  const SpillFile &file = disk_->file();
  Metadata metadata = {{std::string(fileKey), wholePath(file.path()).string()},
                       {std::string(bytesKey), std::to_string(file.capacity())}};
  for (const auto &[name, each] : sealed) {
    Json extents = Json::array();
    for (const SpillExtent &range : each.ranges)
      for (const SpillExtent &extent : file.extentsOf(range.offset, range.bytes))
        extents.push_back({extent.offset, extent.bytes});
    metadata[std::string(sealedTensorPrefix) + name] = Json{{"element", runtime::name(each.element)},
                                                            {"shape", each.shape},
                                                            {"hash", hashText(each.hash)},
                                                            {"extents", std::move(extents)}}
                                                           .dump();
  }
  return metadata;
}

/// Removes spill files of runs that ended before a checkpoint named them, or while one was written over. Another that a
/// checkpoint has named may be that of one with another path by now.
void CheckpointSealer::removeFilesBefore(const std::function<void(const std::string &)> &warn) const {
  std::string prefix = ownPrefix(path_);
  std::error_code unknown;
  std::filesystem::directory_iterator it(disk_->file().folder(), unknown), end;
  for (; !unknown && it != end; it.increment(unknown))
    if (std::string name = it->path().filename().string(); name != name_ && name.starts_with(prefix)) {
      struct stat status;
      if (::lstat(it->path().c_str(), &status) == 0 && status.st_mode & S_IXUSR)
        removeSealedFile(it->path(), path_);
      else
        warn(it->path().string() + ": holds an earlier checkpoint of " + path_.string() +
             ", which is not there any more; if you have removed it and not moved it, remove this file, too");
    }
}

/// Throws Unsupported for a folder that no checkpoint could name, whose texts are UTF-8.
static void requireName(const std::filesystem::path &folder) {
  try {
    (void)Json(wholePath(folder).string()).dump();
  } catch (const Json::exception &) {
    throw Error(ErrorCode::Unsupported, folder.string() + ": the path of the spill folder is not UTF-8, so that no "
                                                          "checkpoint can say what is sealed there");
  }
}

uint64_t CheckpointSealer::seal(const Checkpoint &checkpoint, const Frozen &frozen, const HashOf &hashOf,
                                const std::function<void(const std::string &)> &warn) {
  SpillFile &file = disk_->file();
  requireName(file.folder());
  Checkpoint inMemory = checkpoint; // less what lies on the disk
  SealedTensors sealed;
  uint64_t usedBytes = 0;
  auto sealInPlace = [&](TensorMap &tensors, std::string_view prefix) {
    std::erase_if(tensors, [&](const auto &item) {
      uint64_t bytes = sealableBytes(item.second);
      std::string name = std::string(prefix) + item.first;
      if (bytes)
        sealed[name] = inPlace(name, item.second, hashOf);
      usedBytes += bytes;
      return bytes != 0;
    });
  };
  sealInPlace(inMemory.parameters, "");
  sealInPlace(inMemory.state, statePrefix);
  auto isCopied = [&](const std::string &key, const DeferredTensor &tensor) {
    auto found = frozen.find(key);
    const Sealed *copy =
        found == frozen.end() ? nullptr : copyOf(key, tensor, found->second, checkpoint.checkSource);
    if (copy)
      sealed[key] = *copy;
    return copy != nullptr;
  };
  std::erase_if(inMemory.parameters, [&](const auto &item) { return isCopied(item.first, deferred(item.second)); });
  std::erase_if(inMemory.deferred, [&](const auto &item) { return isCopied(item.first, item.second); });
  bool isFirst = sealed_.empty();
  file.keep(name_);
  ReplacedSeal replaced(isFirst ? path_ : std::filesystem::path());
  saveSealedCheckpoint(path_, inMemory, describe(sealed));
  std::vector<SpillExtent> ranges;
  for (const auto &[name, each] : sealed)
    std::ranges::copy(each.ranges, std::back_inserter(ranges));
  file.seal(ranges);
  sealed_ = std::move(sealed);
  usedBytes_ = usedBytes;
  std::error_code unknown;
  fileBytes_ = std::filesystem::file_size(path_, unknown);
  replaced.remove();
  if (isFirst)
    removeFilesBefore(warn);
  uint64_t bytes = 0;
  for (const SpillExtent &range : ranges)
    bytes += range.bytes;
  return bytes;
}

void CheckpointSealer::unseal() {
  sealed_.clear();
  usedBytes_ = 0;
  disk_->file().unseal();
}

//===----------------------------------------------------------------------===//
// Reading
//===----------------------------------------------------------------------===//

namespace {
/// Reads what the metadata of a sealed checkpoint says, which comes from outside.
class SealedReader {
public:
  SealedReader(const SafetensorsFile &file, DeviceRef device) : file_(file), device_(std::move(device)) {}

  void open();
  /// The tensor that an entry of the metadata describes.
  Tensor read(const std::string &name, std::string_view text) const;

  bool isOwn() const { return isOwn_; }
  const std::shared_ptr<const FileMapping> &source() const { return source_; }

private:
  Error corrupt(const std::string &what) const {
    return Error(ErrorCode::FileCorrupt, file_.path().string() + ": " + what + "; use another checkpoint");
  }
  const std::string &text(std::string_view key) const {
    auto found = file_.metadata().find(key);
    if (found == file_.metadata().end())
      throw corrupt("a sealed checkpoint without \"" + std::string(key) + "\"");
    return found->second;
  }
  std::vector<FileMapping::Parts::Part> partsOf(const std::string &name, const Json &json, uint64_t bytes) const;

  const SafetensorsFile &file_;
  DeviceRef device_;
  std::shared_ptr<const FileMapping> source_;
  bool isOwn_ = false;
};
} // namespace

/// Returns true if the file at its path is still the one that was opened, and has not been written to.
static bool isAsOpened(const FileMapping &file) {
  struct stat opened, now;
  if (::fstat(file.descriptor(), &opened) != 0 || ::stat(file.path().c_str(), &now) != 0 ||
      opened.st_dev != now.st_dev || opened.st_ino != now.st_ino)
    return false;
  try {
    file.checkUnchanged();
    return true;
  } catch (const Error &) {
    return false;
  }
}

/// Locks a spill file against runs that would write to it. Returns false if one does.
static bool lockForReading(int descriptor) {
  // The kernel closes the ring of a process that was killed, which has the file open, when it finds the time.
  constexpr int mostTries = 300;
  for (int i = 0; i < mostTries; ++i) {
    if (::flock(descriptor, LOCK_SH | LOCK_NB) == 0)
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

void SealedReader::open() {
  std::filesystem::path path = text(fileKey);
  if (!path.is_absolute() || !isSealedName(path.filename().string()))
    throw corrupt("\"" + path.string() + "\" is no name of a spill file");
  uint64_t bytes = 0;
  const std::string &size = text(bytesKey);
  auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), bytes);
  if (error != std::errc() || end != size.data() + size.size())
    throw corrupt("\"" + size + "\" is no size of a spill file");
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
    throw Error(ErrorCode::IoFailed, file_.path().string() + ": the spill file that its tensors lie in, " +
                                         path.string() + ", is not there; use another checkpoint");
  source_ = std::make_shared<const FileMapping>(path);
  if (source_->bytes().size() != bytes)
    throw Error(ErrorCode::FileCorrupt, path.string() + ": has " + std::to_string(source_->bytes().size()) +
                                            " bytes, and " + std::to_string(bytes) + " when " + file_.path().string() +
                                            " was sealed; use another checkpoint");
  DiskTier *disk = diskTier(*device_);
  isOwn_ = disk && !disk->file().path().empty() && wholePath(disk->file().path()) == wholePath(path);
  if (!isOwn_ && !lockForReading(source_->descriptor()))
    throw Error(ErrorCode::IoFailed, file_.path().string() + ": the run that sealed it is still at work on " +
                                         path.string() + "; wait until it ends");
  if (!isOwn_ && !(isAsOpened(*source_) && isAsOpened(file_.mapping())))
    throw SealedAnew();
}

std::vector<FileMapping::Parts::Part> SealedReader::partsOf(const std::string &name, const Json &json,
                                                            uint64_t bytes) const {
  uint64_t left = (bytes + SpillFile::block - 1) / SpillFile::block * SpillFile::block;
  std::vector<FileMapping::Parts::Part> parts;
  for (const Json &each : json) {
    if (!each.is_array() || each.size() != 2 || !each[0].is_number_unsigned() || !each[1].is_number_unsigned())
      throw corrupt("sealed tensor \"" + name + "\" has an extent that is none");
    FileMapping::Parts::Part extent{each[0].get<uint64_t>(), each[1].get<uint64_t>()};
    if (extent.offset % SpillFile::block || extent.bytes % SpillFile::block || extent.bytes == 0 ||
        !rangeFits(extent.offset, extent.bytes, source_->bytes().size()) || extent.bytes > left)
      throw corrupt("sealed tensor \"" + name + "\" has an extent of " + std::to_string(extent.bytes) + " bytes at " +
                    std::to_string(extent.offset) + ", which is none of " + source_->path().string());
    left -= extent.bytes;
    parts.push_back(extent);
  }
  if (left != 0)
    throw corrupt("sealed tensor \"" + name + "\" has fewer bytes than its shape and type need");
  return parts;
}

Tensor SealedReader::read(const std::string &name, std::string_view text) const {
  Json json;
  if (std::optional<JsonProblem> problem = readJson(text, json))
    throw corrupt("sealed tensor \"" + name + "\": " + problem->sentence);
  auto field = [&](const char *key, bool isArray) -> const Json & {
    if (!json.is_object() || !json.contains(key) || (isArray ? !json[key].is_array() : !json[key].is_string()))
      throw corrupt("sealed tensor \"" + name + "\" lacks its " + key);
    return json[key];
  };
  std::optional<ElementType> element = parseElementType(field("element", false).get<std::string>());
  if (!element)
    throw corrupt("sealed tensor \"" + name + "\" has an unknown element type");
  Shape shape;
  for (const Json &extent : field("shape", true)) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > uint64_t(INT64_MAX))
      throw corrupt("sealed tensor \"" + name + "\" has an extent that is not a number from 0 on");
    shape.push_back(extent.get<int64_t>());
  }
  std::optional<uint64_t> elements = checkedElementCount(shape);
  std::optional<uint64_t> bytes = elements ? checkedMultiply(*elements, byteSize(*element)) : std::nullopt;
  if (!bytes || *bytes == 0 || *bytes > source_->bytes().size())
    throw corrupt("sealed tensor \"" + name + "\" has a shape that does not fit into " + source_->path().string());
  std::vector<FileMapping::Parts::Part> parts = partsOf(name, field("extents", true), *bytes);
  std::shared_ptr<const FileMapping::Parts> gathered;
  std::byte *data = const_cast<std::byte *>(source_->bytes().data()) + parts.front().offset;
  if (parts.size() > 1) {
    gathered = std::make_shared<const FileMapping::Parts>(*source_, parts);
    data = gathered->data();
  }
  std::string found = hashText(hashOf(data, *bytes));
  // The tensor is read again when it is copied; until then it takes no memory.
  ::madvise(data, *bytes, MADV_DONTNEED);
  if (found != field("hash", false).get<std::string>())
    throw Error(ErrorCode::FileCorrupt, source_->path().string() + ": tensor \"" + name +
                                            "\" does not match its hash: it was damaged or changed since it was "
                                            "sealed; use another checkpoint");
  return Tensor::wrap(
      device_, TensorDesc(std::move(shape), *element), data, [source = source_, gathered] {}, /*writable=*/false);
}

std::function<void()> readSealed(const SafetensorsFile &file, const DeviceRef &device, Checkpoint &checkpoint) {
  SealedReader reader(file, device);
  reader.open();
  if (!reader.isOwn())
    reader.source()->settle();
  for (auto entry = file.metadata().lower_bound(sealedTensorPrefix);
       entry != file.metadata().end() && entry->first.starts_with(sealedTensorPrefix); ++entry) {
    std::string name = entry->first.substr(sealedTensorPrefix.size());
    bool isState = name.starts_with(statePrefix);
    TensorMap &target = isState ? checkpoint.state : checkpoint.parameters;
    if (!target.try_emplace(isState ? name.substr(statePrefix.size()) : name, reader.read(name, entry->second)).second)
      throw Error(ErrorCode::FileCorrupt,
                  file.path().string() + ": tensor \"" + name + "\" is there twice; use another checkpoint");
  }
  if (reader.isOwn()) // it changes, but for what is sealed
    return [] {};
  return [source = reader.source()] { source->checkUnchanged(); };
}

} // namespace segue::inline runtime
