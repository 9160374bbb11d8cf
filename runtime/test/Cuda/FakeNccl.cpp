//===- FakeNccl.cpp - NCCL without GPUs -----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A library in the place of libnccl.so.2 on the fake driver, with whose streams and memory
// it works: a call is two operations of its stream, one that reads what the rank brings as
// soon as there is room for it, and one that writes the result when all ranks have come,
// each in whatever order that may run. Ranks are threads of a process or processes of a
// machine; what they share lies in a file in memory, which their id names.
//
// It behaves as a library may at its worst. A communicator does not block: by chance a call
// is not there when it returns, and nothing lies in the stream until the communicator is
// asked for its state. A rank that does not come is waited for without end. Sums of three
// ranks and more begin with another rank in each call. Memory is taken with the communicator
// and once more with its first group.
//
// Calls fail where a test says so (failCalls of FakeCuda.h), and are told as misuse where
// the library would hang, or do what nobody wants: ranks whose calls differ, memory of
// another GPU or of the host, a communicator that was ended or is busy, another context.
//
//===----------------------------------------------------------------------===//

#include "../../lib/Cuda/Nccl/NcclApi.h"
#include "FakeGpu.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

using namespace fakecuda;

static constexpr int mostRanks = 8;
/// So many calls of a communicator are under way at once, each with so many bytes of a rank.
static constexpr uint64_t callsUnderWay = 2, mostBytes = 64 << 20;
/// The bytes that a communicator takes of its GPU, and that its first group takes.
static constexpr uint64_t bytesOfInit = 4 << 20, bytesOfFirstGroup = 2 << 20;

namespace {
/// A Call is what a rank asks for; all ranks have to ask for the same.
struct Call {
  enum Kind : int { AllReduce, Reduce, Broadcast, ReduceScatter, AllGather };
  int kind, type, root, padding;
  uint64_t count;
  bool operator==(const Call &) const = default;
};

struct Slot {
  /// The number of the call that a rank has brought its part of, and that it has done with; from 1.
  std::atomic<uint64_t> brought[mostRanks], left[mostRanks];
  Call calls[mostRanks];
};

/// The memory that the ranks of a communicator share.
struct Shared {
  std::atomic<int> here[mostRanks], left[mostRanks];
  Slot slots[callsUnderWay];

