//===- WeightBlocks.cpp - what comes with which block ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The weights of each block, from the programs, where they are read, and the memory that
// they come to.
//
//===----------------------------------------------------------------------===//

#include "WeightStreamerImpl.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/WeightMatching.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace segue::inline runtime {

static uint64_t alignUp(uint64_t value, uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

std::string WeightStreamer::Impl::inModule(const std::string &module, std::string_view name, const char *separator) {
  return module.empty() ? std::string(name) : module + separator + std::string(name);
}

void WeightStreamer::add(StepPhase phase, const std::string &module, const Program &program, const Sources &sources) {
  impl_->add(impl_->phases[size_t(phase) - size_t(StepPhase::Forward)], module, program, sources);
}

void WeightStreamer::addEvaluation(const std::string &module, const Program &program, const Sources &sources) {
  impl_->add(impl_->evaluation, module, program, sources);
}

/// Returns the parameters that a program's blocks begin and end to use, each behind its block, in an order of its own.
static std::vector<std::string> usesByBlock(const Program &program) {
  std::vector<std::string> found;
  BlockUses uses = blockUses(program);
  for (const BlockUse &use : uses.blocks)
    for (const std::vector<uint32_t> *inputs : {&use.firstTouched, &use.lastTouched})
      for (uint32_t input : *inputs)
        if (const Value &value = program.inputs()[input];
            uses.streamable[input] && (value.role == Role::Parameter || value.role == Role::Frozen))
          found.push_back(use.name + "/" + value.name);
  std::ranges::sort(found);
  return found;
}

void WeightStreamer::requireAlike(const std::string &module, const Program &program, const Program &like) const {
  if (usesByBlock(program) != usesByBlock(like))
    throw Error(ErrorCode::Unsupported, "program \"" + program.name() + "\" of module \"" + module +
                                            "\" for batches of other extents touches parameters in other blocks than "
                                            "the first one, whose blocks Weight Stagehand streams; pad such batches");
}

void WeightStreamer::addAlike(const std::string &module, const Program &program, const Sources &sources) {
  Impl::Order unused;
  impl_->add(unused, module, program, sources);
}

void WeightStreamer::Impl::add(Order &order, const std::string &module, const Program &program,
                               const Sources &sources) {
  if (policy)
    throw Error(ErrorCode::StateTransition, "weight streamer: program \"" + program.name() + "\" is added after start");
  std::pair key{program.image().get(), program.index()};
  for (auto [it, end] = byProgram.equal_range(key); it != end; ++it)
    if (it->second->module == module)
      return order.push_back(it->second);
  auto plan = std::make_unique<ProgramPlan>(ProgramPlan{program, module, blockUses(program), {}, {}});
  plan->inputs.resize(program.inputs().size());
  for (uint32_t i = 0; i < program.inputs().size(); ++i) {
    const Value &value = program.inputs()[i];
    if (value.role != Role::Parameter && value.role != Role::Frozen)
      continue;
    std::unique_ptr<Weight> &weight = weights[inModule(module, value.name, ".")];
    if (!weight) {
      weight = std::make_unique<Weight>();
      weight->key = inModule(module, value.name, ".");
      weight->value = value;
      weight->sources = sources;
      weightOrder.push_back(weight.get());
    }
    weight->isStreamed &= plan->uses.streamable[i];
    if (plan->uses.streamable[i])
      plan->inputs[i] = weight.get();
    if (plan->uses.written[i] && weight->writer.empty())
      weight->writer = program.name();
  }
  for (const BlockUse &use : plan->uses.blocks)
    for (const std::vector<uint32_t> *touched : {&use.firstTouched, &use.lastTouched})
      for (uint32_t input : *touched)
        if (Weight *weight = plan->inputs[input]) {
          std::string id = inModule(module, use.name, "/");
          if (weight->blockId.empty()) {
            weight->blockId = id;
            weight->blockName = use.name;
            weight->module = module;
          }
          weight->isStreamed &= weight->blockId == id;
        }
  byProgram.emplace(key, plan.get());
  order.push_back(plan.get());
  programs.push_back(std::move(plan));
}

std::string WeightStreamer::blockOf(const std::string &module, std::string_view parameter) const {
  auto it = impl_->weights.find(Impl::inModule(module, parameter, "."));
  return it != impl_->weights.end() && it->second->isStreamed ? it->second->blockName : "";
}

const std::shared_ptr<SlabSource> &WeightStreamer::slab() const { return impl_->options.slab; }
void WeightStreamer::addSlab(std::shared_ptr<SlabSource> slab) { impl_->formSlabs.push_back(std::move(slab)); }

bool WeightStreamer::reservePinned(uint64_t bytes) {
  return !impl_->options.reserve || impl_->options.reserve(Space::HostPinned, bytes);
}

void WeightStreamer::releasePinned(uint64_t bytes) {
  if (impl_->options.release)
    impl_->options.release(Space::HostPinned, bytes);
}

bool WeightStreamer::hasProgram(const Program &program) const {
  return impl_->byProgram.contains({program.image().get(), program.index()});
}

//===----------------------------------------------------------------------===//
// Start
//===----------------------------------------------------------------------===//

bool WeightStreamer::isStarted() const { return impl_->policy.has_value(); }

void WeightStreamer::gatherBy(std::shared_ptr<Collectives> ranks, std::function<void(const std::string &)> told) {
  if (impl_->config.policy != WeightStagehandConfig::Policy::Static)
    throw Error(ErrorCode::Unsupported, "memory.stagehand.policy: \"planned\" chooses by the times that a rank has "
                                        "measured, and ranks that gather parameters bring the same blocks in one "
                                        "order; set it to \"static\"");
  impl_->ranks = std::move(ranks);
  impl_->toldOfGathering = std::move(told);
}

bool WeightStreamer::gathers() const { return impl_->ranks != nullptr; }

void WeightStreamer::gatherForOthers(const std::string &block) {
  impl_->device->wait(impl_->gather(*impl_->byId.at(block), /*keeps=*/false));
}

bool WeightStreamer::Impl::isElsewhere(const WeightSource &source) const {
  return source.rank && *source.rank != ranks->rank();
}

void WeightStreamer::start() {
  if (impl_->policy)
    throw Error(ErrorCode::StateTransition, "weight streamer: started twice");
  try {
    impl_->start();
  } catch (...) {
    impl_->stop();
    throw;
  }
}

void WeightStreamer::Impl::start() {
  askSources();
  openFiles();
  makeBlocks();
  makeUses();
  takeMemory();
  registerBlocks();
  for (const auto &claim : *claims)
    claim->scope = claim->apply(*policy);
  for (const auto &block : blocks)
    if (std::ranges::any_of(block->weights, [](const Weight *weight) { return weight->slab != nullptr; }))
      restate(*block);
}

void WeightStreamer::stop() {
  impl_->device->drain();
  impl_->stop();
}

void WeightStreamer::Impl::stop() {
  for (const auto &claim : *claims)
    claim->scope.release();
  looks.clear();
  runs.clear();
  waits.clear();
  earlierMost = policy ? stagehand().ring().most : earlierMost;
  policy.reset();
  freeSlots.clear();
  awaited.clear();
  byItem.clear();
  residency.reset();
  open.clear();
  lent.clear();
  byHome.clear();
  current = nullptr;
  inStep = isEvaluating = false;
  for (Weight *weight : weightOrder) {
    weight->source = {};
    weight->file = nullptr;
    weight->block = nullptr;
    weight->version = 0;
  }
  byId.clear();
  blocks.clear(); // with the slabs that they hold
  pool.reset();
  if (options.release) {
    for (const auto &slot : ring)
      options.release(Space::DeviceDram, slot->bytes());
    if (poolBytes)
      options.release(Space::HostPinned, poolBytes);
  }
  poolBytes = 0;
  promised = owedSlots = 0;
  leastSlots = 1;
  if (!ring.empty())
    earlierRingBytes = int64_t(ring.size() * ring.front()->bytes());
  ring.clear();
  files.clear();
}

void WeightStreamer::Impl::askSources() {
  for (Weight *weight : weightOrder) {
    std::optional<WeightSource> source = weight->isStreamed ? weight->sources(weight->value) : std::nullopt;
    weight->desc = source ? weight->value.sharedDesc : nullptr;
    if (!source)
      continue;
    weight->source = *source;
    const Tensor &host = source->host;
    bool isOfHost = !source->file && !source->inSlab && !isElsewhere(*source);
    if (!weight->writer.empty() && !(isOfHost && host && host.storage()->isWritable()))
      throw Error(ErrorCode::InvalidArgument, "weight \"" + weight->key + "\" is written by program \"" +
                                                  weight->writer +
                                                  "\", and its source is read-only; give a tensor of the host");
    if (!host)
      continue;
    if (isOfHost && !isHostSpace(host.desc().layout.space) && !device->hasUnifiedMemory())
      throw Error(ErrorCode::InvalidArgument,
                  "weight \"" + weight->key + "\": " + host.desc().str() + " is no memory of the host");
    if (host.shape() != weight->desc->shape)
      throw Error(ErrorCode::LayoutMismatch, "weight \"" + weight->key + "\": " + host.desc().str() + " given, " +
                                                 weight->desc->str() + " declared");
    if (config.strictBf16 && host.element() != weight->desc->element)
      throw Error(ErrorCode::DtypeMismatch, "weight \"" + weight->key + "\" is stored as " +
                                                std::string(name(host.element())) + " and declared as " +
                                                std::string(name(weight->desc->element)) +
                                                "; convert it, or set strict_bf16 to false");
    weight->storedBytes = host.desc().spanBytes();
  }
}

/// The tensors that files have for weights; all that do not match at once.
void WeightStreamer::Impl::openFiles() {
  std::vector<std::pair<const SafetensorsFile *, std::vector<Weight *>>> wanted;
  for (Weight *weight : weightOrder) {
    const SafetensorsFile *opened = weight->desc ? weight->source.file.get() : nullptr;
    if (!opened)
      continue;
    auto known = std::ranges::find(wanted, opened, [](const auto &each) { return each.first; });
    if (known == wanted.end())
      known = wanted.insert(wanted.end(), {opened, {}});
    known->second.push_back(weight);
  }
  for (const auto &[opened, list] : wanted) {
    auto file = std::make_shared<const StoredFile>(*opened);
    std::vector<FrozenWeight> names;
    for (const Weight *weight : list)
      names.push_back({weight->source.name, weight->desc->shape, weight->desc->element});
    std::vector<SourceWeight> there;
    std::vector<const SafetensorsEntry *> entries;
    for (const SafetensorsEntry &entry : file->header().entries())
      if (entry.element) {
        there.push_back({entry.name, entry.shape, *entry.element});
        entries.push_back(&entry);
      }
    WeightMatch match = matchWeights(names, there, options.aliases, config.strictBf16);
    for (size_t i = 0; i < list.size(); ++i) {
      list[i]->file = file;
      list[i]->entry = entries[match.sources[i]];
      list[i]->storedBytes = list[i]->entry->bytes;
    }
    files.push_back(std::move(file));
  }
}

void WeightStreamer::Impl::describeStored(Weight &weight) {
  if (weight.source.inSlab) {
    if (!options.slab || !options.slab->holds(weight.source.name))
      throw Error(ErrorCode::MissingWeight,
                  "weight \"" + weight.key + "\" is to come from a slab, which has no \"" + weight.source.name + "\"");
    weight.storedBytes = options.slab->storedBytes(weight.source.name);
  }
  std::string source = weight.file            ? weight.source.file->path().string()
                       : weight.source.inSlab ? options.slab->path().string()
                                              : "the host's memory";
  weight.consumer = std::make_shared<const TransferConsumer>(
      "", "weight \"" + weight.key + "\" of block \"" + weight.blockId + "\", from " + source, "");
}

void WeightStreamer::Impl::makeBlocks() {
  for (Weight *weight : weightOrder) {
    if (!weight->desc)
      continue;
    describeStored(*weight);
    Block *&block = byId[weight->blockId];
    if (!block) {
      block = blocks.emplace_back(std::make_unique<Block>(*this)).get();
      block->id = weight->blockId;
      block->module = weight->module;
    }
    TensorDesc placed = *weight->desc;
    placed.layout.offset = block->slotBytes;
    placed.layout.alignment = slotAlignment;
    block->slotBytes = alignUp(block->slotBytes + placed.spanBytes(), slotAlignment);
    weight->desc = std::make_shared<const TensorDesc>(std::move(placed));
    weight->block = block;
    if (weight->source.host)
      byHome[weight->source.host.storage()->id()] = weight;
    block->storedBytes += weight->storedBytes;
    block->isStaged |= weight->file != nullptr;
    block->weights.push_back(weight);
  }
  residency.emplace(device);
  residency->setWarn(options.warn);
  for (const auto &block : blocks) {
    TensorDesc all({int64_t(block->slotBytes)}, ElementType::i8);
    block->desc = std::make_shared<const TensorDesc>(std::move(all));
    block->item = &residency->add(*block, block->id);
    byItem[block->item->id] = block.get();
  }
}

/// A block is in use from the first of its parameters to the last.
void WeightStreamer::Impl::makeUses() {
  for (const auto &plan : programs) {
    plan->blocks.assign(plan->uses.blocks.size(), {});
    std::map<Block *, std::pair<size_t, size_t>> spans;
    for (size_t i = 0; i < plan->uses.blocks.size(); ++i) {
      for (uint32_t input : plan->uses.blocks[i].firstTouched)
        if (Weight *weight = plan->inputs[input]; weight && weight->block)
          spans.try_emplace(weight->block, i, i);
      for (uint32_t input : plan->uses.blocks[i].lastTouched)
        if (Weight *weight = plan->inputs[input]; weight && weight->block)
          spans.at(weight->block).second = i;
    }
    for (const auto &[block, span] : spans) {
      plan->blocks[span.first].begins = block;
      plan->blocks[span.second].ends = block;
    }
    for (size_t i = 0; i < plan->blocks.size(); ++i)
      if (auto block = byId.find(inModule(plan->module, plan->uses.blocks[i].name, "/")); block != byId.end())
        plan->blocks[i].part = block->second;
    size_t openNow = 0;
    for (const Use &use : plan->blocks) {
      leastSlots = std::max(leastSlots, openNow += use.begins != nullptr);
      openNow -= use.ends != nullptr;
    }
  }
  if (ranks) // what one rank has no room for, the others would send all the same
    leastSlots = std::min(leastSlots + size_t(config.prefetchWindowBlocks), std::max<size_t>(blocks.size(), 1));
}

std::vector<std::string> WeightStreamer::Impl::blocksOf(const Order &order) const {
  std::vector<std::string> ids;
  for (const ProgramPlan *plan : order)
    for (const Use &use : plan->blocks)
      if (use.begins)
        ids.push_back(use.begins->id);
  return ids;
}

/// Blocks are registered in the order in which they first run.
void WeightStreamer::Impl::registerBlocks() {
  std::set<std::string> registered;
  for (const Order *order : {&phases[0], &phases[1], &phases[2], &evaluation})
    for (const std::string &id : blocksOf(*order)) {
      if (!registered.insert(id).second)
        continue;
      const Block &block = *byId.at(id);
      auto has = [&](auto &&property) { return std::ranges::any_of(block.weights, property); };
      bool isMutable = has([](const Weight *weight) { return !weight->writer.empty(); });
      bool fromSlab = has([](const Weight *weight) { return weight->source.inSlab; });
      WeightBacking backing = block.isStaged && isMutable ? WeightBacking::FileMutable
                              : block.isStaged            ? WeightBacking::File
                              : fromSlab                  ? WeightBacking::Slab
                                                          : WeightBacking::ResidentSource;
      WeightBlock registered{.id = id,
                             .bytes = int64_t(block.storedBytes),
                             .backing = backing,
                             .staged = block.isStaged,
                             .model = block.module,
                             .source = {}};
      policy->tell(weight_calls::registered,
                   weight_calls::Registration{.model = block.module, .blocks = {std::move(registered)}});
    }
  setOrders(/*isTraining=*/true);
}

void WeightStreamer::Impl::setOrders(bool isTraining) {
  for (size_t i = 0; i < 3; ++i)
    policy->tell(weight_calls::order, StepPhase(size_t(StepPhase::Forward) + i),
                 isTraining ? blocksOf(phases[i])
                 : i == 0   ? blocksOf(evaluation)
                            : std::vector<std::string>{});
}

/// Takes the pool. Too small a pool is slower, never wrong: without one, reads go through
/// other memory of the host. The pool that the config asks for is taken or refused.
void WeightStreamer::Impl::takePool(const WeightLimits &limits) {
  uint64_t slabBytes[] = {uint64_t(limits.slabBytes)};
  uint32_t count[] = {uint32_t(limits.slabs)};
  uint64_t bytes = slabBytes[0] * count[0];
  try {
    if (options.reserve && !options.reserve(Space::HostPinned, bytes))
      throw Error(ErrorCode::DeviceOom, "weight streamer: a pinned pool of " + std::to_string(bytes) +
                                            " bytes is more than pinned_cap_mb leaves");
    poolBytes = bytes;
    pool.emplace(device, slabBytes, count);
  } catch (const Error &error) {
    if (poolBytes && options.release)
      options.release(Space::HostPinned, std::exchange(poolBytes, 0));
    if (error.code() != ErrorCode::DeviceOom || config.pinnedPoolMiB || config.pinnedSlabMiB)
      throw;
    options.warn("weight streamer: no page-locked memory for a slab of " + std::to_string(limits.slabBytes) +
                 " bytes; weights of files are read through pageable memory");
    for (const auto &block : blocks)
      block->isStaged = false;
  }
}

/// Returns MiB with three digits, rounded up.
static std::string mibAtLeast(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", std::ceil(double(bytes) / 1048576 * 1000) / 1000);
  return text;
}

void WeightStreamer::Impl::takeMemory() {
  WeightSizes sizes;
  slotBytes = 0;
  std::string largest;
  for (const auto &block : blocks) {
    sizes.largestBlockBytes = std::max(sizes.largestBlockBytes, int64_t(block->storedBytes));
    if (block->slotBytes > slotBytes) {
      slotBytes = block->slotBytes;
      largest = block->id;
    }
  }
  DeviceMemory &memory = device->memory();
  sizes.vramBudgetBytes = int64_t(std::min<uint64_t>(memory.budget(Space::DeviceDram), uint64_t(1) << 60));
  sizes.hostBudgetBytes = int64_t(memory.budget(Space::HostPinned) -
                                  std::min(memory.budget(Space::HostPinned), memory.liveBytes(Space::HostPinned)));
  WeightLimits limits = config.limits(sizes);
  int64_t left = limits.highBytes - int64_t(memory.liveBytes(Space::DeviceDram));
  left = std::max({left, std::min(earlierRingBytes, limits.highBytes), int64_t(0)});
  int64_t slots = ranks ? int64_t(leastSlots) : options.slots;
  if (!slots && slotBytes)
    slots = left / int64_t(slotBytes);
  slots = std::min<int64_t>(slots, int64_t(blocks.size()));
  {
    Policy unused(nullptr, config, limits);
    checkPromotions(unused);
  }
  auto refuse = [&](const std::string &left) {
    std::string times = leastSlots > 1 ? std::to_string(leastSlots) + " slots" : "a slot";
    throw Error(ErrorCode::BudgetInfeasible, "weight streamer: block \"" + largest + "\" needs " + times + " of " +
                                                 std::to_string(slotBytes) + " bytes, and " + left);
  };
  if (slots < int64_t(leastSlots) && !blocks.empty()) {
    std::string what = std::to_string(left) + " are left below the high watermark of " +
                       std::to_string(limits.highBytes) + " bytes";
    if (config.highWatermarkMiB)
      what += "; set memory.stagehand.vram_high_watermark_mb to " +
              mibAtLeast(memory.liveBytes(Space::DeviceDram) + leastSlots * slotBytes) + " or more";
    refuse(what);
  }
  while (int64_t(ring.size()) < slots)
    if (!takeSlot())
      break; // fewer are slower, never wrong
  if (ring.size() < leastSlots && !blocks.empty())
    refuse("Conductor grants " + std::to_string(ring.size()) + " below vram_soft_cap_mb; raise " +
           "memory.stagehand.conductor_config.vram_soft_cap_mb");
  if (std::ranges::any_of(blocks, [](const auto &block) { return block->isStaged; }))
    takePool(limits);
  giveSlabsBuffers(limits);
  if (config.telemetry.enabled && !telemetry)
    telemetry.emplace(config.telemetry.file, options.warn);
  policy.emplace(options.events, config, limits);
  policy->note(weight_calls::start, limits);
  int64_t most = std::min(std::max(slots, earlierMost), int64_t(blocks.size()));
  policy->tell(weight_calls::ring,
               weight_calls::RingChange{int64_t(ring.size()), most, int64_t(slotBytes), int64_t(leastSlots)});
  if (options.isKept || ranks)
    changeRing({.isKept = true});
  if (!ranks)
    policy->tell(weight_calls::hints, hints);
}

bool WeightStreamer::Impl::isCurrent(const Program &program) const {
  return current && policy && current->program.image() == program.image() &&
         current->program.index() == program.index();
}

} // namespace segue::inline runtime
