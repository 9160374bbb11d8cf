//===- SpillFile.cpp - room on a disk, beside memory ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Disk/SpillFile.h"
#include "SpillEngine.h"
#include "SpillFolder.h"
#include "SpillLane.h"
#include "SpillMap.h"
#include "segue/runtime/Error.h"
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <linux/falloc.h>
#include <mutex>
#include <optional>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace segue::inline runtime {

struct SpillFile::Impl {
  ~Impl();

  std::byte *checkRange(uint64_t offset, uint64_t bytes) const;
  std::vector<SpillExtent> extentsOf(uint64_t offset, uint64_t bytes) const;
  bool show(uint64_t offset, uint64_t fileOffset, uint64_t bytes, bool isSealed);
  void renew(uint64_t offset, uint64_t bytes, bool copiesAll);
  void copyBlocks(const SpillMap::Move &move);
  void giveBack();
  /// Notes in the file's mode whether a checkpoint may name it, whatever becomes of this process.
  void sayNamed(bool isNamed) { ::fchmod(descriptors.cached, isNamed ? S_IRUSR | S_IWUSR : S_IRWXU); }

  /// A child of fork has the descriptors, and neither the threads nor a say in the file.
  pid_t owner = ::getpid();
  std::filesystem::path folder;
  uint64_t capacity = 0;
  SpillDescriptors descriptors;
  std::byte *data = nullptr;
  std::optional<SpillLane> reads, writes;

  mutable std::mutex mapping;
  std::optional<SpillMap> map;
  /// The name of the file; empty if it has none.
  std::string name;
  bool hasSeal = false;
};

/// A fault brings one page and never a larger one, in which a store to a range would make
/// stale bytes of its neighbour dirty while that is written directly.
static void adviseMapping(std::byte *data, uint64_t bytes) {
  ::madvise(data, bytes, MADV_RANDOM);
  ::madvise(data, bytes, MADV_DONTDUMP);
}

/// Returns true if the mapping may keep stores to itself where blocks are sealed: if that counts to no limit.
static bool mayKeepStores() {
  struct rlimit most;
  return ::getrlimit(RLIMIT_DATA, &most) == 0 && most.rlim_cur == RLIM_INFINITY;
}

SpillFile::Impl::~Impl() {
  bool isOwner = ::getpid() == owner;
  for (std::optional<SpillLane> *lane : {&reads, &writes}) { // before the descriptors that they use
    if (*lane && !isOwner)
      (*lane)->abandon();
    lane->reset();
  }
  if (data)
    ::munmap(data, capacity);
  if (isOwner && descriptors.cached >= 0)
    giveBack();
  for (int descriptor : {descriptors.direct, descriptors.cached})
    if (descriptor >= 0)
      ::close(descriptor);
}

/// The room and the lock go back now: the kernel closes a ring, which has the file open too, when it finds the time.
void SpillFile::Impl::giveBack() {
  if (!hasSeal) {
    if (!name.empty())
      ::unlink((folder / name).c_str());
    [[maybe_unused]] int ignored = ::ftruncate(descriptors.cached, 0);
    ::flock(descriptors.cached, LOCK_UN);
    return;
  }
  uint64_t at = 0;
  auto punch = [&](uint64_t end) {
    if (end > at)
      ::fallocate(descriptors.cached, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(at), off_t(end - at));
  };
  for (const SpillExtent &extent : map->sealedExtents()) {
    punch(extent.offset);
    at = extent.offset + extent.bytes;
  }
  punch(capacity);
  ::flock(descriptors.cached, LOCK_UN);
}

/// Returns the address of the range.
std::byte *SpillFile::Impl::checkRange(uint64_t offset, uint64_t bytes) const {
  if (offset > capacity || bytes > capacity - offset)
    throw Error(ErrorCode::InvalidArgument, "a range of " + std::to_string(bytes) + " bytes at " +
                                                std::to_string(offset) + " ends behind the spill file of " +
                                                std::to_string(capacity) + " bytes in " + folder.string());
  return data + offset;
}

std::vector<SpillExtent> SpillFile::Impl::extentsOf(uint64_t offset, uint64_t bytes) const {
  uint64_t before = offset % block, behind = (block - (offset + bytes) % block) % block;
  std::vector<SpillExtent> extents;
  std::lock_guard lock(mapping);
  for (const SpillMap::Piece &piece : map->piecesOf(offset - before, before + bytes + behind)) {
    if (!extents.empty() && extents.back().offset + extents.back().bytes == piece.fileOffset)
      extents.back().bytes += piece.bytes;
    else
      extents.push_back({piece.fileOffset, piece.bytes});
  }
  if (extents.empty()) // of no bytes between two blocks
    return extents;
  extents.front().offset += before;
  extents.front().bytes -= before;
  extents.back().bytes -= behind;
  return extents;
}

