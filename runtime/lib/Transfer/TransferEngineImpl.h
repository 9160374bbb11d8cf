//===- TransferEngineImpl.h - the inside of the transfer engine -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// TransferEngine.cpp (decisions) and Hops.cpp (queued work) share this.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TRANSFER_TRANSFERENGINEIMPL_H
#define SEGUE_LIB_TRANSFER_TRANSFERENGINEIMPL_H

#include "DerivedCache.h"
#include "StagedCopy.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <deque>
#include <set>
#include <unordered_map>

namespace segue::inline runtime {

/// Memory between two steps of a transfer. It is given back when this goes, with the fence
/// of what was queued to use it.
class PassingMemory {
public:
  PassingMemory() = default;
  PassingMemory(Device &device, Space space, uint64_t bytes, MemoryBlock block)
      : device_(&device), space_(space), bytes_(bytes), block_(block), used_(block.after) {}
  PassingMemory(PassingMemory &&other) noexcept { *this = std::move(other); }
  PassingMemory &operator=(PassingMemory &&other) noexcept;
  ~PassingMemory();

  static PassingMemory take(Device &device, Space space, uint64_t bytes, OwnerId owner);
  /// Takes memory; the data is null if there is none left.
  static PassingMemory tryTake(Device &device, Space space, uint64_t bytes, OwnerId owner);

  std::byte *data() const { return static_cast<std::byte *>(block_.data); }
  /// Returns the fence that new work on it waits for.
  const Fence &used() const { return used_; }
  void addUse(const Fence &fence) { used_.join(fence); }

private:
  static constexpr uint32_t alignment = 512;

  Device *device_ = nullptr;
  Space space_ = Space::Host;
  uint64_t bytes_ = 0;
  MemoryBlock block_;
  Fence used_;
};

struct TransferEngine::Impl {
  Impl(TransferEngine &engine, Device &device);

  Alignment toLayout(const DeviceRef &device, Tensor &tensor, const std::shared_ptr<const TensorDesc> &wanted,
                     const TransferOptions &options);
  void moveWithinL1(const DeviceRef &device, Tensor &tensor, const std::shared_ptr<const TensorDesc> &wanted,
                    const TransferOptions &options);
  Tensor copy(const DeviceRef &device, const Tensor &source, const std::shared_ptr<const TensorDesc> &wanted,
              const TransferOptions &options);

  void noteLossy(const TensorDesc &given, const TensorDesc &wanted, const TransferOptions &options);

  // Hops.cpp

  /// Page-locked buffers between the link and a disk, which take turns and go with the device.
  struct PassingBuffers {
    struct Buffer {
      std::byte *data;
      /// The work that uses it last.
      Fence used;
    };
    std::vector<Buffer> buffers;
    size_t next = 0;
    Buffer &takeTurn() { return buffers[next++ % buffers.size()]; }
  };
  void takePassingBuffers();

  struct Staging {
    std::vector<PassingMemory> memory;
    std::vector<std::byte *> addresses;
    uint64_t chunkBytes = 0;
  };
  struct Chain;

  /// Gives the steps to the queues, or does them where the device works inline. Returns
  /// false, with nothing done, if the gate denied its hop. Throws DeviceOom before anything
  /// is queued.
  bool run(std::shared_ptr<const TransferPlan> plan, const Tensor &source, const Tensor &target,
           const TransferOptions &options);
  void count(const TransferPlan &plan);
  std::shared_ptr<CopyRecord> traceStep(const TransferStep &step, Queue queue, const std::string &from,
                                        const TransferOptions &options);
  Staging takeStaging(const TransferStep &step);
  class Tries;
  struct Edges {
    Fence read, written;
  };
  /// Queues a step that passes the host, chunk by chunk, once `source` is written and `target` is
  /// free. Returns what has then read the one and written the other. `linkSeconds` may be null.
  Edges passHost(const std::shared_ptr<Chain> &chain, size_t step, const std::byte *read, std::byte *written,
                 const Fence &source, const Fence &target, const std::string &from,
                 const std::shared_ptr<double> &linkSeconds, const TransferOptions &options);
  void giveLink(const TransferStep &step, Chain &chain, std::byte *to, const std::byte *from);
  void countCarried(Queue queue, uint64_t bytes, double seconds);
  /// Asks the gate for a token; returns nothing if the gate denied it.
  std::optional<uint64_t> acquire(const TransferStep &link, TransferPriority priority);
  /// Tells the gate of hops that are done; with `all`, waits for them.
  void finishHops(bool all);
  bool isHostReadable(const Tensor &tensor) const;

  TransferEngine &engine;
  Device &device;
  DerivedCache cache;
  DeviceMemory::RoomMakerHandle roomMaker;
  /// The owner of memory that is taken between steps.
  OwnerId stagingOwner;
  PassingBuffers toDeviceBuffers, toDiskBuffers;
  uint64_t passingChunkBytes = 0;

  struct PlanEntry {
    TensorDesc given, wanted;
    bool forced;
    std::shared_ptr<const TransferPlan> plan;
  };
  std::mutex plansMutex;
  std::unordered_multimap<uint64_t, PlanEntry> plans;

  /// The copiers, one per direction; the work of its queue alone uses each.
  HostCopier toDeviceCopier, toHostCopier;

  /// The hops that the gate is told of, oldest first.
  struct InFlight {
    std::optional<uint64_t> token; // none if it was planned
    Queue queue;
    uint64_t bytes;
    Fence fence;
    std::shared_ptr<double> seconds;
    std::shared_ptr<Outcome> target;
  };
  TransferGate *gate = nullptr;
  std::deque<InFlight> inFlight;

  std::function<void(const std::string &)> warn;
  /// Sentences that were warned of already.
  std::set<std::string> warned;

  std::mutex traceMutex;
  std::deque<std::shared_ptr<CopyRecord>> trace;

  /// The sums as of the last telemetry line.
  struct Recorded {
    uint64_t submits = 0, inputs = 0, inputsElided = 0, inputsConverted = 0, cacheHits = 0;
    uint64_t h2dBytes = 0, d2hBytes = 0, d2dBytes = 0, hostBytes = 0;
    uint64_t bounces = 0, donationsIgnored = 0, lossyCasts = 0, waitNanoseconds = 0, alignNanoseconds = 0;
    uint64_t l1Compactions = 0, l1Fallbacks = 0;
  } recorded;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_TRANSFER_TRANSFERENGINEIMPL_H
