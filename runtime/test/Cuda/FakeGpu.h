//===- FakeGpu.h - the GPUs behind a fake CUDA driver -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What is given to the streams of a GPU, and its memory. One lock for everything but host
// functions, which run without it. The fake cuBLASLt is a library of its own that works with it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_CUDA_FAKEGPU_H
#define SEGUE_TEST_CUDA_FAKEGPU_H

#include "../../lib/Cuda/DriverApi.h"
#include "FakeCuda.h"
#include "FakeOrder.h"
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <vector>

#pragma GCC visibility push(default)
namespace fakecuda {
using namespace segue::cuda;

constexpr uint64_t chunk = 2 << 20, capacity = 256 << 20;
/// What the L2 cache keeps at most.
constexpr uint64_t keptCacheBytes = 8 << 20;
constexpr int deviceCount = 24, deviceWithoutMaps = 8, processors = 4, threadsPerProcessor = 2048;
constexpr CUresult invalidContext = 201, alreadyMapped = 208, captureUnsupported = 900, captureInvalidated = 901;

struct Failing {
  CUresult result;
  unsigned skipped, count;
};

struct Device;
struct Event {
  Device *device;
  uint64_t recorded = 0, passed = 0;
  double time = 0;
  /// What comes before it, as it was recorded last.
  Clock clock = {};
};

struct Operation {
  /// Nothing, or what it does; a wait and a record do nothing else.
  std::function<void()> run, hostFunction;
  Event *waitsFor = nullptr, *records = nullptr;
  uint64_t version = 0;
  /// The call that gave it, and what it does to memory.
  const char *call = "";
  std::vector<Access> accesses = {};
  /// Of a host function: what its end says has ended, too.
  Clock before = {};
  /// Null, or says whether a word that it waits for has come.
  std::function<bool()> hasCome = {};
};

/// What a capture has recorded, in order.
struct Graph {
  std::vector<Operation> works;
  bool isSpoiled = false;
};
struct GraphExec {
  std::vector<Operation> works;
  /// The works of launches that have not been done.
  uint64_t pending = 0;
};

struct Stream {
  Device *device;
  std::deque<Operation> operations;
  bool isRunning = false;
  uint64_t given = 0, done = 0;
  /// Where its work goes while it is captured.
  std::optional<Graph> capture = std::nullopt;
  /// The bytes of the range that its kernels keep in the cache.
  uint64_t keptBytes = 0;
  /// What its next operation waits for, of other streams.
  Clock clock = {};
};

struct Module {
  Device *device;
  std::string image;
};
struct Function {
  std::string name;
  /// By parameter, what its value is a multiple of.
  std::vector<uint64_t> alignments;
  int threads = 1024, required = 0, localBytes = 0;
  fakecuda::Kernel kernel = nullptr;
  /// A kernel of the compiler, where there is no `kernel` of that name.
  segue::TwinEntry twin = nullptr;
  const BuiltinTwin *builtin = nullptr;
};

struct Range {
  uint64_t bytes;
  std::byte *shadow;
};
struct Physical {
  uint64_t slot, bytes;
  int mappings = 0;
  bool isReleased = false;
};
struct Mapping {
  CUmemHandle handle;
  bool isAccessible = false;
};

enum class Mood { Lazy, Eager, Fair, Favour, Starve };

struct Device {
  int number = 0;
  CUresult ended = success;
  uint64_t taken = 0, stackLimit = 1024, keptCache = 0;
  int retained = 0;
  std::vector<Stream *> streams;
  /// What the host has seen the end of, and what it has not.
  Clock seen;
  std::vector<PendingAccess> pending;
  std::mt19937_64 random;
  Mood mood = Mood::Fair;
  Stream *moodStream = nullptr;
  int moodLeft = 0;
  /// Streams that somebody waits for.
  std::multiset<Stream *> wanted;
  bool isStarted = false;
  std::deque<std::pair<Stream *, Operation>> hostFunctions;
  int memory = -1;
  std::set<uint64_t> freeSlots;
  uint64_t slots = 0;
};

// None of these is ever destroyed: threads of GPUs wait on them when the process ends.
extern std::mutex &lock;
extern std::condition_variable &changed;
extern std::string &misdeeds;
extern std::map<std::string, Failing> &failing;
extern std::map<std::string, uint64_t> &callCounts;
extern std::map<uint64_t, Range> &ranges;              // by the address that users see
extern std::map<uint64_t, Mapping> &mappings;          // by that of the chunk
extern std::map<CUmemHandle, Physical> &chunks;        // all devices
extern std::map<CUmemHandle, Device *> &chunkDevices;
extern std::map<uint64_t, uint64_t> &pinned;           // page-locked: begin, bytes
extern thread_local Device *current;

double now();
Device *devices();
/// Returns a number of the environment.
int numberOf(const char *variable, int usual);
/// Returns the compute capability of all GPUs, times ten.
int capability();

/// Finds the PTX that a cubin was made of, which segue-compile --gpu-twins wrote into the folder FAKE_CUDA_TWINS of the
/// environment under the hash of the cubin: empty if it is not there. Returns what the driver says of a cubin that it
/// cannot take.
CUresult readCubin(const void *image, std::string &ptx);

/// Returns where the bytes of a device address lie, or null for another address.
std::byte *shadowOf(uint64_t address);
bool isMapped(uint64_t address, uint64_t bytes);
bool isPinned(const void *data, uint64_t bytes);

/// Begins every call: a failure to give back, or nothing.
std::optional<CUresult> enter(const char *call, bool needsContext = true);
void give(CUstream handle, Operation operation);
/// Waits for all that `stream` has been given.
CUresult waitFor(Stream &stream, std::unique_lock<std::mutex> &held);
void giveMoving(CUstream stream, uint64_t target, uint64_t source, uint64_t bytes, const char *call);

} // namespace fakecuda
#pragma GCC visibility pop

#endif // SEGUE_TEST_CUDA_FAKEGPU_H
