//===- DramCompactor.h - moves tensors together in DRAM ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Makes one free range out of several: what lies between neighbouring ones slides
// to one side, in their order, so that nothing but what nobody may move stands in
// the way of an allocation for which there are bytes. A copy within the device costs
// far less than one over the link, so this comes before anybody is asked to leave.
//
// Belongs to a device with an arena of device_dram. DeviceMemory calls it, on the
// thread that submits.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TENSOR_DRAMCOMPACTOR_H
#define SEGUE_RUNTIME_TENSOR_DRAMCOMPACTOR_H

#include "segue/runtime/Memory/RawMemory.h"
#include "segue/runtime/Tensor/Compactor.h"
#include <atomic>
#include <optional>
#include <random>
#include <vector>

namespace segue::inline runtime {

class Device;

class DramCompactor final : public Compactor, public RangeMaker {
public:
  /// Makes the compactor of `device`, whose books call it from now on. `base` is the
  /// address of offset 0. With a seed, `stir` moves something at times.
  DramCompactor(Device &device, std::byte *base, std::optional<uint64_t> seed = std::nullopt);
  ~DramCompactor();

  /// Makes a range, moving as few bytes as sliding can. Returns false, with nothing moved,
  /// if no stretch between what must stay has as many free bytes.
  bool makeRange(uint64_t bytes, uint32_t alignment) override;

  /// Moves something at times, on adversarial devices.
  void stir() override;
  bool isRestless() const override { return random_.has_value(); }

  /// Return the number of calls that moved something, and that of bytes moved.
  uint64_t compactions() const { return compactions_.load(std::memory_order_relaxed); }
  uint64_t movedBytes() const { return movedBytes_.load(std::memory_order_relaxed); }

private:
  /// Neighbouring bytes of one kind, by address.
  struct Piece {
    enum class Kind : uint8_t { Free, Storage, Fixed } kind;
    uint64_t begin, bytes;
    segue::Storage *storage = nullptr;
    uint64_t end() const { return begin + bytes; }
  };
  enum class Side : uint8_t { Down, Up };
  /// The pieces from one free one to another, and the side to which those between are moved.
  struct Window {
    size_t first, last;
    Side side;
    uint64_t cost;
  };

  std::vector<Piece> survey() const;
  std::optional<uint64_t> costOf(const std::vector<Piece> &pieces, size_t first, size_t last, Side side, uint64_t bytes,
                                 uint64_t alignment) const;
  std::optional<Window> choose(const std::vector<Piece> &pieces, uint64_t bytes, uint64_t alignment) const;
  /// Returns false if somebody has taken the place since.
  bool slide(segue::Storage &storage, uint64_t from, uint64_t to);

  Device &device_;
  std::byte *base_;
  std::optional<std::mt19937_64> random_;
  std::atomic<uint64_t> compactions_{0}, movedBytes_{0};
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TENSOR_DRAMCOMPACTOR_H
