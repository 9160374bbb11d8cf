//===- SlabServer.cpp - weights from a slab to a device -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A stored layer crosses the link as one run of bytes, padding columns and all:
// nothing on the host touches its elements. What lands is looked at as a tensor
// in row or group storage, and toLayout makes of it what is wanted, on the
// device; a weight that is more than its codes is restored to f32 first. This is
// the plan that toLayout itself makes for a layer without padding; a padded one
// it would pack on the host first.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "SlabReader.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "segue/runtime/Engine/LowBitForms.h"
#include "segue/runtime/Files/Safetensors.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The nanoseconds of the device in dequantising; work on its queue adds to it.
struct SlabServer::Clock {
  std::atomic<uint64_t> nanoseconds{0};
};

SlabFallback checkpointFallback(const std::filesystem::path &checkpoint, NameAliases aliases) {
  auto file = std::make_shared<SafetensorsFile>(SafetensorsFile::open(checkpoint));
  return [file, aliases = std::move(aliases)](const DeviceRef &device, std::string_view name) {
    for (const std::string &alias : sourceNames(name, aliases))
      if (file->find(alias))
        return file->copyOf(device, alias);
    return Tensor();
  };
}

SlabServer::SlabServer(DeviceRef device, std::shared_ptr<const Slab> slab, SlabServerOptions options)
    : device_(std::move(device)), slab_(std::move(slab)), options_(std::move(options)),
      fusedBefore_(device_->engine().fusedCalls()), clock_(std::make_shared<Clock>()),
      reader_(std::make_unique<Reader>(device_, slab_)) {
  takeBuffers(options_.readAheadBytes, {});
}

SlabServer::~SlabServer() = default;

void SlabServer::takeBuffers(uint64_t bytes, const std::function<bool(uint64_t bytes)> &reserve) {
  reader_->takeBuffers(bytes, reserve);
}

/// Checks that programs read of the slab's layers what the slab can give them.
static void checkStorages(const Slab &slab, const SlabRequest &request, const SquareQConfig &config) {
  SlabNames names(slab.manifest());
  std::string asFloats, problems;
  bool readsCodes = false;
  for (const ProgramWeight &weight : request.program) {
    std::optional<SlabMatch> match = findLayer(names, weight, request.aliases);
    if (!match || weight.isTrained)
      continue;
    const std::string &layer = slab.manifest().layers[match->layer].canonicalName;
    StorageType wanted = weight.desc.layout.storage;
    if (!isQuantized(wanted)) {
      asFloats = weight.names.front();
      continue;
    }
    readsCodes = true;
    Layout stored = slab.desc(layer).layout;
    if (slab.isRestored(layer))
      problems += "\n  \"" + weight.names.front() + "\" is rotated or has a low-rank product, which is more than codes";
    else if (stored.storage != wanted || (stored.zeroPoints && !weight.desc.layout.zeroPoints))
      problems += "\n  \"" + weight.names.front() + "\" is read as " + std::string(name(wanted)) + ", the slab has " +
                  std::string(name(stored.storage)) + (stored.zeroPoints ? " with zero points" : "");
  }
  if (!problems.empty())
    throw Error(ErrorCode::SlabInvalid, slab.path().string() + ": the programs read other codes than the slab holds; " +
                                            "compile them with its frozen_storage, or quantise with another scheme" +
                                            problems);
  if (config.serve == SlabServe::Fused && !readsCodes && !asFloats.empty())
    throw ConfigError(std::string(SquareQConfig::section), "serve",
                      "fused needs programs whose products read codes, and these read \"" + asFloats +
                          "\" as floats; compile them with frozen_storage (segue-compile --frozen-storage), or "
                          "choose dequant",
                      "fused");
}

std::shared_ptr<SlabSource> openSlab(const DeviceRef &device, const SlabRequest &request, const SquareQConfig &config) {
  auto opened = std::make_shared<Slab>(request.slab, request.manifest);
  opened->open({.aliases = request.aliases, .program = {request.program.begin(), request.program.end()}},
               config.verify);
  checkStorages(*opened, request, config);
  return std::make_shared<SlabServer>(device, std::move(opened), SlabServerOptions{.readAheadBytes = 0});
}

bool SlabServer::holds(std::string_view name) const { return slab_->holds(name) && layerOfBias(name).empty(); }

