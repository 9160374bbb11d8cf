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
#include "segue/runtime/Error.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace segue::inline runtime {

struct SpillFile::Impl {
  ~Impl();

  std::byte *checkRange(uint64_t offset, uint64_t bytes) const;

  /// A child of fork has the descriptors, and neither the threads nor a say in the file.
  pid_t owner = ::getpid();
  std::filesystem::path folder;
  uint64_t capacity = 0;
  SpillDescriptors descriptors;
  std::byte *data = nullptr;
  std::optional<SpillLane> reads, writes;
};

SpillFile::Impl::~Impl() {
  bool isOwner = ::getpid() == owner;
  for (std::optional<SpillLane> *lane : {&reads, &writes}) { // before the descriptors that they use
    if (*lane && !isOwner)
      (*lane)->abandon();
    lane->reset();
  }
  if (data)
    ::munmap(data, capacity);
  // The room goes back now: the kernel closes a ring, which has the file open too, when it finds the time.
  if (isOwner && descriptors.cached >= 0)
    [[maybe_unused]] int ignored = ::ftruncate(descriptors.cached, 0);
  for (int descriptor : {descriptors.direct, descriptors.cached})
    if (descriptor >= 0)
      ::close(descriptor);
}

/// Returns the address of the range.
std::byte *SpillFile::Impl::checkRange(uint64_t offset, uint64_t bytes) const {
  if (offset > capacity || bytes > capacity - offset)
    throw Error(ErrorCode::InvalidArgument, "a range of " + std::to_string(bytes) + " bytes at " +
                                                std::to_string(offset) + " ends behind the spill file of " +
                                                std::to_string(capacity) + " bytes in " + folder.string());
  return data + offset;
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
  // A fault brings one page and never a larger one, in which a store to a range would make
  // stale bytes of its neighbour dirty while that is written directly.
  ::madvise(data, impl->capacity, MADV_RANDOM);
  ::madvise(data, impl->capacity, MADV_DONTDUMP);

  auto lane = [&](bool isForWrites) {
    return SpillLane(folder, impl->descriptors, addressAlignment, options.pieceBytes,
                     makeEngine(impl->descriptors, options, isForWrites), isForWrites, options.cachedBelow);
  };
  impl->reads.emplace(lane(false));
  impl->writes.emplace(lane(true));
  if (!isReserved) {
    // Written blocks have their room from then on, unless the system packs zeros.
    std::vector<std::byte> zeros(std::min<uint64_t>(impl->capacity, 8 << 20));
    for (uint64_t begin = 0; begin < impl->capacity; begin += zeros.size())
      if (SpillFailure failure =
              impl->writes->tryTransfer(zeros.data(), begin, std::min(zeros.size(), impl->capacity - begin));
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
  impl_->reads->transfer(static_cast<std::byte *>(target), offset, bytes);
}

void SpillFile::write(uint64_t offset, const void *source, uint64_t bytes) {
  impl_->checkRange(offset, bytes);
  // An operation has one kind of address; what is written is not changed.
  impl_->writes->transfer(static_cast<std::byte *>(const_cast<void *>(source)), offset, bytes);
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
  if (int cause = settlePages(impl_->descriptors.cached, offset, bytes))
    throw Error(ErrorCode::IoFailed, impl_->folder.string() + ": " + std::to_string(bytes) +
                                         " bytes of the spill file's mapping from " + std::to_string(offset) +
                                         " on cannot be written: " + std::strerror(cause));
  dropPages(impl_->descriptors.cached, offset, bytes);
}

} // namespace segue::inline runtime