/// Maps a part of the file to an offset. False, with what was there still there, where the system refuses.
bool SpillFile::Impl::show(uint64_t offset, uint64_t fileOffset, uint64_t bytes, bool isSealed) {
  int kind = isSealed && mayKeepStores() ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
  if (::mmap(data + offset, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, descriptors.cached, off_t(fileOffset)) ==
      MAP_FAILED)
    return false;
  adviseMapping(data + offset, bytes);
  return true;
}

/// Copies through the page cache, which sees what was written past it.
void SpillFile::Impl::copyBlocks(const SpillMap::Move &move) {
  std::vector<std::byte> buffer(std::min<uint64_t>(move.bytes, 1 << 20));
  for (uint64_t done = 0; done < move.bytes;) {
    size_t size = size_t(std::min<uint64_t>(buffer.size(), move.bytes - done));
    ssize_t count = ::pread(descriptors.cached, buffer.data(), size, off_t(move.from + done));
    if (count > 0)
      count = ::pwrite(descriptors.cached, buffer.data(), size_t(count), off_t(move.to + done));
    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0)
      throw Error(ErrorCode::IoFailed, folder.string() + ": sealed blocks of a spill file cannot be copied: " +
                                           std::strerror(count < 0 ? errno : EIO));
    done += uint64_t(count);
  }
}

/// Gives the sealed blocks of a range fresh ones, which hold what those do where the range has not all of a block,
/// or everywhere. Throws with nothing changed.
void SpillFile::Impl::renew(uint64_t offset, uint64_t bytes, bool copiesAll) {
  uint64_t first = offset / block * block, end = (offset + bytes + block - 1) / block * block;
  std::lock_guard lock(mapping);
  std::optional<std::vector<SpillMap::Move>> moves = map->movesFor(first, end - first);
  if (!moves)
    throw Error(ErrorCode::IoFailed, folder.string() + ": " + std::to_string(bytes) +
                                         " bytes of a spill file are sealed, and there are no spare blocks to write "
                                         "them to");
  for (const SpillMap::Move &move : *moves) {
    if (copiesAll) {
      copyBlocks(move);
      continue;
    }
    if (offset > move.offset && offset < move.offset + block)
      copyBlocks({0, move.from, move.to, block});
    uint64_t last = move.bytes - block;
    if (offset + bytes > move.offset + last && offset + bytes < move.offset + move.bytes)
      copyBlocks({0, move.from + last, move.to + last, block});
  }
  for (size_t i = 0; i < moves->size(); ++i) {
    const SpillMap::Move &move = (*moves)[i];
    if (show(move.offset, move.to, move.bytes, false))
      continue;
    int cause = errno;
    while (i-- > 0)
      show((*moves)[i].offset, (*moves)[i].from, (*moves)[i].bytes, true);
    throw Error(ErrorCode::IoFailed, folder.string() + ": blocks of a spill file cannot be mapped elsewhere: " +
                                         std::strerror(cause));
  }
  map->renew(*moves);
}

static std::unique_ptr<SpillEngine> makeEngine(const SpillDescriptors &descriptors, const SpillOptions &options,
                                               bool isForWrites) {
  std::unique_ptr<SpillEngine> engine;
  std::string refusal;
  if (options.engine != SpillOptions::Engine::Threads)
    engine = makeRingEngine(descriptors, options.depth, refusal);
  if (!engine && options.engine == SpillOptions::Engine::Ring)
    throw Error(ErrorCode::Unsupported, refusal + "; take the engine Threads, or Best");
  if (!engine)
    engine = makeThreadEngine(descriptors, options.depth);
  if (options.seam && options.seam->replaceEngine)
    engine = options.seam->replaceEngine(std::move(engine), isForWrites);
  return engine;
}

static void checkOptions(uint64_t capacityBytes, const SpillOptions &options) {
  constexpr uint64_t most = uint64_t(std::numeric_limits<off_t>::max()) / SpillFile::block * SpillFile::block;
  if (capacityBytes == 0 || capacityBytes > most)
    throw Error(ErrorCode::InvalidArgument,
                "a spill file of " + std::to_string(capacityBytes) + " bytes: its capacity is 1 to " +
                    std::to_string(most));
  if (options.depth == 0 || options.depth > 1024)
    throw Error(ErrorCode::InvalidArgument,
                "a spill file with " + std::to_string(options.depth) + " pieces in flight: 1 to 1024");
  constexpr uint32_t mostBytes = 1 << 30; // a count of bytes is an int
  if (options.pieceBytes == 0 || options.pieceBytes % SpillFile::block != 0 || options.pieceBytes > mostBytes)
    throw Error(ErrorCode::InvalidArgument, "a spill file with pieces of " + std::to_string(options.pieceBytes) +
                                                " bytes: they are multiples of " + std::to_string(SpillFile::block) +
                                                " up to " + std::to_string(mostBytes));
}