TensorDesc SlabServer::storedDesc(std::string_view name, ElementType element) const {
  TensorDesc desc =
      slab_->isRestored(name) ? TensorDesc(slab_->layer(name).origShape, element) : slab_->desc(name, element);
  desc.layout.space = Space::DeviceDram;
  return desc;
}

uint64_t SlabServer::linkBytes(std::string_view name) const {
  return device_->hasUnifiedMemory() ? 0 : slab_->layerBytes(name);
}

size_t SlabServer::buffers() const { return reader_->buffers(); }

void SlabServer::readAhead(std::vector<std::string> order) {
  for (std::string &name : order)
    name = slab_->layer(name).canonicalName;
  reader_->readAhead(std::move(order));
}

void SlabServer::waitForReadAhead() { reader_->waitUntilIdle(); }

/// Returns the description of bytes and nothing else.
static std::shared_ptr<const TensorDesc> bytesOf(uint64_t bytes, Space space) {
  return std::make_shared<const TensorDesc>(TensorDesc({int64_t(bytes)}, ElementType::i8, {.space = space}));
}

/// Returns true if a tensor of `desc` has the bytes of the layer as they are stored.
bool SlabServer::holdsStored(std::string_view name, const TensorDesc &desc) const {
  const Layout &wanted = desc.layout;
  if (!isQuantized(wanted.storage) || slab_->isRestored(name) || device_->hasUnifiedMemory())
    return false;
  const TensorDesc stored = slab_->desc(name, desc.element);
  return stored.shape == desc.shape && stored.layout.storage == wanted.storage && wanted.tile.empty() &&
         stored.layout.zeroPoints == wanted.zeroPoints && desc.spanBytes() == slab_->layerBytes(name) &&
         stored.layout.strides == (wanted.strides.empty() ? denseStrides(desc.shape) : wanted.strides);
}

Tensor SlabServer::bringStored(std::string_view name, const std::shared_ptr<Storage> &staged, TensorDesc desc,
                               const TransferOptions &options, const Tensor &slot) {
  desc.layout.space = staged->space();
  if (device_->hasUnifiedMemory())
    return Tensor::in(staged, std::make_shared<const TensorDesc>(std::move(desc)));
  TransferEngine &engine = device_->transfer();
  uint64_t size = slab_->layerBytes(name);
  Tensor bytes = Tensor::in(staged, bytesOf(size, staged->space()));
  uint64_t before = engine.counters().h2dBytes;
  Tensor there;
  if (slot) {
    TensorDesc place = *bytesOf(size, Space::DeviceDram);
    place.layout.offset = slot.desc().layout.offset;
    there = Tensor::in(slot.storage(), std::make_shared<const TensorDesc>(std::move(place)));
    engine.copyInto(bytes, there, options);
  } else {
    there = engine.toLayout(device_, bytes, bytesOf(size, Space::DeviceDram), options);
  }
  if (!there)
    return there;
  uint64_t sent = engine.counters().h2dBytes - before;
  telemetry_.bytesH2d += sent;
  telemetry_.bytesSaved += int64_t(slab_->size(name).bf16) - int64_t(sent);
  if (slot)
    return slot;
  desc.layout.space = Space::DeviceDram;
  return Tensor::in(there.storage(), std::make_shared<const TensorDesc>(std::move(desc)));
}

/// Returns a layer that is damaged from where else it can be had; a null tensor if it cannot.
Tensor SlabServer::original(std::string_view name) const {
  if (auto original = originals_.find(slab_->layer(name).canonicalName); original != originals_.end())
    return original->second();
  return options_.fallback ? options_.fallback(device_, name) : Tensor();
}

