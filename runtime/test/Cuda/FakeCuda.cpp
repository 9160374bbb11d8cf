//===- FakeCuda.cpp - a CUDA driver without a GPU -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One lock for everything but host functions, which run without it.
//
//===----------------------------------------------------------------------===//

#include "FakeCuda.h"
#include "../../lib/Cuda/DriverApi.h"
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace segue::cuda;

namespace {
constexpr uint64_t chunk = 2 << 20, capacity = 256 << 20;
constexpr int deviceCount = 16, deviceWithoutMaps = 8, processors = 4, threadsPerProcessor = 2048;
constexpr CUresult invalidContext = 201, alreadyMapped = 208;

// None of these is ever destroyed: threads of GPUs wait on them when the process ends.
std::mutex &lock = *new std::mutex;
std::condition_variable &changed = *new std::condition_variable;
std::string &misdeeds = *new std::string;

struct Failing {
  CUresult result;
  unsigned skipped, count;
};
auto &failing = *new std::map<std::string, Failing>;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Device;
struct Event {
  Device *device;
  uint64_t recorded = 0, passed = 0;
  double time = 0;
};

struct Operation {
  /// Nothing, or what it does; a wait and a record do nothing else.
  std::function<void()> run, hostFunction;
  Event *waitsFor = nullptr, *records = nullptr;
  uint64_t version = 0;
};

struct Stream {
  Device *device;
  std::deque<Operation> operations;
  bool isRunning = false;
  uint64_t given = 0, done = 0;
};

struct Module {
  Device *device;
  std::string image;
};
struct Function {
  std::string name;
  size_t parameters = 0;
  int threads = 1024, required = 0, localBytes = 0;
  fakecuda::Kernel kernel = nullptr;
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
  uint64_t taken = 0, stackLimit = 1024;
  int retained = 0;
  std::vector<Stream *> streams;
  std::mt19937_64 random;
  Mood mood = Mood::Fair;
  Stream *moodStream = nullptr;
  int moodLeft = 0;
  /// Streams that somebody waits for.
  std::multiset<Stream *> wanted;
  bool isStarted = false;
  std::deque<std::pair<Stream *, std::function<void()>>> hostFunctions;
  int memory = -1;
  std::set<uint64_t> freeSlots;
  uint64_t slots = 0;
};

Device *devices() {
  static Device *all = [] {
    auto *all = new Device[deviceCount]; // threads of theirs live as long as the process
    for (int i = 0; i < deviceCount; ++i) {
      all[i].number = i;
      all[i].random.seed(uint64_t(i));
    }
    return all;
  }();
  return all;
}

auto &ranges = *new std::map<uint64_t, Range>;             // by the address that users see
auto &mappings = *new std::map<uint64_t, Mapping>;         // by that of the chunk
auto &chunks = *new std::map<CUmemHandle, Physical>;       // all devices
auto &chunkDevices = *new std::map<CUmemHandle, Device *>;
auto &pinned = *new std::map<uint64_t, uint64_t>;          // page-locked: begin, bytes
auto &functions = *new std::map<CUfunction, Function>;
CUmemHandle lastHandle = 0;

thread_local Device *current = nullptr;
thread_local bool inHostFunction = false;

std::byte *shadowOf(uint64_t address) {
  auto range = ranges.upper_bound(address);
  if (range == ranges.begin())
    return nullptr;
  --range;
  return address < range->first + range->second.bytes ? range->second.shadow + (address - range->first) : nullptr;
}

bool isMapped(uint64_t address, uint64_t bytes) {
  for (uint64_t at = address / chunk * chunk; at < address + bytes; at += chunk) {
    auto mapping = mappings.find(at);
    if (mapping == mappings.end() || !mapping->second.isAccessible)
      return false;
  }
  return true;
}

bool isPinned(const void *data, uint64_t bytes) {
  auto address = reinterpret_cast<uint64_t>(data);
  auto block = pinned.upper_bound(address);
  return block != pinned.begin() && (--block, address + bytes <= block->first + block->second);
}

//===----------------------------------------------------------------------===//
// The thread of a GPU
//===----------------------------------------------------------------------===//

bool isRunnable(const Stream &stream) {
  if (stream.isRunning || stream.operations.empty())
    return false;
  const Operation &first = stream.operations.front();
  return !first.waitsFor || first.waitsFor->passed >= first.version;
}

/// Streams that have to go on for `stream` to.
void findNeeded(Stream *stream, std::set<Stream *> &seen, std::vector<Stream *> &needed) {
  if (!seen.insert(stream).second || stream->operations.empty())
    return;
  if (isRunnable(*stream)) {
    needed.push_back(stream);
    return;
  }
  if (Event *event = stream->operations.front().waitsFor)
    for (Stream *other : stream->device->streams)
      for (const Operation &operation : other->operations)
        if (operation.records == event)
          findNeeded(other, seen, needed);
}

void finish(Stream &stream, const Operation &operation) {
  if (operation.records) {
    operation.records->passed = std::max(operation.records->passed, operation.version);
    operation.records->time = now();
  }
  ++stream.done;
  changed.notify_all();
}

/// The first of `stream`, with the lock held.
void step(Device &device, Stream &stream) {
  Operation operation = std::move(stream.operations.front());
  stream.operations.pop_front();
  if (operation.hostFunction) {
    stream.isRunning = true;
    device.hostFunctions.emplace_back(&stream, std::move(operation.hostFunction));
    changed.notify_all();
    return;
  }
  if (operation.run)
    try {
      operation.run();
    } catch (const fakecuda::IllegalAddress &) {
      device.ended = illegalAddress;
    }
  finish(stream, operation);
}

void drawMood(Device &device) {
  if (device.moodLeft-- > 0)
    return;
  device.mood = Mood(device.random() % 5);
  device.moodStream = device.streams[device.random() % device.streams.size()];
  device.moodLeft = int(device.random() % 40);
}

void runDevice(Device &device) {
  std::unique_lock held(lock);
  for (;;) {
    auto hasWork = [&] {
      return !device.ended && std::ranges::any_of(device.streams, [](Stream *stream) { return isRunnable(*stream); });
    };
    changed.wait(held, hasWork);
    drawMood(device);
    // Lazy: nothing until somebody waits, or for a while.
    if (device.mood == Mood::Lazy && device.wanted.empty())
      changed.wait_for(held, std::chrono::microseconds(device.random() % 500), [&] { return !device.wanted.empty(); });
    std::vector<Stream *> candidates;
    if ((device.mood == Mood::Lazy || device.mood == Mood::Starve) && !device.wanted.empty()) {
      std::set<Stream *> seen;
      findNeeded(*device.wanted.begin(), seen, candidates);
    } else {
      for (Stream *stream : device.streams)
        if (isRunnable(*stream))
          candidates.push_back(stream);
      bool isThere = std::ranges::count(candidates, device.moodStream) > 0;
      if (device.mood == Mood::Favour && isThere)
        candidates = {device.moodStream};
      if (device.mood == Mood::Starve && isThere && candidates.size() > 1)
        std::erase(candidates, device.moodStream);
    }
    std::erase_if(candidates, [](Stream *stream) { return !isRunnable(*stream); });
    if (candidates.empty() || device.ended) {
      changed.wait_for(held, std::chrono::microseconds(20));
      continue;
    }
    step(device, *candidates[device.random() % candidates.size()]);
    if (device.mood != Mood::Eager && device.random() % 16 == 0) {
      held.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(device.random() % 30));
      held.lock();
    }
  }
}

