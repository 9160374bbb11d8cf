//===- FakeGpu.cpp - the GPUs behind a fake CUDA driver -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "FakeGpu.h"
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace fakecuda {

std::mutex &lock = *new std::mutex;
std::condition_variable &changed = *new std::condition_variable;
std::string &misdeeds = *new std::string;
std::map<std::string, Failing> &failing = *new std::map<std::string, Failing>;
std::map<std::string, uint64_t> &callCounts = *new std::map<std::string, uint64_t>;
std::map<uint64_t, Range> &ranges = *new std::map<uint64_t, Range>;
std::map<uint64_t, Mapping> &mappings = *new std::map<uint64_t, Mapping>;
std::map<CUmemHandle, Physical> &chunks = *new std::map<CUmemHandle, Physical>;
std::map<CUmemHandle, Device *> &chunkDevices = *new std::map<CUmemHandle, Device *>;
std::map<uint64_t, uint64_t> &pinned = *new std::map<uint64_t, uint64_t>;
thread_local Device *current = nullptr;
static thread_local bool inHostFunction = false;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int numberOf(const char *variable, int usual) {
  const char *set = std::getenv(variable);
  return set ? std::atoi(set) : usual;
}

int capability() { return numberOf("FAKE_CUDA_CAPABILITY", 90); }

Device *devices() {
  static Device *all = [] {
    auto *all = new Device[deviceCount]; // threads of theirs live as long as the process
    const char *seed = std::getenv("FAKE_CUDA_SEED");
    for (int i = 0; i < deviceCount; ++i) {
      all[i].number = i;
      all[i].random.seed((seed ? std::strtoull(seed, nullptr, 10) : 0) * deviceCount + uint64_t(i));
    }
    return all;
  }();
  return all;
}

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

static bool isRunnable(const Stream &stream) {
  if (stream.isRunning || stream.operations.empty())
    return false;
  const Operation &first = stream.operations.front();
  return (!first.waitsFor || first.waitsFor->passed >= first.version) && (!first.hasCome || first.hasCome());
}

static bool waitsForWord(const Stream *stream) {
  return !stream->operations.empty() && stream->operations.front().hasCome;
}

/// Streams that have to go on for `stream` to.
static void findNeeded(Stream *stream, std::set<Stream *> &seen, std::vector<Stream *> &needed) {
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

static void finish(Stream &stream, const Operation &operation) {
  if (operation.records) {
    operation.records->passed = std::max(operation.records->passed, operation.version);
    operation.records->time = now();
  }
  ++stream.done;
  changed.notify_all();
}

/// The first of `stream`, with the lock held.
static void step(Device &device, Stream &stream) {
  Operation operation = std::move(stream.operations.front());
  stream.operations.pop_front();
  if (operation.hostFunction) {
    stream.isRunning = true;
    device.hostFunctions.emplace_back(&stream, std::move(operation));
    changed.notify_all();
    return;
  }
  if (operation.run)
    try {
      operation.run();
    } catch (const IllegalAddress &) {
      device.ended = illegalAddress;
    }
  finish(stream, operation);
}

static void drawMood(Device &device) {
  if (device.moodLeft-- > 0)
    return;
  device.mood = Mood(device.random() % 5);
  device.moodStream = device.streams[device.random() % device.streams.size()];
  device.moodLeft = int(device.random() % 40);
}

static void runDevice(Device &device) {
  std::unique_lock held(lock);
  for (;;) {
    auto hasWork = [&] {
      return !device.ended && std::ranges::any_of(device.streams, [](Stream *stream) { return isRunnable(*stream); });
    };
    // Nobody says when a word comes.
    while (!hasWork())
      if (std::ranges::any_of(device.streams, waitsForWord))
        changed.wait_for(held, std::chrono::microseconds(50));
      else
        changed.wait(held);
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
      auto pause = std::chrono::microseconds(device.random() % 30); // calls draw from it too
      held.unlock();
      std::this_thread::sleep_for(pause);
      held.lock();
    }
  }
}

/// The one thread of host functions.
static void runHostFunctions(Device &device) {
  inHostFunction = true;
  std::unique_lock held(lock);
  for (;;) {
    changed.wait(held, [&] { return !device.hostFunctions.empty() && !device.ended; });
    auto [stream, operation] = std::move(device.hostFunctions.front());
    device.hostFunctions.pop_front();
    orderSeen(device, operation.before); // it may tell the host, which gives work before it has ended
    held.unlock();
    operation.hostFunction();
    held.lock();
    stream->isRunning = false;
    ++stream->done;
    changed.notify_all();
  }
}

static void start(Device &device) {
  if (device.isStarted)
    return;
  device.isStarted = true;
  std::thread([&device] { runDevice(device); }).detach();
  std::thread([&device] { runHostFunctions(device); }).detach();
}

std::optional<CUresult> enter(const char *call, bool needsContext) {
  if (inHostFunction) {
    misdeeds += std::string(call) + " in a host function\n";
    return notPermitted;
  }
  if (needsContext && !current) {
    misdeeds += std::string(call) + " without a context\n";
    return invalidContext;
  }
  ++callCounts[call];
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
  if (stream.capture) {
    if (operation.run)
      stream.capture->works.push_back(std::move(operation));
    else
      stream.capture->isSpoiled = true; // a graph of Segue has no events and no host functions
    return;
  }
  orderOperation(stream, operation.call, operation.accesses);
  if (operation.hostFunction)
    operation.before = orderOf(stream);
  stream.operations.push_back(std::move(operation));
  ++stream.given;
  start(*stream.device);
  changed.notify_all();
}

CUresult waitFor(Stream &stream, std::unique_lock<std::mutex> &held) {
  if (stream.capture) {
    stream.capture->isSpoiled = true;
    return captureUnsupported;
  }
  Device &device = *stream.device;
  uint64_t given = stream.given;
  auto place = device.wanted.insert(&stream);
  changed.notify_all();
  Clock before = orderOf(stream);
  changed.wait(held, [&] { return device.ended || stream.done >= given; });
  orderSeen(device, before);
  device.wanted.erase(place);
  return device.ended;
}

void giveMoving(CUstream stream, uint64_t target, uint64_t source, uint64_t bytes, const char *call) {
  give(stream, {.run = [=] { std::memmove(at(target, bytes), at(source, bytes), bytes); },
                .call = call,
                .accesses = {{Access::Kind::Writes, target, bytes}, {Access::Kind::Reads, source, bytes}}});
}

} // namespace fakecuda
