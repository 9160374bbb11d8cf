//===- SpillLane.cpp - the transfers of one direction ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SpillLane.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <thread>
#include <unistd.h>
#include <utility>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// The page cache
//===----------------------------------------------------------------------===//

int settlePages(int descriptor, uint64_t offset, uint64_t bytes) {
  constexpr unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  while (::sync_file_range(descriptor, off_t(offset), off_t(bytes), all) != 0)
    if (errno != EINTR)
      return errno;
  return 0;
}

void dropPages(int descriptor, uint64_t offset, uint64_t bytes) {
  uint64_t page = uint64_t(::sysconf(_SC_PAGESIZE)); // a part of one would stay
  uint64_t begin = offset / page * page, end = (offset + bytes + page - 1) / page * page;
  ::posix_fadvise(descriptor, off_t(begin), off_t(end - begin), POSIX_FADV_DONTNEED);
}

//===----------------------------------------------------------------------===//
// A transfer
//===----------------------------------------------------------------------===//

namespace {
/// An operation in flight, and what is to become of it.
struct Slot {
  SpillOperation operation;
  /// The caller's memory, where `operation.memory` is a buffer in its place.
  std::byte *bounced = nullptr;
  /// The offset at which the bytes begin that went through the page cache.
  uint64_t cachedBegin = 0;
  uint32_t tries = 0;
};
} // namespace

static uint64_t sizeOf(std::span<const SpillExtent> extents) {
  uint64_t bytes = 0;
  for (const SpillExtent &extent : extents)
    bytes += extent.bytes;
  return bytes;
}

struct SpillLane::State {
  bool next(Slot &slot);
  void begin(Slot &slot);
  void goOn(Slot &slot, int result);
  void end(Slot &slot);
  void fail(const Slot &slot, int cause);
  SpillFailure run(std::byte *memory, std::span<const SpillExtent> extents);

  std::filesystem::path folder;
  SpillDescriptors descriptors;
  uint64_t addressAlignment;
  uint32_t pieceBytes;
  std::unique_ptr<SpillEngine> engine;
  bool isForWrites;
  /// If above 0, small transfers go through the page cache, and what goes through it stays there.
  uint64_t cachedBelow;

  /// Held by whoever transfers.
  std::mutex turn;
  std::vector<Slot> slots;
  std::vector<uint32_t> idle;
  /// Aligned buffers that stand in for memory of callers that is not aligned, made when
  /// such memory comes: few small pieces, since they lie in memory for good.
  static constexpr uint32_t bouncePieces = 8, bounceBytes = 256 << 10;
  std::unique_ptr<std::byte, decltype(&std::free)> bounce{nullptr, &std::free};

  /// The rest of the transfer, which was not begun yet: of the extent at hand, and those behind it; nothing
  /// once it has failed.
  std::byte *memory = nullptr;
  uint64_t offset = 0, bytes = 0;
  std::span<const SpillExtent> behind;
  bool isBounced = false, isSmall = false;
  /// The failure of the piece that lies first in the file.
  SpillFailure failure;

  mutable std::mutex counting;
  SpillTraffic traffic;
};

/// Cuts the next operation off; false at the end of the transfer.
bool SpillLane::State::next(Slot &slot) {
  while (bytes == 0) {
    if (behind.empty())
      return false;
    offset = behind.front().offset;
    bytes = behind.front().bytes;
    behind = behind.subspan(1);
  }
  constexpr uint64_t block = SpillFile::block;
  SpillOperation &operation = slot.operation;
  operation.kind = isForWrites ? SpillOperation::Kind::Write : SpillOperation::Kind::Read;
  uint64_t odd = offset % block;
  operation.isCached = descriptors.direct < 0 || odd != 0 || bytes < block || isSmall;
  uint64_t size = isBounced ? std::min(pieceBytes, bounceBytes) : pieceBytes;
  if (odd != 0)
    size = block - odd;
  else if (!operation.isCached)
    size = std::min(size, bytes / block * block);
  size = std::min(size, bytes);
  operation.memory = memory;
  operation.offset = offset;
  operation.bytes = uint32_t(size);
  slot.cachedBegin = offset;
  slot.bounced = nullptr;
  slot.tries = 0;
  if (isBounced && !operation.isCached) {
    slot.bounced = memory;
    operation.memory = bounce.get() + size_t(operation.tag) * bounceBytes;
    if (isForWrites)
      std::memcpy(operation.memory, slot.bounced, size);
  }
  memory += size;
  offset += size;
  bytes -= size;
  return true;
}

