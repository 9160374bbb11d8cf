//===- WeightStreamer.cpp - weights that come with their block ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What belongs to which block, from the programs, and the events of a step. The
// copies are in WeightCopies.cpp.
//
//===----------------------------------------------------------------------===//

#include "WeightStreamerImpl.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/WeightMatching.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// Where a parameter begins in its slot: what device_dram asks for.
static constexpr uint64_t slotAlignment = 512;

static uint64_t alignUp(uint64_t value) { return (value + slotAlignment - 1) / slotAlignment * slotAlignment; }

WeightStreamer::Impl::Impl(DeviceRef device, WeightStagehandConfig config, WeightStreamerOptions options)
    : device(std::move(device)), config(std::move(config)), options(std::move(options)),
      engine(this->device->transfer()) {
  if (!this->options.warn)
    this->options.warn = [](const std::string &text) { std::fprintf(stderr, "segue: warning: %s\n", text.c_str()); };
}

WeightStreamer::WeightStreamer(DeviceRef device, WeightStagehandConfig config, WeightStreamerOptions options)
    : impl_(std::make_unique<Impl>(std::move(device), std::move(config), std::move(options))) {}

WeightStreamer::~WeightStreamer() {
  try {
    impl_->device->drain();
  } catch (...) { // a device that failed runs nothing any more
  }
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

void WeightStreamer::add(StepPhase phase, const std::string &module, const Program &program, const Sources &sources) {
  if (impl_->policy)
    throw Error(ErrorCode::StateTransition, "weight streamer: program \"" + program.name() + "\" is added after start");
  impl_->add(phase, module, program, sources);
}

static std::string inModule(const std::string &module, const std::string &name, const char *separator) {
  return module.empty() ? name : module + separator + name;
}

void WeightStreamer::Impl::add(StepPhase phase, const std::string &module, const Program &program,
                               const Sources &sources) {
  auto plan = std::make_unique<ProgramPlan>(ProgramPlan{program, phase, blockUses(program), {}, {}});
  plan->inputs.resize(program.inputs().size());
  plan->blocks.resize(plan->uses.blocks.size());
  for (uint32_t i = 0; i < program.inputs().size(); ++i) {
    const Value &value = program.inputs()[i];
    if (value.role != Role::Parameter && value.role != Role::Frozen)
      continue;
    auto known = weights.find(inModule(module, value.name, "."));
    if (!plan->uses.streamable[i]) {
      if (known != weights.end())
        known->second->isStreamed = false;
      continue;
    }
    std::optional<WeightSource> source = sources(value);
    if (!source)
      continue;
    if (known == weights.end()) {
      plan->inputs[i] = &addWeight(module, program, i, *source);
    } else {
      plan->inputs[i] = known->second.get();
    }
    Weight &weight = *plan->inputs[i];
    bool isReadOnly = !weight.source.host || !weight.source.host.storage()->isWritable();
    if (plan->uses.written[i] && isReadOnly)
      throw Error(ErrorCode::InvalidArgument, "weight \"" + weight.key + "\" is written by program \"" +
                                                  program.name() +
                                                  "\", and its source is read-only; give a tensor of the host");
    weight.isWritten |= plan->uses.written[i];
  }
  for (const BlockUse &use : plan->uses.blocks)
    for (uint32_t input : use.firstTouched)
      if (Weight *weight = plan->inputs[input]) {
        std::string id = inModule(module, use.name, "/");
        if (weight->blockId.empty())
          weight->blockId = id;
        weight->isStreamed &= weight->blockId == id;
      }
  for (const BlockUse &use : plan->uses.blocks)
    for (uint32_t input : use.lastTouched)
      if (Weight *weight = plan->inputs[input])
        weight->isStreamed &= weight->blockId == inModule(module, use.name, "/");
  byProgram[{program.image().get(), program.index()}] = plan.get();
  programs.push_back(std::move(plan));
}

WeightStreamer::Impl::Weight &WeightStreamer::Impl::addWeight(const std::string &module, const Program &program,
                                                              uint32_t input, const WeightSource &source) {
  const Value &value = program.inputs()[input];
  auto weight = std::make_unique<Weight>();
  weight->key = inModule(module, value.name, ".");
  weight->desc = value.sharedDesc;
  weight->source = source;
  if (const Tensor &host = source.host) {
    if (!isHostSpace(host.desc().layout.space) && !device->hasUnifiedMemory())
      throw Error(ErrorCode::InvalidArgument,
                  "weight \"" + weight->key + "\": " + host.desc().str() + " is no memory of the host");
    if (host.shape() != value.desc().shape)
      throw Error(ErrorCode::LayoutMismatch, "weight \"" + weight->key + "\": " + host.desc().str() + " given, " +
                                                 value.desc().str() + " declared");
    weight->storedBytes = host.desc().spanBytes();
  }
  Weight &added = *(weights[weight->key] = std::move(weight));
  weightOrder.push_back(&added);
  return added;
}

/// The tensors that files have for weights; all that do not match at once.
void WeightStreamer::Impl::openFiles() {
  std::map<std::filesystem::path, std::vector<Weight *>> wanted;
  for (Weight *weight : weightOrder)
    if (!weight->source.file.empty())
      wanted[weight->source.file].push_back(weight);
  for (const auto &[path, list] : wanted) {
    auto file = std::make_shared<const StoredFile>(path);
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
    WeightMatch match = matchWeights(names, there, {}, config.strictBf16);
    for (size_t i = 0; i < list.size(); ++i) {
      list[i]->file = file;
      list[i]->entry = entries[match.sources[i]];
      list[i]->storedBytes = list[i]->entry->bytes;
    }
    files[path] = std::move(file);
  }
}

void WeightStreamer::Impl::describeStored(Weight &weight) {
  if (weight.source.inSlab) {
    if (!options.slab || !options.slab->holds(weight.source.name))
      throw Error(ErrorCode::MissingWeight,
                  "weight \"" + weight.key + "\" is to come from a slab, which has no \"" + weight.source.name + "\"");
    weight.storedBytes = options.slab->linkBytes(weight.source.name);
  }
  std::string source = weight.file            ? weight.source.file.string()
                       : weight.source.inSlab ? options.slab->slab().path().string()
                                              : "the host's memory";
  weight.consumer = std::make_shared<const TransferConsumer>(
      "", "weight \"" + weight.key + "\" of block \"" + weight.blockId + "\", from " + source, "");
}

void WeightStreamer::Impl::makeBlocks() {
  for (Weight *weight : weightOrder) {
    if (!weight->isStreamed)
      continue;
    describeStored(*weight);
    Block *&block = byId[weight->blockId];
    if (!block) {
      block = blocks.emplace_back(std::make_unique<Block>()).get();
      block->id = weight->blockId;
    }
    TensorDesc placed = *weight->desc;
    placed.layout.offset = block->slotBytes;
    placed.layout.alignment = slotAlignment;
    block->slotBytes = alignUp(block->slotBytes + placed.spanBytes());
    weight->desc = std::make_shared<const TensorDesc>(std::move(placed));
    weight->block = block;
    block->storedBytes += weight->storedBytes;
    block->isStaged |= weight->file != nullptr;
    block->weights.push_back(weight);
  }
}

/// A block is in use from the first of its parameters to the last.
void WeightStreamer::Impl::makeOrders() {
  std::vector<std::string> orders[3];
  for (const auto &plan : programs) {
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
    for (const Use &use : plan->blocks)
      if (use.begins)
        orders[size_t(plan->phase) - size_t(StepPhase::Forward)].push_back(use.begins->id);
  }
  // Registration is in the order in which they first run.
  std::vector<std::string> registered;
  for (const auto &order : orders)
    for (const std::string &id : order)
      if (std::ranges::find(registered, id) == registered.end()) {
        const Block &block = *byId.at(id);
        bool isMutable = std::ranges::any_of(block.weights, [](const Weight *weight) { return weight->isWritten; });
        bool fromSlab = std::ranges::any_of(block.weights, [](const Weight *weight) { return weight->source.inSlab; });
        WeightBacking backing = block.isStaged && isMutable ? WeightBacking::FileMutable
                                : block.isStaged            ? WeightBacking::File
                                : fromSlab                  ? WeightBacking::Slab
                                                            : WeightBacking::ResidentSource;
        policy->registerBlock({.id = id,
                               .bytes = int64_t(block.storedBytes),
                               .backing = backing,
                               .staged = block.isStaged,
                               .model = {},
                               .source = {}});
        registered.push_back(id);
      }
  for (size_t i = 0; i < 3; ++i)
    policy->setOrder(StepPhase(size_t(StepPhase::Forward) + i), orders[i]);
}

void WeightStreamer::start() {
  Impl &s = *impl_;
  if (s.policy)
    throw Error(ErrorCode::StateTransition, "weight streamer: started twice");
  s.openFiles();
  for (const Impl::Weight *weight : s.weightOrder)
    if (const Tensor &host = weight->source.host;
        host && s.config.strictBf16 && host.element() != weight->desc->element)
      throw Error(ErrorCode::DtypeMismatch, "weight \"" + weight->key + "\" is stored as " +
                                                std::string(name(host.element())) + " and declared as " +
                                                std::string(name(weight->desc->element)) +
                                                "; convert it, or set strict_bf16 to false");
  s.makeBlocks();
  s.takeMemory();
  s.makeOrders();
}

void WeightStreamer::Impl::takeMemory() {
  WeightSizes sizes;
  uint64_t slotBytes = 0;
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
  WeightLimits limits = config.limits(sizes);
  int64_t slots = options.slots, used = int64_t(memory.liveBytes(Space::DeviceDram));
  if (!slots && slotBytes)
    slots = std::min<int64_t>((limits.highBytes - used) / int64_t(slotBytes), int64_t(blocks.size()));
  slots = std::min<int64_t>(slots, int64_t(blocks.size()));
  if (slots < 1 && !blocks.empty())
    throw Error(ErrorCode::BudgetInfeasible,
                "weight streamer: block \"" + largest + "\" needs a slot of " + std::to_string(slotBytes) +
                    " bytes, and " + std::to_string(std::max<int64_t>(0, limits.highBytes - used)) +
                    " are left below the high watermark of " + std::to_string(limits.highBytes) + " bytes");
  OwnerId owner =
      memory.intern({.program = {}, .value = "(weights)", .role = "parameter", .block = {}, .location = {}});
  std::vector<std::shared_ptr<Storage>> taken;
  for (int64_t i = 0; i < slots; ++i)
    taken.push_back(Storage::allocate(device, Space::DeviceDram, slotBytes, slotAlignment, owner));
  if (std::ranges::any_of(blocks, [](const auto &block) { return block->isStaged; })) {
    uint64_t slabBytes[] = {uint64_t(limits.slabBytes)};
    uint32_t count[] = {uint32_t(limits.slabs)};
    pool.emplace(device, slabBytes, count);
  }
  if (config.telemetry.enabled)
    telemetry.emplace(config.telemetry.file, options.warn);
  ring = std::move(taken);
  freeSlots.assign(ring.begin(), ring.end());
  policy.emplace(config, limits);
  policy->setRing(slots);
}

WeightStreamer::Impl::ProgramPlan *WeightStreamer::Impl::find(const Program &program) {
  auto it = byProgram.find({program.image().get(), program.index()});
  return it == byProgram.end() || !policy ? nullptr : it->second;
}

//===----------------------------------------------------------------------===//
// Events
//===----------------------------------------------------------------------===//

void WeightStreamer::onPhase(Phase phase) {
  Impl &s = *impl_;
  if (!s.policy)
    return;
  if (phase == Phase::StepBegin)
    return s.beginStep();
  if (!s.inStep)
    return;
  if (phase == Phase::StepEnd)
    return s.endStep(/*aborted=*/false);
  s.poll();
  s.policy->enterPhase(stepPhase(phase));
}

void WeightStreamer::Impl::beginStep() {
  if (inStep)
    abortStep();
  inStep = true;
  policy->beginStep(++step);
}

void WeightStreamer::Impl::endStep(bool aborted) {
  if (aborted)
    policy->abortStep();
  else
    carryOut(policy->endStep());
  inStep = false;
  lastRecord = policy->telemetry();
  if (options.slab)
    lastRecord.update(options.slab->takeTelemetry().json());
  if (telemetry)
    telemetry->write(lastRecord);
  if (std::string line = policy->logLine(); !line.empty() && options.log)
    options.log(line);
}

void WeightStreamer::Impl::abortStep() {
  device->drain();
  open.clear();
  current = nullptr;
  // Uses end first: a load that failed is then nobody's.
  endStep(/*aborted=*/true);
  while (!saving.empty())
    finishSaveBack(*saving.front());
  while (!loading.empty())
    finishLoad(*loading.front(), /*isNeeded=*/false);
}

void WeightStreamer::abortStep() {
  if (impl_->inStep)
    impl_->abortStep();
}

bool WeightStreamer::defersInput(const Program &program, uint32_t input, const Tensor &value) {
  Impl &s = *impl_;
  Impl::ProgramPlan *plan = s.find(program);
  if (!plan)
    return false;
  s.current = plan;
  s.nextBlock = 0;
  s.open.clear();
  Impl::Weight *weight = plan->inputs[input];
  // Another tensor than the source's is the caller's own business.
  return weight && weight->block && (!weight->source.host || weight->source.host.storage() == value.storage());
}

void WeightStreamer::onBlockBegin(const Program &program, std::string_view) {
  Impl &s = *impl_;
  if (!s.current || s.find(program) != s.current)
    return;
  size_t index = s.nextBlock++;
  s.open.push_back(index);
  Impl::Block *block = s.current->blocks[index].begins;
  if (!block)
    return;
  s.poll();
  if (s.policy->state(block->id) == BlockState::Prefetching && !s.device->isDone(s.computed)) {
    // Nothing is lost by waiting for the block before: its load may end
    // meanwhile.
    s.device->wait(s.computed);
    s.poll();
  }
  s.measure();
  BeforeBlock before = s.policy->beforeBlock(block->id);
  s.carryOut(before.actions);
  if (before.use != BeforeBlock::Use::Hit) {
    s.device->wait(s.computed);
    double from = s.device->seconds();
    s.awaitLoad(*block);
    s.policy->addStall(1000 * (s.device->seconds() - from));
  }
  block->computeWatch = std::make_shared<Stopwatch>();
  s.mark(Queue::Compute, block->computeWatch, /*isEnd=*/false, block->copied);
}

void WeightStreamer::onBlockInput(const Program &program, uint32_t input, Tensor &value) {
  Impl::Weight &weight = *impl_->find(program)->inputs[input];
  value = Tensor::in(weight.block->slot, weight.desc);
}

void WeightStreamer::onBlockEnd(const Program &program) {
  Impl &s = *impl_;
  if (!s.current || s.find(program) != s.current || s.open.empty())
    return;
  size_t index = s.open.back();
  s.open.pop_back();
  Impl::Block *block = s.current->blocks[index].ends;
  if (!block)
    return;
  int64_t changed = 0;
  for (size_t i = 0; i < s.current->inputs.size(); ++i)
    if (Impl::Weight *weight = s.current->inputs[i]; weight && weight->block == block && s.current->uses.written[i]) {
      weight->isChanged = true;
      changed += int64_t(weight->storedBytes);
    }
  if (changed)
    s.policy->changed(block->id, changed);
  s.mark(Queue::Compute, block->computeWatch, /*isEnd=*/true, {});
  s.computed = Fence(Queue::Compute, s.device->position(Queue::Compute));
  s.measure();
  s.carryOut(s.policy->afterBlock(block->id));
}

const WeightStagehand &WeightStreamer::policy() const {
  if (!impl_->policy)
    throw Error(ErrorCode::StateTransition, "weight streamer: not started");
  return *impl_->policy;
}

int64_t WeightStreamer::slots() const { return int64_t(impl_->ring.size()); }

uint64_t WeightStreamer::ringBytes() const {
  return impl_->ring.empty() ? 0 : impl_->ring.size() * impl_->ring.front()->bytes();
}

Json WeightStreamer::record() const { return impl_->lastRecord; }

} // namespace segue::inline runtime