/// The one thread of host functions.
void runHostFunctions(Device &device) {
  inHostFunction = true;
  std::unique_lock held(lock);
  for (;;) {
    changed.wait(held, [&] { return !device.hostFunctions.empty() && !device.ended; });
    auto [stream, function] = std::move(device.hostFunctions.front());
    device.hostFunctions.pop_front();
    held.unlock();
    function();
    held.lock();
    stream->isRunning = false;
    ++stream->done;
    changed.notify_all();
  }
}

void start(Device &device) {
  if (device.isStarted)
    return;
  device.isStarted = true;
  std::thread([&device] { runDevice(device); }).detach();
  std::thread([&device] { runHostFunctions(device); }).detach();
}

/// What every call begins with: a failure to give back, or nothing.
std::optional<CUresult> enter(const char *call, bool needsContext = true) {
  if (inHostFunction) {
    misdeeds += std::string(call) + " in a host function\n";
    return notPermitted;
  }
  if (needsContext && !current) {
    misdeeds += std::string(call) + " without a context\n";
    return invalidContext;
  }
  if (auto found = failing.find(call); found != failing.end()) {
    Failing &each = found->second;
    if (each.skipped)
      --each.skipped;
    else if (each.count) {
      --each.count;
      return each.result;
    }
  }
  if (needsContext && current->ended)
    return current->ended;
  return std::nullopt;
}