/// The rest of the transfer is not begun any more.
void SpillLane::State::fail(const Slot &slot, int why) {
  if (failure.cause == 0 || slot.operation.offset < failure.offset)
    failure = {why, slot.operation.offset};
  bytes = 0;
  behind = {};
  idle.push_back(slot.operation.tag);
}

/// Takes the end of an operation that has done `result` bytes, or failed.
void SpillLane::State::goOn(Slot &slot, int result) {
  SpillOperation &operation = slot.operation;
  // The kernel gives up what its io_uring finds no thread for (ulimit -u).
  if (result == -ECANCELED)
    result = performSpillOperation(descriptors, operation);
  if (result == -EINTR || result == -EAGAIN) {
    constexpr uint32_t mostTries = 1000; // a second for a system that is short of something
    if (result == -EAGAIN) {
      if (++slot.tries > mostTries)
        return fail(slot, EAGAIN);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return failure.cause ? fail(slot, failure.cause) : engine->begin(operation);
  }
  if (operation.kind == SpillOperation::Kind::Settle) {
    if (result < 0)
      return fail(slot, -result);
    dropPages(descriptors.cached, operation.offset, operation.bytes);
    idle.push_back(operation.tag);
    return;
  }
  // An end of the file within it, or a disk that takes nothing and does not say why.
  if (result <= 0 || uint32_t(result) > operation.bytes)
    return fail(slot, result < 0 ? -result : EIO);
  operation.memory += result;
  operation.offset += uint64_t(result);
  operation.bytes -= uint32_t(result);
  if (operation.bytes != 0) {
    // The operation goes on where it stopped; within a block, only the page cache can do that.
    if (!operation.isCached && operation.offset % SpillFile::block != 0) {
      operation.isCached = true;
      slot.cachedBegin = operation.offset;
    }
    return failure.cause ? fail(slot, failure.cause) : engine->begin(operation);
  }
  end(slot);
}

/// All bytes of the slot are where they belong, or in the page cache.
void SpillLane::State::end(Slot &slot) {
  SpillOperation &operation = slot.operation;
  if (slot.bounced && !isForWrites) {
    std::byte *begin = bounce.get() + size_t(operation.tag) * bounceBytes;
    std::memcpy(slot.bounced, begin, size_t(operation.memory - begin));
  }
  uint32_t cachedBytes = operation.isCached && cachedBelow == 0 ? uint32_t(operation.offset - slot.cachedBegin) : 0;
  if (cachedBytes != 0 && isForWrites) {
    operation.kind = SpillOperation::Kind::Settle;
    operation.offset = slot.cachedBegin;
    operation.bytes = cachedBytes;
    return failure.cause ? fail(slot, failure.cause) : engine->begin(operation);
  }
  if (cachedBytes != 0)
    dropPages(descriptors.cached, slot.cachedBegin, cachedBytes);
  idle.push_back(operation.tag);
}

SpillFailure SpillLane::State::run(std::byte *to, std::span<const SpillExtent> extents) {
  memory = to;
  bytes = 0;
  behind = extents;
  failure = {};
  uint64_t at = extents.empty() ? 0 : extents.front().offset, size = sizeOf(extents);
  // Whole blocks begin where the first block does; their addresses are all aligned or none is.
  uint64_t first = (SpillFile::block - at % SpillFile::block) % SpillFile::block;
  isSmall = size < cachedBelow;
  isBounced = descriptors.direct >= 0 && !isSmall && size >= first + SpillFile::block &&
              (uintptr_t(to) + first) % addressAlignment != 0;
  uint32_t inFlightMost = uint32_t(slots.size());
  if (isBounced) {
    inFlightMost = std::min(inFlightMost, bouncePieces);
    if (!bounce)
      bounce.reset(static_cast<std::byte *>(std::aligned_alloc(SpillFile::block, size_t(bouncePieces) * bounceBytes)));
    if (!bounce)
      throw std::bad_alloc();
  }
  idle.clear();
  for (uint32_t tag = inFlightMost; tag-- > 0;)
    idle.push_back(tag);
  while (true) {
    while (!idle.empty() && next(slots[idle.back()])) {
      uint32_t tag = idle.back();
      idle.pop_back();
      engine->begin(slots[tag].operation);
    }
    if (idle.size() == inFlightMost)
      return failure;
    SpillEnd ended = engine->waitForOne();
    goOn(slots[ended.tag], ended.result);
  }
}

//===----------------------------------------------------------------------===//
// The lane
//===----------------------------------------------------------------------===//

SpillLane::SpillLane(std::filesystem::path folder, const SpillDescriptors &descriptors, uint64_t addressAlignment,
                     uint32_t pieceBytes, std::unique_ptr<SpillEngine> engine, bool isForWrites, uint64_t cachedBelow)
    : state_(std::make_unique<State>()) {
  state_->folder = std::move(folder);
  state_->descriptors = descriptors;
  state_->addressAlignment = addressAlignment;
  state_->pieceBytes = pieceBytes;
  state_->isForWrites = isForWrites;
  state_->cachedBelow = descriptors.direct >= 0 ? cachedBelow : 0;
  state_->slots.resize(engine->depth());
  state_->idle.reserve(engine->depth());
  for (uint32_t tag = 0; tag < engine->depth(); ++tag)
    state_->slots[tag].operation.tag = tag;
  state_->engine = std::move(engine);
}

SpillLane::~SpillLane() = default;
SpillLane::SpillLane(SpillLane &&other) noexcept = default;

const SpillEngine &SpillLane::engine() const { return *state_->engine; }
void SpillLane::abandon() { [[maybe_unused]] SpillEngine *forgotten = state_->engine.release(); }

SpillFailure SpillLane::tryTransfer(std::byte *memory, std::span<const SpillExtent> extents) {
  std::lock_guard lock(state_->turn);
  auto begin = std::chrono::steady_clock::now();
  SpillFailure failure = state_->run(memory, extents);
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::lock_guard counting(state_->counting);
  ++state_->traffic.calls;
  state_->traffic.bytes += failure.cause ? 0 : sizeOf(extents);
  state_->traffic.seconds += seconds.count();
  return failure;
}

void SpillLane::transfer(std::byte *memory, std::span<const SpillExtent> extents, uint64_t offset) {
  SpillFailure failure = tryTransfer(memory, extents);
  if (failure.cause == 0)
    return;
  std::string range = std::to_string(sizeOf(extents)) + " bytes of a spill file from " + std::to_string(offset) + " on";
  throw Error(ErrorCode::IoFailed, state_->folder.string() + ": " + range + " cannot be " +
                                       (state_->isForWrites ? "written" : "read") + ": " +
                                       std::strerror(failure.cause) + " (at " + std::to_string(failure.offset) + ")");
}

SpillTraffic SpillLane::traffic() const {
  std::lock_guard lock(state_->counting);
  return state_->traffic;
}

void SpillLane::forgetTraffic() {
  std::lock_guard lock(state_->counting);
  state_->traffic = {};
}

} // namespace segue::inline runtime
