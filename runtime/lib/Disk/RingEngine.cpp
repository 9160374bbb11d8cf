//===- RingEngine.cpp - operations by io_uring ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SpillEngine.h"
#include <string>

#if !SEGUE_LIBURING

namespace segue::inline runtime {

std::unique_ptr<SpillEngine> makeRingEngine(const SpillDescriptors &, uint32_t, std::string &refusal) {
  refusal = "this build of Segue has no liburing";
  return nullptr;
}

} // namespace segue::inline runtime

#else

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <liburing.h>
#include <thread>

namespace segue::inline runtime {

namespace {
class RingEngine : public SpillEngine {
public:
  ~RingEngine() override;
  /// Returns why there can be no ring; empty if there is one.
  std::string open(const SpillDescriptors &descriptors, uint32_t depth);

  std::string_view name() const override { return "io_uring"; }
  uint32_t depth() const override { return depth_; }
  void begin(const SpillOperation &operation) override;
  SpillEnd waitForOne() override;

private:
  bool takeOne(SpillEnd &end);

  io_uring ring_ = {};
  uint32_t depth_ = 0; // 0: no ring
  /// Tags of the entries that the kernel has not taken yet, in their order.
  std::deque<uint32_t> begun_;
  /// The errno with which the kernel has refused to take entries for good; 0: it takes them.
  int refusal_ = 0;
};
} // namespace

/// Places of the two descriptors in the ring's table.
static constexpr int cachedPlace = 0, directPlace = 1;

std::string RingEngine::open(const SpillDescriptors &descriptors, uint32_t depth) {
  if (int failed = io_uring_queue_init(depth, &ring_, 0); failed < 0)
    return std::string("the kernel refuses io_uring: ") + std::strerror(-failed);
  depth_ = depth;
  io_uring_probe *probe = io_uring_get_probe_ring(&ring_);
  bool hasAll = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                io_uring_opcode_supported(probe, IORING_OP_WRITE) &&
                io_uring_opcode_supported(probe, IORING_OP_SYNC_FILE_RANGE);
  if (probe)
    io_uring_free_probe(probe);
  if (!hasAll)
    return "the kernel's io_uring has no plain reads and writes (they came with Linux 5.6)";
  int both[2] = {descriptors.cached, descriptors.direct};
  if (int failed = io_uring_register_files(&ring_, both, descriptors.direct < 0 ? 1 : 2); failed < 0)
    return std::string("the kernel's io_uring takes no files: ") + std::strerror(-failed);
  return {};
}

RingEngine::~RingEngine() {
  if (depth_)
    io_uring_queue_exit(&ring_);
}

void RingEngine::begin(const SpillOperation &operation) {
  begun_.push_back(operation.tag);
  if (refusal_)
    return;
  io_uring_sqe *entry = io_uring_get_sqe(&ring_); // there are as many as may be in flight
  int place = operation.isCached ? cachedPlace : directPlace;
  switch (operation.kind) {
  case SpillOperation::Kind::Read:
    io_uring_prep_read(entry, place, operation.memory, operation.bytes, operation.offset);
    break;
  case SpillOperation::Kind::Write:
    io_uring_prep_write(entry, place, operation.memory, operation.bytes, operation.offset);
    break;
  case SpillOperation::Kind::Settle:
    io_uring_prep_sync_file_range(entry, place, operation.bytes, operation.offset,
                                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    break;
  }
  io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(entry, operation.tag);
}

bool RingEngine::takeOne(SpillEnd &end) {
  io_uring_cqe *entry = nullptr;
  if (io_uring_peek_cqe(&ring_, &entry) != 0)
    return false;
  end = {uint32_t(io_uring_cqe_get_data64(entry)), entry->res};
  io_uring_cqe_seen(&ring_, entry);
  return true;
}

SpillEnd RingEngine::waitForOne() {
  SpillEnd end;
  while (true) {
    if (refusal_ && !begun_.empty()) {
      end = {begun_.front(), -refusal_};
      begun_.pop_front();
      return end;
    }
    // Operations that were begun go to the kernel first, so that the disk has work while an end is looked at.
    int result = 0;
    if (!refusal_ && !begun_.empty())
      result = io_uring_submit(&ring_);
    if (result > 0)
      begun_.erase(begun_.begin(), begun_.begin() + result);
    if (takeOne(end))
      return end;
    if (result >= 0 && !refusal_) {
      io_uring_cqe *entry = nullptr;
      result = io_uring_wait_cqe(&ring_, &entry);
    }
    if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY && result != -ENOMEM)
      refusal_ = -result;
    if ((result < 0 && result != -EINTR) || refusal_) // short of memory; or what it took ends without being waited for
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::unique_ptr<SpillEngine> makeRingEngine(const SpillDescriptors &descriptors, uint32_t depth, std::string &refusal) {
  auto engine = std::make_unique<RingEngine>();
  refusal = engine->open(descriptors, depth);
  return refusal.empty() ? std::move(engine) : nullptr;
}

} // namespace segue::inline runtime

#endif
