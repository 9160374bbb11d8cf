//===- SlabServer.cpp - weights from a slab to a device -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A stored layer crosses the link as one run of bytes, padding columns and all:
// nothing on the host touches its elements. What lands is looked at as a tensor
// in row storage, and toLayout makes of it what is wanted, on the device. This
// is the plan that toLayout itself makes for a layer without padding; a padded
// one it would pack on the host first.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "SlabReader.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/SquareQ/Int4Group.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "segue/runtime/Session/Safetensors.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// Nanoseconds of the device in dequantising; work on its queue adds to it.
struct SlabServer::Clock {
  std::atomic<uint64_t> nanoseconds{0};
};

Json SlabTelemetry::json() const {
  return {{"squareq_blocks_served", blocksServed},
          {"squareq_bytes_h2d", bytesH2d},
          {"squareq_bytes_saved", bytesSaved},
          {"dequant_ms", dequantMs},
          {"fused_calls", fusedCalls},
          {"crc_failures", crcFailures}};
}

SlabFallback checkpointFallback(const std::filesystem::path &checkpoint, NameAliases aliases) {
  auto file = std::make_shared<SafetensorsFile>(SafetensorsFile::open(checkpoint));
  return [file, aliases = std::move(aliases)](const DeviceRef &device, std::string_view name) {
    for (const std::string &alias : sourceNames(name, aliases))
      if (file->find(alias))
        return file->tensor(device, alias);
    return Tensor();
  };
}

SlabServer::SlabServer(DeviceRef device, std::shared_ptr<const Slab> slab, SlabServerOptions options)
    : device_(std::move(device)), slab_(std::move(slab)), options_(std::move(options)),
      clock_(std::make_shared<Clock>()), reader_(std::make_unique<Reader>(device_, slab_, options_.readAheadBytes)) {}

SlabServer::~SlabServer() = default;

bool SlabServer::holds(std::string_view name) const { return slab_->holds(name) && layerOfBias(name).empty(); }

TensorDesc SlabServer::storedDesc(std::string_view name, ElementType element) const {
  TensorDesc desc = slab_->desc(name, element);
  desc.layout.space = Space::DeviceDram;
  return desc;
}

uint64_t SlabServer::linkBytes(std::string_view name) const {
  return device_->hasUnifiedMemory() ? 0 : slab_->storedBytes(name);
}

size_t SlabServer::buffers() const { return reader_->buffers(); }

void SlabServer::readAhead(std::vector<std::string> order) {
  for (std::string &name : order)
    name = slab_->layer(name).canonicalName;
  reader_->readAhead(std::move(order));
}

void SlabServer::waitForReadAhead() { reader_->waitUntilIdle(); }

/// `desc` as bytes and nothing else.
static std::shared_ptr<const TensorDesc> bytesOf(const TensorDesc &desc, Space space) {
  return std::make_shared<const TensorDesc>(TensorDesc({int64_t(desc.spanBytes())}, ElementType::i8, {.space = space}));
}

Tensor SlabServer::bringStored(std::string_view name, const std::shared_ptr<Storage> &staged, TensorDesc desc,
                               const TransferOptions &options) {
  desc.layout.space = staged->space();
  if (device_->hasUnifiedMemory())
    return Tensor::in(staged, std::make_shared<const TensorDesc>(std::move(desc)));
  TransferEngine &engine = device_->transfer();
  Tensor bytes = Tensor::in(staged, bytesOf(desc, staged->space()));
  uint64_t before = engine.counters().h2dBytes;
  Tensor there = engine.toLayout(device_, bytes, bytesOf(desc, Space::DeviceDram), options);
  if (!there)
    return there;
  uint64_t sent = engine.counters().h2dBytes - before;
  telemetry_.bytesH2d += sent;
  telemetry_.bytesSaved += int64_t(slab_->size(name).bf16) - int64_t(sent);
  desc.layout.space = Space::DeviceDram;
  return Tensor::in(there.storage(), std::make_shared<const TensorDesc>(std::move(desc)));
}