void give(CUstream handle, Operation operation) {
  auto &stream = *reinterpret_cast<Stream *>(handle);
  stream.operations.push_back(std::move(operation));
  ++stream.given;
  start(*stream.device);
  changed.notify_all();
}

/// Waits for all that `stream` has been given.
CUresult waitFor(Stream &stream, std::unique_lock<std::mutex> &held) {
  Device &device = *stream.device;
  uint64_t given = stream.given;
  auto place = device.wanted.insert(&stream);
  changed.notify_all();
  changed.wait(held, [&] { return device.ended || stream.done >= given; });
  device.wanted.erase(place);
  return device.ended;
}

void giveMoving(CUstream stream, uint64_t target, uint64_t source, uint64_t bytes) {
  give(stream, {.run = [=] { std::memmove(fakecuda::at(target, bytes), fakecuda::at(source, bytes), bytes); }});
}
} // namespace

//===----------------------------------------------------------------------===//
// For tests
//===----------------------------------------------------------------------===//

void *fakecuda::at(uint64_t address, uint64_t bytes) {
  if (std::byte *shadow = shadowOf(address)) {
    if (bytes && !isMapped(address, bytes))
      throw IllegalAddress();
    return shadow;
  }
  auto *data = reinterpret_cast<void *>(address);
  if (!isPinned(data, bytes))
    throw IllegalAddress();
  return data;
}

void fakecuda::failCalls(const std::string &call, int result, unsigned skipped, unsigned count) {
  std::lock_guard held(lock);
  failing[call] = {result, skipped, count};
}

void fakecuda::reset() {
  std::lock_guard held(lock);
  failing.clear();
  misdeeds.clear();
}

std::string fakecuda::misuse() {
  std::lock_guard held(lock);
  return misdeeds;
}

uint64_t fakecuda::takenBytes(int device) {
  std::lock_guard held(lock);
  return devices()[device].taken;
}

uint64_t fakecuda::mappedChunks(int device) {
  std::lock_guard held(lock);
  uint64_t count = 0;
  for (const auto &[address, mapping] : mappings)
    count += chunkDevices[mapping.handle] == &devices()[device];
  return count;
}

//===----------------------------------------------------------------------===//
// The driver's functions
//===----------------------------------------------------------------------===//

