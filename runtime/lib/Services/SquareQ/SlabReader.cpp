//===- SlabReader.cpp - reads layers before they are asked for ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SlabReader.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <system_error>

namespace segue::inline runtime {

/// The alignment in bytes that transfers want of memory which the link reads.
static constexpr uint32_t bufferAlignment = 512;
/// The number of buffers if no page-locked memory is granted: one is read while another is copied.
static constexpr size_t unpinnedBuffers = 2;

/// Returns page-locked memory, or other memory of the host if there is none, that the host
/// may write at once: memory comes with the fence of its former owner.
static std::shared_ptr<Storage> allocateStaging(const DeviceRef &device, uint64_t bytes, bool isPinned = true) {
  std::shared_ptr<Storage> storage;
  if (isPinned && device->hasSpace(Space::HostPinned))
    try {
      storage = Storage::allocate(device, Space::HostPinned, bytes, bufferAlignment);
    } catch (const Error &error) {
      if (error.code() != ErrorCode::DeviceOom)
        throw;
    }
  if (!storage)
    storage = Storage::allocate(device, Space::Host, bytes, bufferAlignment);
  if (!storage->uses().empty())
    device->wait(storage->uses());
  return storage;
}

void SlabServer::Reader::takeBuffers(uint64_t bytes, const std::function<bool(uint64_t bytes)> &reserve) {
  if (bufferCount_)
    return;
  isReserved_ = reserve != nullptr;
  uint64_t largest = 0;
  for (const SlabLayer &layer : slab_->manifest().layers)
    largest = std::max(largest, slab_->layerBytes(layer.canonicalName));
  // A device without bytes has nothing to read.
  if (largest == 0 || !device_->hasBytes())
    return;
  uint64_t count = std::min<uint64_t>(bytes / largest, slab_->manifest().layers.size());
  try {
    for (; bufferCount_ < count && (!reserve || reserve(largest)); ++bufferCount_)
      free_.push_back({allocateStaging(device_, largest), {}});
    if (!bufferCount_)
      for (; bufferCount_ < std::min<uint64_t>(count, unpinnedBuffers); ++bufferCount_)
        free_.push_back({allocateStaging(device_, largest, /*isPinned=*/false), {}});
  } catch (const Error &error) {
    if (error.code() != ErrorCode::DeviceOom)
      throw; // short of memory: less is read ahead
  }
  try {
    if (bufferCount_)
      worker_ = std::thread([this] { work(); });
  } catch (const std::system_error &) { // the system has no thread left: nothing is read ahead
    free_.clear();
    bufferCount_ = 0;
  }
}

SlabServer::Reader::~Reader() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable())
    worker_.join();
}

void SlabServer::Reader::readAhead(std::vector<std::string> layers) {
  if (!worker_.joinable())
    return;
  {
    std::lock_guard lock(mutex_);
    wanted_.assign(std::make_move_iterator(layers.begin()), std::make_move_iterator(layers.end()));
    // A layer that is there already answers its first mention; the others make room.
    auto strike = [&](const std::string &layer) {
      auto found = std::ranges::find(wanted_, layer);
      bool isWanted = found != wanted_.end();
      if (isWanted)
        wanted_.erase(found);
      return isWanted;
    };
    for (auto it = ready_.begin(); it != ready_.end();)
      if (strike(it->layer)) {
        ++it;
      } else {
        if (it->isBuffer)
          free_.push_back({std::move(it->storage), {}});
        it = ready_.erase(it);
      }
    if (!reading_.empty())
      strike(reading_);
  }
  changed_.notify_all();
}

void SlabServer::Reader::waitUntilIdle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !worker_.joinable() || (reading_.empty() && (wanted_.empty() || free_.empty())); });
}

void SlabServer::Reader::fill(Result &result) const {
  if (!device_->hasBytes())
    return;
  try {
    slab_->copyLayer(result.layer, {result.storage->data(), slab_->layerBytes(result.layer)});
  } catch (...) {
    result.failure = std::current_exception();
  }
}

void SlabServer::Reader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || (!wanted_.empty() && !free_.empty()); });
    if (stop_)
      return;
    Free buffer = std::move(free_.front());
    free_.pop_front();
    Result result{.layer = std::move(wanted_.front()), .storage = std::move(buffer.storage), .isBuffer = true};
    wanted_.pop_front();
    reading_ = result.layer;
    if (!wanted_.empty())
      slab_->readAhead(wanted_.front()); // the system's pages, while this one is copied
    lock.unlock();
    if (!buffer.lastUse.empty())
      device_->wait(buffer.lastUse);
    fill(result);
    lock.lock();
    reading_.clear();
    result.wasReadAhead = true;
    ready_.push_back(std::move(result));
    changed_.notify_all();
  }
}

SlabServer::Reader::Result SlabServer::Reader::take(const std::string &layer) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reading_ != layer; });
    if (auto found = std::ranges::find(ready_, layer, &Result::layer); found != ready_.end()) {
      Result result = std::move(*found);
      ready_.erase(found);
      return result;
    }
    // Asked for before its turn: not to be read twice.
    if (auto found = std::ranges::find(wanted_, layer); found != wanted_.end())
      wanted_.erase(found);
  }
  Result result = stagingFor(layer);
  fill(result);
  return result;
}

/// Returns memory for a layer that nobody has read: a free buffer, new memory, or, if there
/// is none, the buffer of the layer that was to be asked for last.
SlabServer::Reader::Result SlabServer::Reader::stagingFor(const std::string &layer) {
  Result result{.layer = layer, .isBuffer = true};
  Fence lastUse;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      result.storage = std::move(free_.front().storage);
      lastUse = free_.front().lastUse;
      free_.pop_front();
    }
  }
  if (result.storage) {
    if (!lastUse.empty())
      device_->wait(lastUse);
    return result;
  }
  try {
    result.storage = allocateStaging(device_, slab_->layerBytes(layer), !isReserved_);
    result.isBuffer = false;
  } catch (const Error &error) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reading_.empty(); });
    auto last = std::find_if(ready_.rbegin(), ready_.rend(), [](const Result &ready) { return ready.isBuffer; });
    if (error.code() != ErrorCode::DeviceOom || last == ready_.rend())
      throw;
    result.storage = std::move(last->storage);
    ready_.erase(std::next(last).base());
  }
  return result;
}

void SlabServer::Reader::give(Result result) {
  if (!result.isBuffer)
    return;
  Fence lastUse = result.storage->uses();
  {
    std::lock_guard lock(mutex_);
    free_.push_back({std::move(result.storage), lastUse});
  }
  changed_.notify_all();
}

void SlabServer::Reader::putBack(Result result) {
  std::lock_guard lock(mutex_);
  result.wasReadAhead = true;
  ready_.push_front(std::move(result));
}

} // namespace segue::inline runtime
