//===- FakeCuda.cpp - a CUDA driver without a GPU -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The calls of the driver, and what tests ask of it. FakeGpu.cpp runs what they give.
//
//===----------------------------------------------------------------------===//

#include "CubinHeader.h"
#include "FakeGpu.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

using namespace fakecuda;

static auto &functions = *new std::map<CUfunction, Function>;
static CUmemHandle lastHandle = 0;
static std::atomic<int> lateMicroseconds{0};

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

void fakecuda::waitLonger(int microseconds) { lateMicroseconds = microseconds; }

void fakecuda::reset() {
  lateMicroseconds = 0;
  std::lock_guard held(lock);
  failing.clear();
  misdeeds.clear();
  callCounts.clear();
}

uint64_t fakecuda::callCount(const std::string &call) {
  std::lock_guard held(lock);
  return callCounts[call];
}

std::string fakecuda::misuse() {
  std::lock_guard held(lock);
  return misdeeds;
}

void fakecuda::reseed(uint64_t seed) {
  Device *all = devices();
  std::lock_guard held(lock);
  for (int i = 0; i < deviceCount; ++i) {
    all[i].random.seed(seed * deviceCount + uint64_t(i));
    all[i].moodLeft = 0;
  }
}

/// For processes that do not ask.
static const struct AtEnd {
  ~AtEnd() {
    if (misdeeds.empty())
      return;
    std::fprintf(stderr, "the fake driver was misused:\n%s", misdeeds.c_str());
    std::_Exit(86);
  }
} atEnd;

uint64_t fakecuda::takenBytes(int device) {
  std::lock_guard held(lock);
  return devices()[device].taken;
}

