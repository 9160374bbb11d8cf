//===- TransferEngine.cpp - everything that moves on a device -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The half that decides: is anything to be done, is there a cached copy, which
// plan, what memory. Giving the steps of a plan to the queues is Hops.cpp.
//
//===----------------------------------------------------------------------===//

#include "TransferEngineImpl.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/L1Compactor.h"
#include <cstdio>
#include <utility>

namespace segue::inline runtime {

TransferEngine::Impl::Impl(TransferEngine &engine, Device &device) : engine(engine), device(device) {
  roomMaker = device.memory().addRoomMaker(
      "derived layouts", 1, [this](Space space, uint64_t wanted) { return this->engine.dropDerived(space, wanted); });
  stagingOwner = device.memory().intern({.program = {}, .value = "(staging)", .role = {}, .block = {}, .location = {}});
  warn = [](const std::string &text) { std::fprintf(stderr, "segue: warning: %s\n", text.c_str()); };
  if (device.diskLink())
    takePassingBuffers();
}

TransferEngine::TransferEngine(Device &device) : device_(device), impl_(std::make_unique<Impl>(*this, device)) {}
TransferEngine::~TransferEngine() = default;

std::shared_ptr<TransferEngine> makeTransferEngine(Device &device) { return std::make_shared<TransferEngine>(device); }

void TransferEngine::configure(StitchOptions options) {
  given_ = std::move(options);
  if (!inUse_)
    putInForce(given_);
}

TransferEngine::OptionsHandle TransferEngine::hold(StitchOptions options) {
  return {new StitchOptions(std::move(options)), [this](const StitchOptions *held) {
            if (inUse_ == held)
              use(nullptr);
            delete held;
          }};
}

void TransferEngine::use(const OptionsHandle &options) {
  inUse_ = options.get();
  putInForce(options ? *options : given_);
}

void TransferEngine::putInForce(const StitchOptions &options) {
  if (options == options_)
    return;
  options_ = options;
  impl_->cache.clear();
  if (L1Compactor *compactor = device_.l1Compactor())
    compactor->setBounceAllowed(options_.l1Bounce == L1Bounce::Allow);
  std::lock_guard lock(impl_->plansMutex);
  impl_->plans.clear();
}

std::string TransferConsumer::str() const {
  if (program.empty())
    return tensor;
  return "program \"" + program + "\"" + (tensor.empty() ? "" : ", " + tensor);
}

//===----------------------------------------------------------------------===//
// Plans
//===----------------------------------------------------------------------===//

/// Mixes a description into a hash. Allocates nothing, unlike TensorDesc::hash, and tells offsets and spaces apart.
static uint64_t mix(uint64_t hash, const TensorDesc &desc) {
  auto add = [&](uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  };
  add(uint64_t(desc.element) | uint64_t(desc.layout.storage) << 8 | uint64_t(desc.layout.space) << 16 |
      uint64_t(desc.layout.zeroPoints) << 24 | uint64_t(desc.layout.alignment) << 32);
  for (int64_t extent : desc.shape)
    add(uint64_t(extent));
  for (int64_t stride : desc.layout.strides)
    add(uint64_t(stride) + 1);
  for (uint32_t extent : desc.layout.tile)
    add(uint64_t(extent) << 32);
  return hash;
}

/// Plans beyond this many are forgotten, all at once: no program has so many
/// inputs, but a caller may feed ever new shapes.
static constexpr size_t maxPlans = 4096;

std::shared_ptr<const TransferPlan> TransferEngine::plan(const TensorDesc &given, const TensorDesc &wanted,
                                                         bool forced) {
  uint64_t hash = mix(mix(forced, given), wanted);
  {
    std::lock_guard lock(impl_->plansMutex);
    auto [begin, end] = impl_->plans.equal_range(hash);
    for (auto it = begin; it != end; ++it)
      if (it->second.forced == forced && it->second.given == given && it->second.wanted == wanted)
        return it->second.plan;
  }
  auto made = std::make_shared<const TransferPlan>(planTransfer(given, wanted, device_, options_, forced));
  std::lock_guard lock(impl_->plansMutex);
  if (impl_->plans.size() >= maxPlans)
    impl_->plans.clear();
  impl_->plans.emplace(hash, Impl::PlanEntry{given, wanted, forced, made});
  return made;
}

//===----------------------------------------------------------------------===//
// toLayout and copies
//===----------------------------------------------------------------------===//

static std::string nameOf(const Tensor &tensor, const TransferOptions &options) {
  return options.consumer ? options.consumer->str() : "toLayout: " + tensor.desc().str();
}

/// Returns a tensor of `desc` at the start of new storage.
static Tensor makeTensor(const DeviceRef &device, std::shared_ptr<const TensorDesc> desc, OwnerId owner) {
  if (desc->layout.offset != 0) {
    TensorDesc moved = *desc;
    moved.layout.offset = 0;
    desc = std::make_shared<const TensorDesc>(std::move(moved));
  }
  auto storage = Storage::allocate(device, desc->layout.space, desc->spanBytes(), desc->layout.alignment, owner);
  return Tensor::in(std::move(storage), std::move(desc));
}

/// A tensor of another device as memory of this process, which `device` may
/// read. Blocks until it is there.
static Tensor onHostOf(const DeviceRef &device, const Tensor &tensor) {
  Tensor host = tensor;
  if (!tensor.device()->hasUnifiedMemory() && !isHostSpace(tensor.desc().layout.space)) {
    TensorDesc desc = tensor.desc();
    desc.layout.space = Space::Host;
    desc.layout.offset = 0;
    host = tensor.device()->transfer().toLayout(tensor.device(), tensor,
                                                std::make_shared<const TensorDesc>(std::move(desc)));
  }
  wait(host);
  TensorDesc desc = host.desc();
  desc.layout.space = Space::Host;
  desc.layout.offset = 0;
  void *data = host.bytes();
  auto storage = Storage::wrap(device, data, desc.spanBytes(), [host = std::move(host)] {}, /*writable=*/false);
  return Tensor::in(std::move(storage), std::make_shared<const TensorDesc>(std::move(desc)));
}

Tensor TransferEngine::toLayout(const DeviceRef &device, Tensor tensor, std::shared_ptr<const TensorDesc> wanted,
                                const TransferOptions &options) {
  Tensor result = std::move(tensor);
  impl_->toLayout(device, result, wanted, options);
  return result;
}

Alignment TransferEngine::Impl::toLayout(const DeviceRef &device, Tensor &tensor,
                                         const std::shared_ptr<const TensorDesc> &wanted,
                                         const TransferOptions &options) {
  tensor.storage()->requireUsable(nameOf(tensor, options));
  if (tensor.device() != device) {
    tensor = copy(device, onHostOf(device, tensor), wanted, options);
    return Alignment::Converted;
  }
  if (tensor.shape() == wanted->shape && tensor.element() == wanted->element && hasLayout(tensor, wanted->layout))
    return Alignment::Elided;
  bool cached = options.isParameter && options.retain && engine.options().derivedCache;
  if (cached)
    if (Tensor derived = cache.find(tensor, *wanted); derived) {
      tensor = std::move(derived);
      return Alignment::Cached;
    }
  // The last handle may go as soon as the transfer is queued.
  bool givenUp = !options.retain || tensor.isSoleOwner();
  if (givenUp && tensor.desc().layout.space == Space::DeviceL1 && wanted->layout.space == Space::DeviceL1) {
    moveWithinL1(device, tensor, wanted, options);
    return Alignment::Converted;
  }
  Tensor result = copy(device, tensor, wanted, options);
  if (cached && result) {
    uint64_t evictions = 0;
    cache.insert(tensor, result, engine.options().derivedCacheMaxBytes, evictions);
    engine.counters().cacheEvictions += evictions;
  }
  if (!options.retain && result)
    tensor.storage()->free();
  tensor = std::move(result);
  return Alignment::Converted;
}

/// Moves a tensor within L1, which holds both copies if it can; otherwise the tensor leaves it for a moment.
void TransferEngine::Impl::moveWithinL1(const DeviceRef &device, Tensor &tensor,
                                        const std::shared_ptr<const TensorDesc> &wanted,
                                        const TransferOptions &options) {
  try {
    Tensor result = copy(device, tensor, wanted, options);
    tensor.storage()->free();
    tensor = std::move(result);
    return;
  } catch (const Error &error) {
    if (error.code() != ErrorCode::DeviceOom)
      throw;
    if (engine.options().l1Bounce == L1Bounce::Forbid)
      throw error.within(nameOf(tensor, options) +
                         " does not fit in device_l1 twice, and memory.stitch.l1_bounce forbids the way through "
                         "device_dram");
  }
  TensorDesc dram = tensor.desc();
  dram.layout.space = Space::DeviceDram;
  dram.layout.offset = 0;
  Tensor away = copy(device, tensor, std::make_shared<const TensorDesc>(std::move(dram)), options);
  tensor.storage()->free();
  ++engine.counters().bounces;
  tensor = copy(device, away, wanted, options);
}

Tensor TransferEngine::Impl::copy(const DeviceRef &device, const Tensor &source,
                                  const std::shared_ptr<const TensorDesc> &wanted, const TransferOptions &options) {
  auto plan = engine.plan(source.desc(), *wanted, /*forced=*/true);
  Tensor target = makeTensor(device, wanted, options.owner);
  return run(std::move(plan), source, target, options) ? target : Tensor();
}

Alignment TransferEngine::align(const DeviceRef &device, Tensor &tensor,
                                const std::shared_ptr<const TensorDesc> &wanted, const TransferOptions &options) {
  std::shared_ptr<const TensorDesc> given = tensor.sharedDesc();
  Alignment alignment = impl_->toLayout(device, tensor, wanted, options);
  if (alignment == Alignment::Converted && !isLossless(*given, *wanted))
    impl_->noteLossy(*given, *wanted, options);
  counters_.inputs += 1;
  (alignment == Alignment::Elided   ? counters_.inputsElided
   : alignment == Alignment::Cached ? counters_.cacheHits
                                    : counters_.inputsConverted) += 1;
  return alignment;
}

void TransferEngine::Impl::noteLossy(const TensorDesc &given, const TensorDesc &wanted,
                                     const TransferOptions &options) {
  ++engine.counters().lossyCasts;
  if (engine.options().lossyCasts != LossyCasts::Warn)
    return;
  std::string text = (options.consumer ? options.consumer->str() : std::string("an input")) + ": " + given.str() +
                     " is converted to " + wanted.str() + ", which loses bits (memory.stitch.lossy_casts)";
  if (warned.insert(text).second) // once, not once per step
    warn(text);
}

void TransferEngine::setWarn(std::function<void(const std::string &)> warn) { impl_->warn = std::move(warn); }

Tensor TransferEngine::copyTo(const DeviceRef &device, const Tensor &tensor, std::shared_ptr<const TensorDesc> wanted,
                              const TransferOptions &options) {
  tensor.storage()->requireUsable(nameOf(tensor, options));
  return impl_->copy(device, tensor.device() == device ? tensor : onHostOf(device, tensor), wanted, options);
}

/// Returns true if writing one would change what the other reads.
static bool overlap(const Tensor &a, const Tensor &b) {
  const std::byte *aBegin = a.bytes(), *bBegin = b.bytes();
  return aBegin < bBegin + b.desc().spanBytes() && bBegin < aBegin + a.desc().spanBytes();
}

void TransferEngine::copyInto(const Tensor &source, const Tensor &target, const TransferOptions &options) {
  if (!target.storage()->isWritable())
    throw Error(ErrorCode::InvalidArgument, "copyInto: " + target.desc().str() + " is read-only memory");
  const DeviceRef &device = target.device();
  source.storage()->requireUsable("copyInto: " + source.desc().str());
  Tensor from = source.device() == device ? source : onHostOf(device, source);
  // The memory may be written whole even if what it held was never there.
  bool whole = target.desc().layout.offset == 0 && target.desc().spanBytes() == target.storage()->bytes();
  if (!whole || target.storage()->state() == StorageState::Freed)
    target.storage()->requireUsable("copyInto: " + target.desc().str());
  bool sameStorage = from.storage() == target.storage();
  if (sameStorage && from.desc() == target.desc())
    return;
  auto plan = this->plan(from.desc(), target.desc(), /*forced=*/true);
  if (overlap(from, target)) {
    TensorDesc aside(from.shape(), from.element(), from.desc().layout);
    aside.layout.strides.clear();
    aside.layout.offset = 0;
    if (aside.layout.space == Space::DeviceL1) {
      if (options_.l1Bounce == L1Bounce::Forbid)
        throw Error(ErrorCode::InvalidArgument,
                    "copyInto: " + from.desc().str() + " and " + target.desc().str() +
                        " overlap in device_l1, and memory.stitch.l1_bounce forbids the way through device_dram");
      aside.layout.space = Space::DeviceDram;
      ++counters_.bounces;
    }
    from = impl_->copy(device, from, std::make_shared<const TensorDesc>(std::move(aside)), options);
    plan = this->plan(from.desc(), target.desc(), /*forced=*/true);
  }
  if (whole && !sameStorage && !options.keepsOutcome)
    target.storage()->forgetOutcome();
  TransferOptions required = options; // what is to be overwritten cannot be left for later
  required.priority = std::min(options.priority, TransferPriority::Required);
  impl_->run(std::move(plan), from, target, required);
  target.storage()->bumpVersion();
}

//===----------------------------------------------------------------------===//
// Cached copies
//===----------------------------------------------------------------------===//

uint64_t TransferEngine::dropDerived(Space space, uint64_t bytes) {
  uint64_t evictions = 0;
  uint64_t freed = impl_->cache.evict(space, bytes, evictions);
  counters_.cacheEvictions += evictions;
  return freed;
}

uint64_t TransferEngine::derivedBytes() const { return impl_->cache.bytes(); }

//===----------------------------------------------------------------------===//
// Records
//===----------------------------------------------------------------------===//

StitchTelemetry TransferEngine::record(int64_t step) {
  StitchTelemetry line;
  line.step = step;
  Impl::Recorded &last = impl_->recorded;
  auto since = [](uint64_t now, uint64_t &before) { return now - std::exchange(before, now); };
  line.submits = since(counters_.submits, last.submits);
  line.inputs = since(counters_.inputs, last.inputs);
  line.inputs_elided = since(counters_.inputsElided, last.inputsElided);
  line.inputs_converted = since(counters_.inputsConverted, last.inputsConverted);
  line.cache_hits = since(counters_.cacheHits, last.cacheHits);
  line.h2d_bytes = since(counters_.h2dBytes, last.h2dBytes);
  line.d2h_bytes = since(counters_.d2hBytes, last.d2hBytes);
  line.host_bytes = since(counters_.hostBytes, last.hostBytes);
  uint64_t d2dBytes = counters_.d2dBytes, bounces = counters_.bounces, compactions = 0;
  if (const L1Compactor *compactor = device_.l1Compactor()) {
    d2dBytes += compactor->copiedBytes();
    bounces += compactor->bounces();
    compactions += compactor->compactions();
  }
  line.d2d_bytes = since(d2dBytes, last.d2dBytes);
  line.bounces = since(bounces, last.bounces);
  line.l1_compactions = since(compactions, last.l1Compactions);
  line.l1_fallbacks = since(counters_.l1Fallbacks, last.l1Fallbacks);
  line.donations_ignored = since(counters_.donationsIgnored, last.donationsIgnored);
  line.lossy_casts = since(counters_.lossyCasts, last.lossyCasts);
  line.wait_ms = double(since(counters_.waitNanoseconds, last.waitNanoseconds)) * 1e-6;
  line.align_ms = double(since(counters_.alignNanoseconds, last.alignNanoseconds)) * 1e-6;
  return line;
}

void TransferEngine::addToTrace(std::shared_ptr<CopyRecord> record) {
  std::lock_guard lock(impl_->traceMutex);
  impl_->trace.push_back(std::move(record));
  if (tracers_ <= 0 && impl_->trace.size() > mostTraced)
    impl_->trace.pop_front();
}

std::vector<CopyRecord> TransferEngine::takeTrace() {
  std::deque<std::shared_ptr<CopyRecord>> kept;
  {
    std::lock_guard lock(impl_->traceMutex);
    kept.swap(impl_->trace);
  }
  if (!kept.empty())
    device_.drain(); // their times are written by the work itself
  std::vector<CopyRecord> records;
  for (const auto &record : kept)
    records.push_back(*record);
  return records;
}

//===----------------------------------------------------------------------===//
// What a program may be given
//===----------------------------------------------------------------------===//

bool checkConversion(const std::string &where, const Tensor &given, const TensorDesc &wanted, const Device &device,
                     LossyCasts policy) {
  auto mismatch = [&](const std::string &wayOut) {
    return Error(ErrorCode::LayoutMismatch,
                 where + ": " + given.desc().str() + " given, " + wanted.str() + " declared; " + wayOut);
  };
  if (given.shape() != wanted.shape)
    throw mismatch("compile for this shape");
  if (given.element() != wanted.element)
    throw mismatch("element types never change by themselves, convert with toLayout");
  if (given.device().get() != &device)
    throw mismatch("it is on device \"" + given.device()->name() + "\", the program runs on another, \"" +
                   device.name() + "\"; move it with toLayout");
  if (isLossless(given.desc(), wanted))
    return false;
  if (policy == LossyCasts::Error)
    throw mismatch("storing it so loses bits; convert it with toLayout, or set memory.stitch.lossy_casts to \"allow\" "
                   "or \"warn\"");
  return true;
}

} // namespace segue::inline runtime