#pragma GCC visibility push(default)
extern "C" {

#define ENTER(call, ...)                                                                                               \
  std::unique_lock held(lock);                                                                                         \
  if (auto failure = enter(#call __VA_OPT__(, ) __VA_ARGS__))                                                                      \
  return *failure

CUresult cuInit(unsigned) { return success; }

CUresult cuDriverGetVersion(int *version) {
  const char *set = std::getenv("FAKE_CUDA_VERSION");
  *version = set ? std::atoi(set) : 13000;
  return success;
}

CUresult cuGetErrorName(CUresult result, const char **name) {
  static const std::map<CUresult, const char *> names = {
      {success, "CUDA_SUCCESS"},       {invalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {outOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"}, {illegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {invalidImage, "CUDA_ERROR_INVALID_IMAGE"}, {notFound, "CUDA_ERROR_NOT_FOUND"},
      {launchFailed, "CUDA_ERROR_LAUNCH_FAILED"}};
  auto found = names.find(result);
  if (found == names.end())
    return invalidValue;
  *name = found->second;
  return success;
}

CUresult cuGetErrorString(CUresult result, const char **text) {
  *text = result == illegalAddress ? "an illegal memory access was encountered" : "an error of the fake driver";
  return success;
}

CUresult cuDeviceGetCount(int *count) {
  ENTER(cuDeviceGetCount, false);
  const char *set = std::getenv("FAKE_CUDA_DEVICES");
  *count = set ? std::atoi(set) : deviceCount;
  return *count ? success : noDevice;
}

CUresult cuDeviceGet(CUdevice *device, int number) {
  *device = number;
  return number >= 0 && number < deviceCount ? success : 101;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice) {
  std::strncpy(name, "Fake GPU", size_t(length));
  return success;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  switch (attribute) {
  case attributeVirtualMemory:
    *value = device != deviceWithoutMaps;
    return success;
  case attributeMultiprocessors:
    *value = processors;
    return success;
  case attributeThreadsPerMultiprocessor:
    *value = threadsPerProcessor;
    return success;
  default:
    return invalidValue;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER(cuDevicePrimaryCtxRetain, false);
  ++devices()[device].retained;
  *context = reinterpret_cast<CUcontext>(&devices()[device]);
  return success;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER(cuDevicePrimaryCtxRelease_v2, false);
  --devices()[device].retained;
  return success;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER(cuCtxSetCurrent, false);
  current = reinterpret_cast<Device *>(context);
  return success;
}

CUresult cuCtxSetLimit(int limit, size_t value) {
  ENTER(cuCtxSetLimit);
  if (limit != limitStackSize)
    return invalidValue;
  uint64_t threads = uint64_t(processors) * threadsPerProcessor;
  auto stacks = [&](uint64_t bytes) { return (std::max<uint64_t>(bytes, 1024) - 1024) * threads; };
  uint64_t taken = current->taken - stacks(current->stackLimit) + stacks(value);
  if (taken > capacity)
    return outOfMemory;
  current->taken = taken;
  current->stackLimit = value;
  return success;
}

CUresult cuCtxGetLimit(size_t *value, int) {
  ENTER(cuCtxGetLimit);
  *value = current->stackLimit;
  return success;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER(cuCtxGetStreamPriorityRange);
  *least = 0, *greatest = -5;
  return success;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  ENTER(cuMemGetInfo_v2);
  *total = capacity, *free = capacity - current->taken;
  return success;
}

CUresult cuMemHostAlloc(void **data, size_t bytes, unsigned) {
  ENTER(cuMemHostAlloc);
  *data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(*data, 0xa1, bytes);
  pinned[reinterpret_cast<uint64_t>(*data)] = bytes;
  return success;
}

CUresult cuMemFreeHost(void *data) {
  ENTER(cuMemFreeHost);
  if (!pinned.erase(reinterpret_cast<uint64_t>(data)))
    return invalidValue;
  std::free(data);
  return success;
}

CUresult cuMemHostRegister_v2(void *data, size_t bytes, unsigned) {
  ENTER(cuMemHostRegister_v2);
  pinned[reinterpret_cast<uint64_t>(data)] = bytes;
  return success;
}

CUresult cuMemHostUnregister(void *data) {
  ENTER(cuMemHostUnregister);
  return pinned.erase(reinterpret_cast<uint64_t>(data)) ? success : invalidValue;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyHtoDAsync_v2);
  if (isPinned(source, bytes)) {
    giveMoving(stream, target, reinterpret_cast<uint64_t>(source), bytes);
    return success;
  }
  auto *first = static_cast<const std::byte *>(source); // read now
  give(stream, {.run = [target, values = std::vector<std::byte>(first, first + bytes)] {
         std::memcpy(fakecuda::at(target, values.size()), values.data(), values.size());
       }});
  return success;
}

CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoHAsync_v2);
  if (isPinned(target, bytes)) {
    giveMoving(stream, reinterpret_cast<uint64_t>(target), source, bytes);
    return success;
  }
  give(stream, {.run = [=] { std::memcpy(target, fakecuda::at(source, bytes), bytes); }});
  return waitFor(*reinterpret_cast<Stream *>(stream), held); // holds its caller
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoDAsync_v2);
  giveMoving(stream, target, source, bytes);
  return success;
}

CUresult cuMemsetD2D32Async(CUdeviceptr target, size_t pitch, unsigned value, size_t width, size_t height,
                            CUstream stream) {
  ENTER(cuMemsetD2D32Async);
  give(stream, {.run = [=] {
         for (size_t row = 0; row < height; ++row)
           for (size_t i = 0; i < width; ++i)
             std::memcpy(fakecuda::at(target + row * pitch + 4 * i, 4), &value, 4);
       }});
  return success;
}

#define FILL(call, type)                                                                                               \
  CUresult call(CUdeviceptr target, type value, size_t count, CUstream stream) {                                       \
    ENTER(call);                                                                                                       \
    give(stream, {.run = [=] {                                                                                         \
           auto *data = static_cast<type *>(fakecuda::at(target, count * sizeof(type)));                               \
           std::fill(data, data + count, value);                                                                       \
         }});                                                                                                          \
    return success;                                                                                                    \
  }
FILL(cuMemsetD8Async, unsigned char)
FILL(cuMemsetD16Async, unsigned short)
FILL(cuMemsetD32Async, unsigned)

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long) {
  ENTER(cuMemAddressReserve);
  auto reserve = [&](uint64_t length) {
    return mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  };
  void *seen = reserve(bytes + chunk), *shadow = reserve(bytes);
  if (seen == MAP_FAILED || shadow == MAP_FAILED)
    return outOfMemory;
  uint64_t begin = (reinterpret_cast<uint64_t>(seen) + chunk - 1) / chunk * chunk;
  ranges[begin] = {bytes, static_cast<std::byte *>(shadow)};
  *address = begin;
  return success;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  ENTER(cuMemAddressFree);
  auto range = ranges.find(address);
  if (range == ranges.end() || range->second.bytes != bytes)
    return invalidValue;
  if (auto mapping = mappings.lower_bound(address); mapping != mappings.end() && mapping->first < address + bytes)
    return invalidValue;
  munmap(range->second.shadow, bytes);
  ranges.erase(range); // what users see stays reserved: nobody else gets it
  return success;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const MemProperties *, int) {
  ENTER(cuMemGetAllocationGranularity);
  *bytes = chunk;
  return success;
}

static void freeIfUnused(CUmemHandle handle) {
  Physical &physical = chunks.at(handle);
  if (!physical.isReleased || physical.mappings)
    return;
  Device &device = *chunkDevices[handle];
  device.taken -= physical.bytes;
  device.freeSlots.insert(physical.slot);
  chunks.erase(handle);
  chunkDevices.erase(handle);
}

CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const MemProperties *properties, unsigned long long) {
  ENTER(cuMemCreate);
  if (bytes != chunk || properties->type != 1 || properties->location.type != 1 ||
      properties->location.id != current->number)
    return invalidValue;
  Device &device = *current;
  if (device.taken + bytes > capacity)
    return outOfMemory;
  if (device.memory < 0)
    device.memory = memfd_create("fake-gpu", 0);
  if (device.freeSlots.empty()) {
    device.freeSlots.insert(device.slots++);
    if (ftruncate(device.memory, off_t(device.slots * chunk)))
      return outOfMemory;
  }
  uint64_t slot = *device.freeSlots.begin();
  device.freeSlots.erase(device.freeSlots.begin());
  static const std::vector<char> garbage(chunk, char(0xa1));
  if (pwrite(device.memory, garbage.data(), chunk, off_t(slot * chunk)) != ssize_t(chunk))
    return outOfMemory;
  device.taken += bytes;
  *handle = ++lastHandle;
  chunks[*handle] = {slot, bytes};
  chunkDevices[*handle] = &device;
  return success;
}