std::unique_ptr<SpillFile> SpillFile::open(const std::filesystem::path &folder, uint64_t capacityBytes,
                                           const SpillOptions &options) {
  checkOptions(capacityBytes, options);
  checkSpillFolder(folder);
  const SpillSeam seam = options.seam ? *options.seam : SpillSeam();
  auto impl = std::make_unique<Impl>();
  impl->folder = folder;
  impl->capacity = (capacityBytes + block - 1) / block * block;
  int cached = impl->descriptors.cached = openUnnamedFile(folder, seam);
  bool isReserved = reserveRoom(cached, folder, impl->capacity, seam);
  // Reading ahead would bring bytes that nobody asked for, while others write them.
  ::posix_fadvise(cached, 0, 0, POSIX_FADV_RANDOM);
  uint64_t addressAlignment = 1;
  if (options.mayBeDirect)
    impl->descriptors.direct = openDirect(cached, folder, addressAlignment);

  void *data = ::mmap(nullptr, impl->capacity, PROT_READ | PROT_WRITE, MAP_SHARED, cached, 0);
  if (data == MAP_FAILED)
    throw Error(ErrorCode::IoFailed, folder.string() + ": a spill file of " + spillSize(impl->capacity) +
                                         " cannot be mapped: " + std::strerror(errno));
  impl->data = static_cast<std::byte *>(data);
  adviseMapping(impl->data, impl->capacity);
  impl->map.emplace(impl->capacity);

  auto lane = [&](bool isForWrites) {
    return SpillLane(folder, impl->descriptors, addressAlignment, options.pieceBytes,
                     makeEngine(impl->descriptors, options, isForWrites), isForWrites, options.cachedBelow);
  };
  impl->reads.emplace(lane(false));
  impl->writes.emplace(lane(true));
  if (!isReserved) {
    // Written blocks have their room from then on, unless the system packs zeros.
    std::vector<std::byte> zeros(std::min<uint64_t>(impl->capacity, 8 << 20));
    auto zeroBytes = [&](uint64_t begin) { return std::min<uint64_t>(zeros.size(), impl->capacity - begin); };
    for (uint64_t begin = 0; begin < impl->capacity; begin += zeros.size())
      if (SpillFailure failure =
              impl->writes->tryTransfer(zeros.data(), std::array{SpillExtent{begin, zeroBytes(begin)}});
          failure.cause)
        throwNoRoom(cached, folder, impl->capacity, failure.cause);
    impl->writes->forgetTraffic();
  }
  return std::unique_ptr<SpillFile>(new SpillFile(std::move(impl)));
}

SpillFile::SpillFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SpillFile::~SpillFile() = default;

const std::filesystem::path &SpillFile::folder() const { return impl_->folder; }
uint64_t SpillFile::capacity() const { return impl_->capacity; }
std::byte *SpillFile::data() const { return impl_->data; }
bool SpillFile::isDirect() const { return impl_->descriptors.direct >= 0; }
std::string_view SpillFile::engine() const { return impl_->reads->engine().name(); }
SpillTraffic SpillFile::readTraffic() const { return impl_->reads->traffic(); }
SpillTraffic SpillFile::writeTraffic() const { return impl_->writes->traffic(); }

void SpillFile::read(void *target, uint64_t offset, uint64_t bytes) {
  impl_->checkRange(offset, bytes);
  impl_->reads->transfer(static_cast<std::byte *>(target), impl_->extentsOf(offset, bytes), offset);
}

void SpillFile::write(uint64_t offset, const void *source, uint64_t bytes) {
  impl_->checkRange(offset, bytes);
  if (bytes)
    impl_->renew(offset, bytes, /*copiesAll=*/false);
  // An operation has one kind of address; what is written is not changed.
  auto *memory = static_cast<std::byte *>(const_cast<void *>(source));
  impl_->writes->transfer(memory, impl_->extentsOf(offset, bytes), offset);
}

void SpillFile::expectLook(uint64_t offset, uint64_t bytes) {
  std::byte *begin = impl_->checkRange(offset, bytes);
  uint64_t before = offset % block;
  if (bytes)
    ::madvise(begin - before, bytes + before, MADV_WILLNEED);
}

void SpillFile::dropCached(uint64_t offset, uint64_t bytes) {
  std::byte *begin = impl_->checkRange(offset, bytes);
  if (bytes == 0)
    return;
  // Pages that are mapped or changed are not dropped: first they leave the mapping, then go to the disk.
  uint64_t before = offset % uint64_t(::sysconf(_SC_PAGESIZE));
  ::madvise(begin - before, bytes + before, MADV_DONTNEED);
  for (const SpillExtent &extent : impl_->extentsOf(offset, bytes)) {
    if (int cause = settlePages(impl_->descriptors.cached, extent.offset, extent.bytes))
      throw Error(ErrorCode::IoFailed, impl_->folder.string() + ": " + std::to_string(bytes) +
                                           " bytes of the spill file's mapping from " + std::to_string(offset) +
                                           " on cannot be written: " + std::strerror(cause));
    dropPages(impl_->descriptors.cached, extent.offset, extent.bytes);
  }
}