uint64_t fakecuda::keptBytes(int device) {
  std::lock_guard held(lock);
  uint64_t bytes = 0;
  for (const Stream *stream : devices()[device].streams)
    bytes += stream->keptBytes;
  return bytes;
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

uint64_t fakeCudaCallCount(const char *call) { return fakecuda::callCount(call); }

CUresult cuInit(unsigned) { return success; }

CUresult cuDriverGetVersion(int *version) {
  *version = fakecuda::numberOf("FAKE_CUDA_VERSION", 13000);
  return success;
}

CUresult cuGetErrorName(CUresult result, const char **name) {
  static const std::map<CUresult, const char *> names = {
      {success, "CUDA_SUCCESS"},       {invalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {outOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"}, {illegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {invalidImage, "CUDA_ERROR_INVALID_IMAGE"}, {noBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {notFound, "CUDA_ERROR_NOT_FOUND"},
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
  *count = fakecuda::numberOf("FAKE_CUDA_DEVICES", deviceCount);
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

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice) {
  *bytes = capacity;
  return success;
}

CUresult cuDeviceGetUuid_v2(DeviceUuid *uuid, CUdevice device) {
  std::memset(uuid, 0xfa, sizeof(*uuid));
  uuid->bytes[15] = char(device);
  return success;
}

/// GPUs reach each other in pairs.
CUresult cuDeviceCanAccessPeer(int *reaches, CUdevice device, CUdevice other) {
  *reaches = device / 2 == other / 2;
  return device == other ? 101 : success;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  switch (attribute) {
  case attributeVirtualMemory:
    *value = device != deviceWithoutMaps;
    return success;
  case attributeMostKeptCache:
  case attributeMostCacheWindow:
    *value = int(keptCacheBytes);
    return success;
  case attributeMultiprocessors:
    *value = processors;
    return success;
  case attributeCapabilityMajor:
  case attributeCapabilityMinor:
    *value = attribute == attributeCapabilityMajor ? fakecuda::capability() / 10 : fakecuda::capability() % 10;
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
  if (limit == limitKeptCache) {
    current->keptCache = value;
    return value <= keptCacheBytes ? success : invalidValue;
  }
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

CUresult cuCtxGetLimit(size_t *value, int limit) {
  ENTER(cuCtxGetLimit);
  *value = limit == limitKeptCache ? current->keptCache : current->stackLimit;
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

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
  ENTER(cuPointerGetAttribute);
  auto mapping = mappings.find(address / chunk * chunk);
  bool isPageLocked = isPinned(reinterpret_cast<void *>(address), 1);
  if (mapping == mappings.end() && !isPageLocked)
    return invalidValue;
  if (attribute == pointerMemoryType)
    *static_cast<unsigned *>(value) = isPageLocked ? 1 : memoryOfDevice;
  else
    *static_cast<int *>(value) = isPageLocked ? 0 : chunkDevices[mapping->second.handle]->number;
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

/// The driver reads or writes pageable memory when it is asked, whatever the stream still has to do.
static void requireIdle(CUstream stream, const char *call) {
  auto *given = reinterpret_cast<Stream *>(stream);
  if (!given->operations.empty() || given->isRunning)
    misdeeds += std::string(call) + " of pageable memory behind work that is pending\n";
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyHtoDAsync_v2);
  if (isPinned(source, bytes)) {
    giveMoving(stream, target, reinterpret_cast<uint64_t>(source), bytes, "cuMemcpyHtoDAsync");
    return success;
  }
  requireIdle(stream, "cuMemcpyHtoDAsync");
  auto *first = static_cast<const std::byte *>(source); // read now
  give(stream, {.run = [target, values = std::vector<std::byte>(first, first + bytes)] {
         std::memcpy(fakecuda::at(target, values.size()), values.data(), values.size());
       },
       .call = "cuMemcpyHtoDAsync",
       .accesses = {{Access::Kind::Writes, target, bytes}}});
  return success;
}

CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoHAsync_v2);
  if (isPinned(target, bytes)) {
    giveMoving(stream, reinterpret_cast<uint64_t>(target), source, bytes, "cuMemcpyDtoHAsync");
    return success;
  }
  requireIdle(stream, "cuMemcpyDtoHAsync");
  give(stream, {.run = [=] { std::memcpy(target, fakecuda::at(source, bytes), bytes); },
                .call = "cuMemcpyDtoHAsync",
                .accesses = {{Access::Kind::Reads, source, bytes}}});
  return waitFor(*reinterpret_cast<Stream *>(stream), held); // holds its caller
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  ENTER(cuMemcpyDtoDAsync_v2);
  giveMoving(stream, target, source, bytes, "cuMemcpyDtoDAsync");
  return success;
}

CUresult cuMemsetD2D32Async(CUdeviceptr target, size_t pitch, unsigned value, size_t width, size_t height,
                            CUstream stream) {
  ENTER(cuMemsetD2D32Async);
  give(stream, {.run = [=] {
         for (size_t row = 0; row < height; ++row)
           for (size_t i = 0; i < width; ++i)
             std::memcpy(fakecuda::at(target + row * pitch + 4 * i, 4), &value, 4);
       },
       .call = "cuMemsetD2D32Async",
       .accesses = {{Access::Kind::Writes, target, width && height ? (height - 1) * pitch + 4 * width : 0}}});
  return success;
}

#define FILL(symbol, type)                                                                                             \
  CUresult symbol(CUdeviceptr target, type value, size_t count, CUstream stream) {                                     \
    ENTER(symbol);                                                                                                     \
    give(stream, {.run = [=] {                                                                                         \
           auto *data = static_cast<type *>(fakecuda::at(target, count * sizeof(type)));                               \
           std::fill(data, data + count, value);                                                                       \
         },                                                                                                            \
         .call = #symbol,                                                                                              \
         .accesses = {{Access::Kind::Writes, target, count * sizeof(type)}}});                                         \
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

CUresult cuStreamSetAttribute(CUstream stream, int attribute, const StreamAttribute *value) {
  ENTER(cuStreamSetAttribute);
  const CacheWindow &window = value->window;
  auto begin = reinterpret_cast<uint64_t>(window.begin);
  if (attribute != streamCacheWindow || window.share < 0 || window.share > 1 || window.within != cacheKept ||
      window.beyond != cacheNormal || window.bytes > keptCacheBytes || window.bytes > current->keptCache ||
      !isMapped(begin, window.bytes))
    return invalidValue;
  reinterpret_cast<Stream *>(stream)->keptBytes = window.bytes;
  return success;
}

CUresult cuStreamSynchronize(CUstream stream) {
  ENTER(cuStreamSynchronize);
  return waitFor(*reinterpret_cast<Stream *>(stream), held);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned) {
  ENTER(cuStreamWaitEvent);
  auto *event = reinterpret_cast<Event *>(handle);
  orderWait(*reinterpret_cast<Stream *>(stream), *event);
  if (event->passed < event->recorded)
    give(stream, {.waitsFor = event, .version = event->recorded});
  return success;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
  ENTER(cuStreamWaitValue32_v2);
  if (flags != waitValueGreaterEqual || address % 4)
    return invalidValue;
  if (!isPinned(reinterpret_cast<void *>(address), 4)) {
    misdeeds += "cuStreamWaitValue32_v2 on memory that is not page-locked\n";
    return invalidValue;
  }
  auto *word = reinterpret_cast<uint32_t *>(address);
  auto hasCome = [=] { return int32_t(std::atomic_ref(*word).load(std::memory_order_acquire) - value) >= 0; };
  give(stream, {.hasCome = hasCome});
  return success;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
  ENTER(cuLaunchHostFunc);
  give(stream, {.hostFunction = [=] { function(data); }});
  return success;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  ENTER(cuStreamBeginCapture_v2);
  auto &captured = *reinterpret_cast<Stream *>(stream);
  if (captured.capture || mode < 0 || mode > captureRelaxed)
    return invalidValue;
  captured.capture.emplace();
  return success;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  ENTER(cuStreamEndCapture);
  auto &captured = *reinterpret_cast<Stream *>(stream);
  if (!captured.capture)
    return invalidValue;
  Graph made = std::move(*captured.capture);
  captured.capture.reset();
  if (made.isSpoiled)
    return captureInvalidated;
  *graph = reinterpret_cast<CUgraph>(new Graph(std::move(made)));
  return success;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long) {
  ENTER(cuGraphInstantiateWithFlags);
  *made = reinterpret_cast<CUgraphExec>(new GraphExec{reinterpret_cast<Graph *>(graph)->works});
  return success;
}

CUresult cuGraphDestroy(CUgraph graph) {
  ENTER(cuGraphDestroy);
  delete reinterpret_cast<Graph *>(graph);
  return success;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  ENTER(cuGraphLaunch);
  auto *graph = reinterpret_cast<GraphExec *>(handle);
  graph->pending += graph->works.size();
  for (const Operation &work : graph->works) {
    Operation again = work;
    again.run = [graph, run = &work.run] {
      --graph->pending;
      (*run)();
    };
    give(stream, std::move(again));
  }
  return success;
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  ENTER(cuGraphExecDestroy);
  if (reinterpret_cast<GraphExec *>(handle)->pending)
    misdeeds += "cuGraphExecDestroy under way\n";
  return success; // never deleted: what is under way looks at it
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
  orderRecord(*reinterpret_cast<Stream *>(stream), *event);
  return success;
}

CUresult cuEventSynchronize(CUevent handle) {
  std::this_thread::sleep_for(std::chrono::microseconds(lateMicroseconds.load()));
  ENTER(cuEventSynchronize);
  auto *event = reinterpret_cast<Event *>(handle);
  uint64_t version = event->recorded;
  Clock before = event->clock;
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
  orderSeen(device, before);
  return device.ended;
}

CUresult cuEventQuery(CUevent handle) {
  ENTER(cuEventQuery);
  auto *event = reinterpret_cast<Event *>(handle);
  if (event->passed < event->recorded)
    return notReady;
  orderSeen(*event->device, event->clock);
  return success;
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
  if (segue::schema::beginsAsElf(image, text.size())) {
    ++callCounts["cuModuleLoadData of a cubin"];
    if (CUresult refusal = fakecuda::readCubin(image, text))
      return refusal;
  }
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
  const BuiltinTwin *builtin = fakecuda::findBuiltin(name);
  segue::TwinEntry twin = kernel || builtin ? nullptr : fakecuda::findTwin(text, name);
  if (entry == std::string::npos || (!kernel && !twin && !builtin))
    return notFound;
  std::string_view own = std::string_view(text).substr(entry);
  own = own.substr(0, own.find("\n}\n"));
  Function made{name};
  made.kernel = kernel;
  made.twin = twin;
  made.builtin = builtin;
  std::string_view head = own.substr(0, own.find('{'));
  for (size_t at = head.find(".param"); at != std::string_view::npos; at = head.find(".param", at + 1)) {
    std::string parameter(head.substr(at, head.find_first_of(",)", at) - at));
    size_t align = parameter.find(".align ");
    made.alignments.push_back(align == std::string::npos ? 1 : std::strtoull(parameter.c_str() + align + 7, nullptr, 10));
  }
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

/// What a kernel may read or write.
static std::vector<Access> given(std::span<const uint64_t> addresses) {
  std::vector<Access> accesses;
  for (uint64_t address : addresses)
    if (address)
      accesses.push_back({Access::Kind::WasGiven, address, 1});
  return accesses;
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
  if (const BuiltinTwin *builtin = function.builtin) {
    auto *args = static_cast<const std::byte *>(parameters[0]);
    std::vector<uint64_t> addresses(builtin->addresses);
    std::memcpy(addresses.data(), args, 8 * addresses.size());
    give(stream, {.run = [=, bytes = std::vector(args, args + builtin->bytes), seed = current->random()] {
           fakecuda::runBuiltin(*builtin, bytes, blocks, threads, seed);
         },
         .call = builtin->name,
         .accesses = given(addresses)});
    return success;
  }
  std::vector<uint64_t> values(function.alignments.size());
  bool isAligned = true;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = *static_cast<uint64_t *>(parameters[i]);
    isAligned &= values[i] % function.alignments[i] == 0;
  }
  const char *name = function.name.c_str();
  std::span buffers(values.data(), values.size() - std::min<size_t>(values.size(), 3)); // before range, piece and fault
  if (!isAligned) { // a GPU finds out when it has to access what is not
    give(stream, {.run = [] { throw fakecuda::IllegalAddress(); }});
    return success;
  }
  if (function.twin) {
    give(stream, {.run = [=, twin = function.twin, seed = current->random()] {
           fakecuda::runBlocks(twin, {values, blocks, threads}, seed);
         },
         .call = name,
         .accesses = given(buffers)});
    return success;
  }
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::shuffle(order, current->random);
  give(stream, {.run = [=, kernel = function.kernel] {
         for (unsigned block : order)
           kernel({values, blocks, threads}, block);
       },
       .call = name,
       .accesses = given(buffers)});
  return success;
}
} // extern "C"
#pragma GCC visibility pop