CUresult cuMemRelease(CUmemHandle handle) {
  ENTER(cuMemRelease);
  auto found = chunks.find(handle);
  if (found == chunks.end() || found->second.isReleased)
    return invalidValue;
  found->second.isReleased = true;
  freeIfUnused(handle);
  return success;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemHandle handle, unsigned long long) {
  ENTER(cuMemMap);
  auto found = chunks.find(handle);
  std::byte *shadow = shadowOf(address);
  if (found == chunks.end() || !shadow || bytes != chunk || offset || address % chunk)
    return invalidValue;
  if (mappings.contains(address))
    return alreadyMapped;
  if (mmap(shadow, chunk, PROT_NONE, MAP_SHARED | MAP_FIXED, current->memory, off_t(found->second.slot * chunk)) ==
      MAP_FAILED)
    return outOfMemory;
  ++found->second.mappings;
  mappings[address] = {handle};
  return success;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  ENTER(cuMemUnmap);
  for (uint64_t at = address; at < address + bytes; at += chunk) {
    auto mapping = mappings.find(at);
    if (mapping == mappings.end())
      return invalidValue;
    mmap(shadowOf(at), chunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    CUmemHandle handle = mapping->second.handle;
    mappings.erase(mapping);
    --chunks.at(handle).mappings;
    freeIfUnused(handle);
  }
  return success;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const MemAccess *access, size_t count) {
  ENTER(cuMemSetAccess);
  if (count != 1 || access->location.type != 1 || access->location.id != current->number || access->flags != 3)
    return invalidValue;
  for (uint64_t at = address; at < address + bytes; at += chunk) {
    auto mapping = mappings.find(at);
    if (mapping == mappings.end())
      return invalidValue;
    mprotect(shadowOf(at), chunk, PROT_READ | PROT_WRITE);
    mapping->second.isAccessible = true;
  }
  return success;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int) {
  ENTER(cuStreamCreateWithPriority);
  if (flags != streamNonBlocking)
    return invalidValue;
  auto *made = new Stream{current, {}};
  current->streams.push_back(made);
  *stream = reinterpret_cast<CUstream>(made);
  return success;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  ENTER(cuStreamDestroy_v2);
  auto *gone = reinterpret_cast<Stream *>(stream);
  if (!gone->operations.empty() || gone->isRunning)
    misdeeds += "cuStreamDestroy_v2 with work pending\n";
  std::erase(gone->device->streams, gone);
  if (gone->device->moodStream == gone)
    gone->device->moodLeft = 0;
  return success; // never deleted: somebody may still look at it
}

CUresult cuStreamSynchronize(CUstream stream) {
  ENTER(cuStreamSynchronize);
  return waitFor(*reinterpret_cast<Stream *>(stream), held);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned) {
  ENTER(cuStreamWaitEvent);
  auto *event = reinterpret_cast<Event *>(handle);
  if (event->passed < event->recorded)
    give(stream, {.waitsFor = event, .version = event->recorded});
  return success;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
  ENTER(cuLaunchHostFunc);
  give(stream, {.hostFunction = [=] { function(data); }});
  return success;
}

CUresult cuEventCreate(CUevent *event, unsigned) {
  ENTER(cuEventCreate);
  *event = reinterpret_cast<CUevent>(new Event{current});
  return success;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  ENTER(cuEventDestroy_v2);
  auto *event = reinterpret_cast<Event *>(handle);
  if (event->passed < event->recorded)
    misdeeds += "cuEventDestroy_v2 of an event that has not passed\n";
  return success; // never deleted: somebody may still look at it
}

CUresult cuEventRecord(CUevent handle, CUstream stream) {
  ENTER(cuEventRecord);
  auto *event = reinterpret_cast<Event *>(handle);
  give(stream, {.records = event, .version = ++event->recorded});
  return success;
}

CUresult cuEventSynchronize(CUevent handle) {
  ENTER(cuEventSynchronize);
  auto *event = reinterpret_cast<Event *>(handle);
  uint64_t version = event->recorded;
  Device &device = *event->device;
  Stream *recording = nullptr;
  for (Stream *stream : device.streams)
    for (const Operation &operation : stream->operations)
      if (operation.records == event)
        recording = stream;
  auto place = recording ? device.wanted.insert(recording) : device.wanted.end();
  changed.notify_all();
  changed.wait(held, [&] { return device.ended || event->passed >= version; });
  if (recording)
    device.wanted.erase(place);
  return device.ended;
}

CUresult cuEventQuery(CUevent handle) {
  ENTER(cuEventQuery);
  auto *event = reinterpret_cast<Event *>(handle);
  return event->passed < event->recorded ? notReady : success;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  ENTER(cuEventElapsedTime);
  auto *begin = reinterpret_cast<Event *>(from), *end = reinterpret_cast<Event *>(to);
  if (begin->passed < begin->recorded || end->passed < end->recorded)
    return notReady;
  *milliseconds = float((end->time - begin->time) * 1e3);
  return success;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  ENTER(cuModuleLoadData);
  std::string text(static_cast<const char *>(image));
  if (text.find(".version") == std::string::npos)
    return invalidImage;
  *module = reinterpret_cast<CUmodule>(new Module{current, text});
  return success;
}

CUresult cuModuleUnload(CUmodule module) {
  ENTER(cuModuleUnload);
  delete reinterpret_cast<Module *>(module);
  return success;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
  ENTER(cuModuleGetFunction);
  const std::string &text = reinterpret_cast<Module *>(handle)->image;
  size_t entry = text.find(".entry " + std::string(name) + "(");
  fakecuda::Kernel kernel = fakecuda::findKernel(name);
  if (entry == std::string::npos || !kernel)
    return notFound;
  std::string_view own = std::string_view(text).substr(entry);
  own = own.substr(0, own.find("\n}\n"));
  Function made{name};
  made.kernel = kernel;
  std::string_view head = own.substr(0, own.find('{'));
  for (size_t at = head.find(".param"); at != std::string_view::npos; at = head.find(".param", at + 1))
    ++made.parameters;
  if (size_t at = head.find(".reqntid "); at != std::string_view::npos) // which no attribute tells
    made.required = std::atoi(std::string(head.substr(at + 9, 6)).c_str());
  if (size_t at = head.find(".maxntid "); at != std::string_view::npos)
    made.threads = std::atoi(std::string(head.substr(at + 9, 6)).c_str());
  if (size_t at = own.find(" depot["); at != std::string_view::npos)
    made.localBytes = std::atoi(std::string(own.substr(at + 7, 8)).c_str());
  *function = reinterpret_cast<CUfunction>(uintptr_t(functions.size() + 1));
  functions[*function] = made;
  return success;
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
  ENTER(cuFuncGetAttribute);
  const Function &found = functions.at(function);
  *value = attribute == functionMaxThreads ? found.threads : found.localBytes;
  return success;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                        unsigned, CUstream stream, void **parameters, void **) {
  ENTER(cuLaunchKernel);
  const Function &function = functions.at(handle);
  if (!blocks || threads > unsigned(function.threads) || (function.required && threads != unsigned(function.required)))
    return invalidValue;
  if (uint64_t(function.localBytes) > std::max<uint64_t>(current->stackLimit, 1024)) {
    misdeeds += "a launch of " + function.name + " takes memory for stacks\n";
    return outOfMemory;
  }
  std::vector<uint64_t> values(function.parameters);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = *static_cast<uint64_t *>(parameters[i]);
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::shuffle(order, current->random);
  give(stream, {.run = [=, kernel = function.kernel] {
         for (unsigned block : order)
           kernel({values, blocks, threads}, block);
       }});
  return success;
}
} // extern "C"
#pragma GCC visibility pop