SlabServer::Brought SlabServer::bring(std::string_view name, ElementType element, const TransferOptions &options) {
  const SlabLayer &layer = slab_->layer(name);
  Reader::Result result = reader_->take(layer.canonicalName);
  ++(result.wasReadAhead ? hits_ : misses_);
  Brought brought;
  try {
    if (result.failure)
      std::rethrow_exception(result.failure);
    TensorDesc desc = slab_->desc(name, element);
    if (layer.form()->scheme == SlabScheme::Int4Group) {
      brought.isPacked = true;
      desc = TensorDesc({int64_t(slab_->storedBytes(name))}, ElementType::i8);
    }
    brought.tensor = bringStored(name, result.storage, std::move(desc), options);
  } catch (const Error &error) {
    bool isDamaged = result.failure && error.code() == ErrorCode::ChecksumMismatch;
    reader_->give(std::move(result));
    if (!isDamaged)
      throw;
    ++telemetry_.crcFailures;
    if (options_.fallback)
      brought.tensor = options_.fallback(device_, name);
    if (!brought.tensor)
      throw error.within("weight \"" + std::string(name) + "\" is damaged and there is no checkpoint to serve it from");
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

/// What unpacking needs to know; queued work keeps it.
namespace {
struct UnpackJob {
  Int4Weight weight;
  ElementType element;
  uint64_t rowBytes;
};
} // namespace

static int64_t unpackKernel(void *const *args, int64_t begin, int64_t end) {
  const auto &job = *static_cast<const UnpackJob *>(args[0]);
  for (int64_t row = begin; row < end; ++row)
    job.weight.dequantizeRow(row, job.element, static_cast<std::byte *>(args[1]) + uint64_t(row) * job.rowBytes);
  return 0;
}

/// Rows that pay for waking another thread.
static constexpr int64_t unpackGrain = 16;

Tensor SlabServer::unpack(std::string_view name, const Tensor &packed, ElementType element) {
  SlabSize size = slab_->size(name);
  TensorDesc desc = slab_->desc(name, element);
  desc.layout.space = Space::DeviceDram;
  uint64_t written = desc.spanBytes();
  Tensor target = Tensor::empty(device_, std::move(desc));
  auto job = std::make_shared<UnpackJob>(
      UnpackJob{Int4Weight(size, *slab_->layer(name).group, packed.bytes(), packed.bytes() + Slab::int4ScalesAt(size)),
                element, uint64_t(size.in) * byteSize(element)});
  Storage &from = *packed.storage(), &into = *target.storage();
  Fence after = from.writes();
  after.join(into.uses());
  Work work;
  work.label = "dequantise";
  work.cost.memoryBytes = packed.desc().spanBytes() + written;
  work.run = [job, target = target.bytes(), source = from.writes().empty() ? nullptr : from.outcome(),
              outcome = into.outcome(), &device = *device_] {
    if (const Error *error = source ? source->error() : nullptr) {
      outcome->fail(*error);
      return;
    }
    void *args[] = {job.get(), target};
    device.launch(unpackKernel, args, int64_t(job->weight.rows()), unpackGrain, device.threads());
  };
  Fence fence(Queue::Compute, device_->enqueue(Queue::Compute, after, std::move(work)));
  from.addRead(fence);
  into.addWrite(fence);
  return target;
}

template <typename Convert>
void SlabServer::finish(std::string_view name, Brought brought, const TensorDesc &wanted, Convert convert) {
  ElementType decoded = isFloat(wanted.element) ? wanted.element : ElementType::f32;
  auto run = [&] { convert(brought.isPacked ? unpack(name, brought.tensor, decoded) : brought.tensor); };
  uint64_t before = device_->transfer().counters().h2dBytes;
  bool dequantises =
      brought.isPacked || (isRowStorage(brought.tensor.desc().layout.storage) && !isRowStorage(wanted.layout.storage));
  if (!dequantises || !device_->hasBytes()) {
    run();
  } else if (device_->runsInline()) {
    double begin = device_->seconds();
    run();
    clock_->nanoseconds += uint64_t((device_->seconds() - begin) * 1e9);
  } else {
    // Two marks on the queue that converts, the first after the bytes are there.
    auto begin = std::make_shared<double>(0);
    Work mark;
    mark.label = "dequantising begins";
    mark.run = [begin, &device = *device_] { *begin = device.seconds(); };
    device_->enqueue(Queue::Compute, brought.tensor.storage()->writes(), std::move(mark));
    run();
    mark.label = "dequantising ends";
    mark.run = [begin, clock = clock_, &device = *device_] {
      clock->nanoseconds += uint64_t((device.seconds() - *begin) * 1e9);
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
    // Where memory is unified, what was brought lies in a buffer of the ring.
    served = device_->hasUnifiedMemory() ? engine.copyTo(device_, tensor, wanted, options)
                                         : engine.toLayout(device_, tensor, wanted, options);
  };
  if (brought.tensor)
    finish(name, std::move(brought), *wanted, convert);
  return served;
}

bool SlabServer::serveInto(std::string_view name, const Tensor &target, const TransferOptions &options) {
  Brought brought = bring(name, target.element(), options);
  if (!brought.tensor)
    return false;
  finish(name, std::move(brought), target.desc(),
         [&](const Tensor &tensor) { device_->transfer().copyInto(tensor, target, options); });
  return true;
}

SlabTelemetry SlabServer::takeTelemetry() {
  SlabTelemetry taken = std::exchange(telemetry_, {});
  taken.dequantMs = double(clock_->nanoseconds.exchange(0)) * 1e-6;
  return taken;
}

} // namespace segue::inline runtime