  std::byte *bytesOf(uint64_t slot, int rank) {
    return reinterpret_cast<std::byte *>(this) + inPages(sizeof(Shared)) +
           (slot * mostRanks + uint64_t(rank)) * mostBytes;
  }
  static constexpr uint64_t inPages(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  static constexpr uint64_t fileBytes() { return inPages(sizeof(Shared)) + callsUnderWay * mostRanks * mostBytes; }
};

/// A call that a stream has not been given yet.
struct Waiting {
  Call call;
  uint64_t from, to;
  CUstream stream;
};
} // namespace

namespace segue::inline runtime::cuda {
struct ncclComm {
  Device *device = nullptr;
  Shared *shared = nullptr;
  int rank = 0, ranks = 0;
  uint64_t lastCall = 0, taken = 0;
  bool isThere = false, isEnded = false, isFinal = false;
  /// How often its state is still asked for before a call is there, and the calls.
  int asks = 0;
  std::vector<Waiting> waiting;
  ncclResult_t state = ncclOk;
};
} // namespace segue::inline runtime::cuda

/// What has been made and not ended. Nothing is ever deleted, so that no address comes twice.
static auto &living = *new std::set<const void *>;
static thread_local int groups = 0;
static thread_local std::vector<ncclComm_t> inGroup;

/// The files of ids that this process has made; those of groups that never met go with it.
static auto &files = *new std::vector<std::string>;
static const struct AtEnd {
  ~AtEnd() {
    for (const std::string &file : files)
      shm_unlink(file.c_str());
  }
} atEnd;

static ncclResult_t misused(const std::string &what) {
  misdeeds += what + "\n";
  return ncclBadUsage;
}

static std::optional<ncclResult_t> failure(const char *call, bool needsContext = true) {
  std::optional<CUresult> failed = enter(call, needsContext);
  if (failed && current && *failed == current->ended)
    return ncclCudaError;
  return failed;
}

#define ENTER(call, ...)                                                                                               \
  std::unique_lock held(lock);                                                                                         \
  if (auto failed = failure(#call __VA_OPT__(, ) __VA_ARGS__))                                                         \
  return *failed

static std::string nameOf(const Call &call) {
  static constexpr const char *names[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclReduceScatter",
                                          "ncclAllGather"};
  return std::string(names[call.kind]) + " of " + std::to_string(call.count) + " of type " +
         std::to_string(call.type) + (call.root < 0 ? "" : " by rank " + std::to_string(call.root));
}

static uint64_t elementBytes(int type) { return type == ncclFloats ? 4 : 1; }

/// The bytes that a rank brings, and that it gets.
static uint64_t broughtBytes(const ncclComm &comm, const Call &call) {
  uint64_t bytes = call.count * elementBytes(call.type);
  if (call.kind == Call::Broadcast)
    return comm.rank == call.root ? bytes : 0;
  return call.kind == Call::ReduceScatter ? bytes * uint64_t(comm.ranks) : bytes;
}
static uint64_t gottenBytes(const ncclComm &comm, const Call &call, bool isInPlace) {
  uint64_t bytes = call.count * elementBytes(call.type);
  if (call.kind == Call::Reduce)
    return comm.rank == call.root ? bytes : 0;
  if (call.kind == Call::Broadcast && isInPlace) // the root's memory stays as it is
    return comm.rank == call.root ? 0 : bytes;
  return call.kind == Call::AllGather ? bytes * uint64_t(comm.ranks) : bytes;
}

//===----------------------------------------------------------------------===//
// What a call does
//===----------------------------------------------------------------------===//

/// Returns true if the ranks have called the same. One of a pair that has not tells it.
static bool callSame(ncclComm &comm, const Slot &slot) {
  for (int other = 0; other < comm.ranks; ++other)
    if (!(slot.calls[other] == slot.calls[comm.rank])) {
      if (comm.rank < other)
        misdeeds += "rank " + std::to_string(comm.rank) + " calls " + nameOf(slot.calls[comm.rank]) + ", and rank " +
                    std::to_string(other) + " " + nameOf(slot.calls[other]) + "\n";
      return false;
    }
  return true;
}

/// Adds what all ranks have brought from byte `first` on, beginning with another rank in each call.
static void addAll(ncclComm &comm, uint64_t slot, uint64_t number, const Call &call, uint64_t first, std::byte *to) {
  for (uint64_t i = 0; i < call.count; ++i) {
    float sum = 0;
    for (int turn = 0; turn < comm.ranks; ++turn) {
      float value;
      int rank = int((uint64_t(turn) + number) % uint64_t(comm.ranks));
      std::memcpy(&value, comm.shared->bytesOf(slot, rank) + first + 4 * i, 4);
      sum = turn ? sum + value : value;
    }
    std::memcpy(to + 4 * i, &sum, 4);
  }
}

static void finish(ncclComm &comm, uint64_t slot, uint64_t number, const Waiting &each) {
  Shared &shared = *comm.shared;
  uint64_t bytes = gottenBytes(comm, each.call, each.from == each.to);
  if (bytes) {
    auto *to = static_cast<std::byte *>(at(each.to, bytes));
    switch (each.call.kind) {
    case Call::AllReduce:
    case Call::Reduce:
      addAll(comm, slot, number, each.call, 0, to);
      break;
    case Call::ReduceScatter:
      addAll(comm, slot, number, each.call, uint64_t(comm.rank) * bytes, to);
      break;
    case Call::Broadcast:
      std::memmove(to, shared.bytesOf(slot, each.call.root), bytes);
      break;
    case Call::AllGather:
      for (int rank = 0; rank < comm.ranks; ++rank)
        std::memcpy(to + uint64_t(rank) * bytes / uint64_t(comm.ranks), shared.bytesOf(slot, rank),
                    bytes / uint64_t(comm.ranks));
    }
  }
  shared.slots[slot].left[comm.rank] = number;
}

/// Gives a call to its stream.
static void giveCall(ncclComm &comm, const Waiting &each) {
  uint64_t number = ++comm.lastCall, slot = number % callsUnderWay;
  auto all = [&comm](const std::atomic<uint64_t>(&numbers)[mostRanks], uint64_t least) {
    return std::all_of(numbers, numbers + comm.ranks, [&](const auto &each) { return each.load() >= least; });
  };
  auto hasRoom = [&comm, slot, number, all] {
    return comm.isEnded || all(comm.shared->slots[slot].left, number < callsUnderWay ? 0 : number - callsUnderWay);
  };
  auto areHere = [&comm, slot, number, all] {
    return comm.isEnded || all(comm.shared->slots[slot].brought, number);
  };
  uint64_t brought = broughtBytes(comm, each.call), gotten = gottenBytes(comm, each.call, each.from == each.to);
  const char *name = "a call of NCCL";
  std::vector<Access> reads, writes;
  if (brought)
    reads.push_back({Access::Kind::Reads, each.from, brought});
  if (gotten)
    writes.push_back({Access::Kind::Writes, each.to, gotten});
  give(each.stream, {.run =
                         [&comm, slot, number, each, brought] {
                           if (comm.isEnded)
                             return;
                           if (brought)
                             std::memcpy(comm.shared->bytesOf(slot, comm.rank), at(each.from, brought), brought);
                           comm.shared->slots[slot].calls[comm.rank] = each.call;
                           comm.shared->slots[slot].brought[comm.rank] = number;
                         },
                     .call = name,
                     .accesses = reads,
                     .hasCome = hasRoom});
  give(each.stream, {.run =
                         [&comm, slot, number, each] {
                           if (comm.isEnded)
                             return;
                           if (callSame(comm, comm.shared->slots[slot]))
                             return finish(comm, slot, number, each);
                           comm.state = ncclInternalFailed;
                           comm.shared->slots[slot].left[comm.rank] = number;
                         },
                     .call = name,
                     .accesses = writes,
                     .hasCome = areHere});
}

static void giveWaiting(ncclComm &comm) {
  for (const Waiting &each : comm.waiting)
    giveCall(comm, each);
  comm.waiting.clear();
}

/// Lets a call be there after so many questions, by chance at once.
static ncclResult_t later(ncclComm &comm) {
  comm.asks = int(comm.device->random() % 4);
  if (comm.asks)
    return ncclNotYet;
  giveWaiting(comm);
  return ncclOk;
}

static void takeBytes(ncclComm &comm, uint64_t bytes) {
  comm.taken += bytes;
  comm.device->taken += bytes;
}

static void endComm(ncclComm &comm) {
  living.erase(&comm);
  comm.isEnded = true;
  comm.device->taken -= comm.taken;
  comm.shared->left[comm.rank] = 1;
  munmap(std::exchange(comm.shared, nullptr), Shared::fileBytes());
  changed.notify_all();
}

/// Notes a call, or says why it cannot be.
static ncclResult_t noteCall(const char *name, ncclComm_t comm, Call call, const void *from, void *to,
                             CUstream stream) {
  if (!living.contains(comm))
    return misused(std::string(name) + " of a communicator that was ended");
  if (comm->asks || !comm->isThere)
    return misused(std::string(name) + " of a communicator that is busy");
  if (comm->isFinal)
    return misused(std::string(name) + " of a communicator that was finalized");
  if (current != comm->device || reinterpret_cast<Stream *>(stream)->device != comm->device)
    return misused(std::string(name) + " on another GPU than that of the communicator");
  if (call.root >= comm->ranks || (call.type != ncclFloats && call.type != ncclBytes))
    return ncclBadArgument;
  if (call.count * elementBytes(call.type) * uint64_t(comm->ranks) > mostBytes)
    return misused(std::string(name) + " of more bytes than the fake has room for");
  auto isOfGpu = [&](const void *data, uint64_t bytes) {
    auto address = reinterpret_cast<uint64_t>(data);
    auto mapping = mappings.find(address / chunk * chunk);
    return !bytes || (isMapped(address, bytes) && chunkDevices[mapping->second.handle] == comm->device);
  };
  if (!isOfGpu(from, broughtBytes(*comm, call)) || !isOfGpu(to, gottenBytes(*comm, call, from == to)))
    return misused(std::string(name) + " of memory that is not the GPU's");
  comm->waiting.push_back({call, reinterpret_cast<uint64_t>(from), reinterpret_cast<uint64_t>(to), stream});
  if (std::ranges::find(inGroup, comm) == inGroup.end())
    inGroup.push_back(comm);
  return ncclOk;
}

static ncclResult_t endGroup() {
  ncclResult_t result = ncclOk;
  for (ncclComm_t comm : std::exchange(inGroup, {})) {
    if (comm->taken == bytesOfInit)
      takeBytes(*comm, bytesOfFirstGroup);
    if (ncclResult_t each = later(*comm))
      result = each;
  }
  return result;
}

//===----------------------------------------------------------------------===//
// The library's functions
//===----------------------------------------------------------------------===//

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGetVersion(int *version) {
  *version = numberOf("FAKE_NCCL_VERSION", 22707);
  return ncclOk;
}

const char *ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteFailed ? "remote process exited or there was a network error" : "an error of the fake";
}

const char *ncclGetLastError(ncclComm_t) { return "the fake knows no more"; }

ncclResult_t ncclGetUniqueId(NcclId *id) {
  ENTER(ncclGetUniqueId, false);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  std::snprintf(id->bytes, sizeof(id->bytes), "/segue-fake-nccl-%d-%d", int(getpid()), int(files.size()));
  files.push_back(id->bytes);
  int file = shm_open(id->bytes, O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0 || ftruncate(file, off_t(Shared::fileBytes())))
    return ncclSystemFailed;
  close(file);
  return ncclOk;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *made, int ranks, NcclId id, int rank, NcclConfig *config) {
  ENTER(ncclCommInitRankConfig);
  *made = nullptr;
  if (!config || config->magic != NcclConfig().magic || config->size != sizeof(NcclConfig) || config->blocking ||
      ranks < 1 || ranks > mostRanks || rank < 0 || rank >= ranks)
    return ncclBadArgument;
  int file = shm_open(id.bytes, O_RDWR, 0600);
  if (file < 0)
    return ncclSystemFailed;
  void *data = mmap(nullptr, Shared::fileBytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (data == MAP_FAILED)
    return ncclSystemFailed;
  auto *comm = new ncclComm;
  comm->device = current;
  comm->shared = static_cast<Shared *>(data);
  comm->rank = rank, comm->ranks = ranks;
  comm->asks = 1 + int(current->random() % 4);
  living.insert(comm);
  takeBytes(*comm, bytesOfInit);
  *made = comm;
  comm->shared->here[rank] = current->number + 1;
  auto isHere = [](const std::atomic<int> &number) { return number.load() > 0; };
  if (std::all_of(comm->shared->here, comm->shared->here + ranks, isHere))
    shm_unlink(id.bytes); // all have it
  return ncclNotYet;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
  ENTER(ncclCommGetAsyncError);
  if (!living.contains(comm))
    return misused("ncclCommGetAsyncError of a communicator that was ended");
  Shared &shared = *comm->shared;
  auto all = [&](const std::atomic<int>(&numbers)[mostRanks]) {
    return std::all_of(numbers, numbers + comm->ranks, [](const auto &number) { return number.load() != 0; });
  };
  if (!comm->isThere) {
    *state = ncclNotYet;
    if (!all(shared.here) || --comm->asks > 0)
      return ncclOk;
    comm->asks = 0;
    comm->isThere = true;
    std::set<int> gpus(shared.here, shared.here + comm->ranks);
    if (int(gpus.size()) != comm->ranks) // of one process; others have others
      comm->state = ncclBadUsage;
  } else if (comm->asks && --comm->asks == 0) {
    giveWaiting(*comm);
  }
  bool isBusy = comm->asks || (comm->isFinal && !all(shared.left));
  *state = comm->state ? comm->state : isBusy ? ncclNotYet : ncclOk;
  return ncclOk;
}

/// Is done when all ranks have called it, or were ended.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  ENTER(ncclCommFinalize);
  if (!living.contains(comm) || comm->asks)
    return misused("ncclCommFinalize of a communicator that was ended or is busy");
  comm->isFinal = true;
  comm->shared->left[comm->rank] = 1;
  return ncclNotYet;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  ENTER(ncclCommDestroy);
  if (!living.contains(comm))
    return misused("ncclCommDestroy of a communicator that was ended");
  if (!comm->isFinal)
    return misused("ncclCommDestroy of a communicator that was not finalized");
  endComm(*comm);
  return ncclOk;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ENTER(ncclCommAbort, false);
  if (!living.contains(comm))
    return misused("ncclCommAbort of a communicator that was ended");
  endComm(*comm);
  return ncclOk;
}

ncclResult_t ncclGroupStart() {
  ENTER(ncclGroupStart, false);
  ++groups;
  return ncclOk;
}

ncclResult_t ncclGroupEnd() {
  std::unique_lock held(lock);
  if (auto failed = failure("ncclGroupEnd", false)) { // nothing of the group is given then
    groups = 0;
    for (ncclComm_t comm : std::exchange(inGroup, {}))
      comm->waiting.clear();
    return *failed;
  }
  if (!groups)
    return misused("ncclGroupEnd without a beginning");
  return --groups ? ncclOk : endGroup();
}

static ncclResult_t called(ncclResult_t noted) { return noted || groups ? noted : endGroup(); }

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type, int, ncclComm_t comm, CUstream stream) {
  ENTER(ncclAllReduce);
  return called(noteCall("ncclAllReduce", comm, {Call::AllReduce, type, -1, 0, count}, from, to, stream));
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, int type, int, int root, ncclComm_t comm,
                        CUstream stream) {
  ENTER(ncclReduce);
  return called(noteCall("ncclReduce", comm, {Call::Reduce, type, root, 0, count}, from, to, stream));
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, int type, int root, ncclComm_t comm,
                           CUstream stream) {
  ENTER(ncclBroadcast);
  return called(noteCall("ncclBroadcast", comm, {Call::Broadcast, type, root, 0, count}, from, to, stream));
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, int type, int, ncclComm_t comm,
                               CUstream stream) {
  ENTER(ncclReduceScatter);
  return called(noteCall("ncclReduceScatter", comm, {Call::ReduceScatter, type, -1, 0, count}, from, to, stream));
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t comm, CUstream stream) {
  ENTER(ncclAllGather);
  return called(noteCall("ncclAllGather", comm, {Call::AllGather, type, -1, 0, count}, from, to, stream));
}

} // extern "C"
#pragma GCC visibility pop