//===----------------------------------------------------------------------===//
// Seals
//===----------------------------------------------------------------------===//

void SpillFile::addSpare(uint64_t offset, uint64_t bytes) {
  impl_->checkRange(offset, bytes);
  if (offset % block || bytes % block)
    throw Error(ErrorCode::InvalidArgument, std::to_string(bytes) + " bytes of a spill file from " +
                                                std::to_string(offset) + " on are no whole blocks to be spare");
  std::lock_guard lock(impl_->mapping);
  impl_->map->addSpare(offset, bytes);
}

uint64_t SpillFile::spareBytes() const {
  std::lock_guard lock(impl_->mapping);
  return impl_->map->spareBytes();
}

/// Returns true if the file behind the descriptor is the one at `path`.
static bool isNameOf(const std::filesystem::path &path, int descriptor) {
  struct stat named, opened;
  return ::lstat(path.c_str(), &named) == 0 && ::fstat(descriptor, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

void SpillFile::keep(const std::string &name) {
  // A direct write is on its way to the disk when it returns, and may be in the disk's own cache.
  while (::fdatasync(impl_->descriptors.cached) != 0)
    if (errno != EINTR)
      throw Error(ErrorCode::IoFailed, impl_->folder.string() + ": a spill file cannot be brought to the disk: " +
                                           std::strerror(errno));
  if (std::filesystem::path before = path(); !before.empty()) {
    if (isNameOf(before, impl_->descriptors.cached))
      return;
    // A checkpoint that says where the file is would be lost with every seal from here on.
    throw Error(ErrorCode::Unsupported,
                before.string() + ": the spill file is not there any more; it or its folder was removed or has another "
                                  "name, so that nothing can be sealed in it");
  }
  if (block % uint64_t(::sysconf(_SC_PAGESIZE)) != 0)
    throw Error(ErrorCode::Unsupported, "nothing can be sealed on a system whose pages are larger than the blocks of a "
                                        "spill file (4096 bytes)");
  // The file is locked before it has a name, so that nobody finds it without its lock.
  if (::flock(impl_->descriptors.cached, LOCK_EX | LOCK_NB) != 0)
    throw Error(ErrorCode::IoFailed, impl_->folder.string() + ": a spill file cannot be locked: " +
                                         std::strerror(errno));
  impl_->sayNamed(false);
  nameFile(impl_->descriptors.cached, impl_->folder, name);
  std::lock_guard lock(impl_->mapping);
  impl_->name = name;
}

std::filesystem::path SpillFile::path() const {
  std::lock_guard lock(impl_->mapping);
  return impl_->name.empty() ? std::filesystem::path() : impl_->folder / impl_->name;
}

std::vector<SpillExtent> SpillFile::extentsOf(uint64_t offset, uint64_t bytes) const {
  impl_->checkRange(offset, bytes);
  return bytes ? impl_->extentsOf(offset, bytes) : std::vector<SpillExtent>();
}

void SpillFile::seal(const std::vector<SpillExtent> &ranges) {
  std::lock_guard lock(impl_->mapping);
  impl_->map->seal(ranges);
  if (!std::exchange(impl_->hasSeal, true))
    impl_->sayNamed(true);
  // A hint: where it cannot be mapped so, a store through the mapping changes what is sealed.
  for (const SpillExtent &range : ranges)
    for (const SpillMap::Piece &piece : impl_->map->piecesOf(range.offset, range.bytes))
      impl_->show(piece.offset, piece.fileOffset, piece.bytes, true);
}

uint64_t SpillFile::sealedBytes(uint64_t offset, uint64_t bytes) const {
  std::lock_guard lock(impl_->mapping);
  uint64_t sealed = 0;
  for (const SpillMap::Piece &piece : impl_->map->piecesOf(offset, bytes))
    sealed += piece.isSealed ? piece.bytes : 0;
  return sealed;
}

void SpillFile::unseal() {
  std::lock_guard lock(impl_->mapping);
  impl_->map->seal({});
  if (std::exchange(impl_->hasSeal, false))
    impl_->sayNamed(false);
}

void SpillFile::expectStores(uint64_t offset, uint64_t bytes) {
  impl_->checkRange(offset, bytes);
  if (bytes)
    impl_->renew(offset, bytes, /*copiesAll=*/true);
}

} // namespace segue::inline runtime