SlabServer::Brought SlabServer::bring(std::string_view name, ElementType element, const TransferOptions &options,
                                      const Tensor &slot) {
  const SlabLayer &layer = slab_->layer(name);
  // A damaged layer stays so, whatever its bytes are now: forward and backward of a step read the same.
  if (damaged_.contains(layer.canonicalName))
    return {.tensor = original(name)};
  Reader::Result result = reader_->take(layer.canonicalName);
  ++(result.wasReadAhead ? hits_ : misses_);
  Brought brought;
  try {
    if (result.failure)
      std::rethrow_exception(result.failure);
    brought.tensor = bringStored(name, result.storage, slab_->desc(name, element), options, slot);
    brought.isStored = true;
    if (Slab::LowRankPlaces places = slab_->lowRank(name); places.rank && brought.tensor) {
      SlabSize size = slab_->size(name);
      auto part = [&](Shape shape, uint64_t offset) {
        Layout layout{.space = brought.tensor.desc().layout.space, .offset = offset};
        return Tensor::in(brought.tensor.storage(),
                          std::make_shared<const TensorDesc>(TensorDesc(std::move(shape), ElementType::bf16, layout)));
      };
      brought.a = part({size.out, places.rank}, places.a);
      brought.b = part({places.rank, size.in}, places.b);
    }
  } catch (const Error &error) {
    bool isDamaged = result.failure && error.code() == ErrorCode::ChecksumMismatch;
    reader_->give(std::move(result));
    if (!isDamaged)
      throw;
    ++telemetry_.crcFailures;
    brought.tensor = original(name);
    if (!brought.tensor)
      throw error.within("weight \"" + std::string(name) + "\" is damaged and there is no checkpoint to serve it from");
    damaged_.insert(layer.canonicalName);
    return brought;
  }
  if (!brought.tensor)
    reader_->putBack(std::move(result));
  else if (device_->hasUnifiedMemory())
    brought.buffer =
        std::shared_ptr<Reader::Result>(new Reader::Result(std::move(result)), [this](Reader::Result *used) {
          reader_->give(std::move(*used));
          delete used;
        });
  else
    reader_->give(std::move(result));
  return brought;
}

//===----------------------------------------------------------------------===//
// The last step
//===----------------------------------------------------------------------===//

/// The weight as f32, of codes and what goes with them.
Tensor SlabServer::restore(std::string_view name, const Brought &brought) {
  SlabSize size = slab_->size(name);
  auto dense = [&](const Tensor &tensor) {
    return tensor ? device_->transfer().copyTo(
                        device_, tensor,
                        std::make_shared<const TensorDesc>(TensorDesc(tensor.shape(), ElementType::f32)), {})
                  : Tensor();
  };
  Tensor rows = dense(brought.tensor), a = dense(brought.a), b = dense(brought.b);
  auto floatsOf = [](const Tensor &tensor) { return tensor ? reinterpret_cast<float *>(tensor.bytes()) : nullptr; };
  LowBitRows job{.rows = floatsOf(rows),
                 .count = size.out,
                 .columns = size.in,
                 .rotated = slab_->layer(name).form()->rotated,
                 .rank = a ? a.shape()[1] : 0,
                 .a = floatsOf(a),
                 .b = floatsOf(b)};
  Fence after = rows.storage()->uses();
  std::vector<std::shared_ptr<Outcome>> sources{rows.storage()->outcome()};
  for (const Tensor &factor : {a, b})
    if (factor) {
      after.join(factor.storage()->writes());
      sources.push_back(factor.storage()->outcome());
    }
  Work work;
  work.label = "restore";
  work.cost.flops = 2 * uint64_t(size.out) * uint64_t(size.in) * (uint64_t(job.rank) + 8 * job.rotated);
  work.cost.memoryBytes = 2 * rows.desc().spanBytes();
  work.mayBegin = [sources, outcome = rows.storage()->outcome()] {
    for (const auto &source : sources)
      if (const Error *error = source->error()) {
        outcome->fail(*error);
        return false;
      }
    return true;
  };
  work.run = [job, &device = *device_] { device.engine().restore(job); };
  Fence fence(Queue::Compute, device_->enqueue(Queue::Compute, after, std::move(work)));
  rows.storage()->addWrite(fence);
  for (const Tensor &factor : {a, b})
    if (factor)
      factor.storage()->addRead(fence);
  return rows;
}

template <typename Convert>
void SlabServer::finish(std::string_view name, Brought brought, const TensorDesc &wanted, Convert convert) {
  bool restores = brought.isStored && slab_->isRestored(name);
  if (restores && isQuantized(wanted.layout.storage))
    throw Error(ErrorCode::Unsupported, "weight \"" + std::string(name) +
                                            "\" is rotated or has a low-rank product and is served as floats, not " +
                                            wanted.str() + "; for products ask serveFused");
  auto run = [&] { convert(restores ? restore(name, brought) : brought.tensor); };
  uint64_t before = device_->transfer().counters().h2dBytes;
  bool dequantises = isQuantized(brought.tensor.desc().layout.storage) && !isQuantized(wanted.layout.storage);
  if (!dequantises || !device_->hasBytes()) {
    run();
  } else if (device_->runsInline()) {
    double begin = device_->seconds();
    run();
    clock_->nanoseconds += uint64_t((device_->seconds() - begin) * 1e9);
  } else {
    // Two marks on the queue that converts, the first after the bytes are there.
    auto begin = std::make_shared<Timestamp>(), end = std::make_shared<Timestamp>();
    device_->enqueueStamp(Queue::Compute, brought.tensor.storage()->writes(), begin, "dequantising begins");
    run();
    Work mark;
    mark.label = "dequantising ends";
    mark.run = [end, &device = *device_] { device.stamp(end); };
    mark.ended = [begin, end, clock = clock_](const Error *) {
      clock->nanoseconds += uint64_t((end->seconds() - begin->seconds()) * 1e9);
    };
    device_->enqueue(Queue::Compute, {}, std::move(mark));
  }
  // Only a weight from the checkpoint had the link still before it.
  telemetry_.bytesH2d += device_->transfer().counters().h2dBytes - before;
}

Tensor SlabServer::serve(std::string_view name, std::shared_ptr<const TensorDesc> wanted,
                         const TransferOptions &options) {
  Brought brought = bring(name, wanted->element, options);
  Tensor served;
  auto convert = [&](const Tensor &tensor) {
    TransferEngine &engine = device_->transfer();
    // If memory is unified, what was brought lies in a buffer of the ring.
    served = device_->hasUnifiedMemory() ? engine.copyTo(device_, tensor, wanted, options)
                                         : engine.toLayout(device_, tensor, wanted, options);
  };
  if (brought.tensor)
    finish(name, std::move(brought), *wanted, convert);
  return served;
}

FusedWeight SlabServer::serveFused(std::string_view name, const TransferOptions &options) {
  Brought brought = bring(name, ElementType::f32, options);
  if (!brought.isStored)
    throw Error(ErrorCode::ChecksumMismatch, "weight \"" + std::string(name) +
                                                 "\" is damaged, and there are no codes to multiply with; serve it as "
                                                 "floats from the checkpoint");
  FusedWeight weight;
  if (!brought.tensor)
    return weight;
  TransferEngine &engine = device_->transfer();
  // If memory is unified, what was brought lies in a buffer of the ring.
  auto own = [&](const Tensor &tensor, TensorDesc desc) {
    desc.layout.space = Space::DeviceDram;
    desc.layout.offset = 0;
    return engine.copyTo(device_, tensor, std::make_shared<const TensorDesc>(std::move(desc)), options);
  };
  weight.codes = device_->hasUnifiedMemory() ? own(brought.tensor, brought.tensor.desc()) : brought.tensor;
  weight.rotated = slab_->layer(name).form()->rotated;
  if (brought.a) {
    // x (B' A') with B' [in, rank] and A' [rank, out]: the matrices transposed.
    auto transposed = [&](const Tensor &tensor) {
      TensorDesc seen = tensor.desc();
      seen.layout.strides = {1, seen.shape[1]};
      std::swap(seen.shape[0], seen.shape[1]);
      Tensor view = Tensor::in(tensor.storage(), std::make_shared<const TensorDesc>(seen));
      return own(view, TensorDesc(seen.shape, ElementType::f32));
    };
    weight.residual = LoraAdapter{.a = transposed(brought.b), .b = transposed(brought.a)};
    weight.residual->alpha = float(weight.residual->rank());
  }
  return weight;
}

bool SlabServer::serveInto(std::string_view name, const Tensor &target, const TransferOptions &options) {
  bool isDirect = holdsStored(name, target.desc());
  Brought brought = bring(name, target.element(), options, isDirect ? target : Tensor());
  if (!brought.tensor)
    return false;
  if (isDirect && brought.isStored)
    return true;
  finish(name, std::move(brought), target.desc(),
         [&](const Tensor &tensor) { device_->transfer().copyInto(tensor, target, options); });
  return true;
}

void SlabServer::setOriginal(std::string_view name, std::function<Tensor()> read) {
  originals_[slab_->layer(name).canonicalName] = std::move(read);
}

SlabTelemetry SlabServer::takeTelemetry() {
  SlabTelemetry taken = std::exchange(telemetry_, {});
  uint64_t fused = device_->engine().fusedCalls();
  taken.fusedCalls = fused - std::exchange(fusedBefore_, fused);
  taken.dequantMs = double(clock_->nanoseconds.exchange(0)) * 1e-6;
  return taken;
}

} // namespace segue::inline runtime
