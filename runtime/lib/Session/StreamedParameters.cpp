//===- StreamedParameters.cpp - parameters that live on the host ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "StreamedParameters.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"

namespace segue::inline runtime {

/// Returns true if the optimizer updates most bytes of streamed parameters in their block;
/// what it updates elsewhere stays on the device then. Otherwise it is given them all at
/// once.
static bool keepsToBlocks(const WeightStreamer &streamer, const Module &module, const Program &optimizer) {
  BlockUses uses = blockUses(optimizer);
  std::vector<std::string> blocks(optimizer.inputs().size());
  for (const BlockUse &use : uses.blocks) {
    for (uint32_t input : use.firstTouched)
      blocks[input] = use.name;
    for (uint32_t input : use.lastTouched)
      if (blocks[input] != use.name)
        blocks[input].clear();
  }
  uint64_t inBlocks = 0, elsewhere = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Value &value = optimizer.inputs()[i];
    std::string block = streamer.blockOf(module.name(), value.name);
    if (value.role == Role::Parameter && !block.empty())
      (uses.streamable[i] && blocks[i] == block ? inBlocks : elsewhere) += value.desc().spanBytes();
  }
  return inBlocks > elsewhere;
}

/// Returns the program that an evaluation runs.
static const Program &evaluated(const Module &module) {
  const Program *inference = module.find("inference");
  return inference ? *inference : *module.find("forward");
}

StreamedParameters::StreamedParameters(WeightStreamer *streamer, Residency *residency, bool isPlanned,
                                       const std::vector<Module> &modules, const std::vector<OptimizerPlan> &plans,
                                       const ParameterTable &table, const std::vector<Tensor> &values, RankOf rankOf)
    : streamer_(streamer), residency_(residency), arePlanned_(isPlanned && residency && !streamer), table_(table),
      values_(values), rankOf_(std::move(rankOf)) {
  if (residency_)
    findResidents(modules, plans);
  if (!streamer_)
    return;
  for (size_t m = 0; m < modules.size(); ++m)
    if (const Program *forward = modules[m].find("forward"))
      streamer_->add(StepPhase::Forward, modules[m].name(), *forward, sourcesOf(m));
  for (size_t m = modules.size(); m-- > 0;)
    if (const Program *backward = modules[m].find("backward"))
      streamer_->add(StepPhase::Backward, modules[m].name(), *backward, sourcesOf(m));
  for (size_t m = 0; m < modules.size(); ++m)
    if (!modules[m].isElsewhere())
      streamer_->addEvaluation(modules[m].name(), evaluated(modules[m]), sourcesOf(m));
  for (size_t m = 0; m < modules.size() && !rankOf_; ++m)
    if (plans[m].ownsParameters && plans[m].optimizer && !plans[m].isInBackward &&
        keepsToBlocks(*streamer_, modules[m], *plans[m].optimizer))
      streamer_->add(StepPhase::Optimizer, modules[m].name(), *plans[m].optimizer, sourcesOf(m));
  for (const ParameterInfo &info : table.infos())
    streamed_.push_back(info.members.size() == 1 &&
                        !streamer_->blockOf(info.members.front().module, info.members.front().name).empty());
}

/// Finds the residents: those that every program touches within blocks alone, or not at all.
WeightStreamer::Sources StreamedParameters::sourcesOf(size_t module) const {
  return [this, module](const Value &value) { return sourceOf(table_.slotOf(module, value.name)); };
}

void StreamedParameters::addSizes(const std::vector<Module> &modules, const std::vector<Module> &like) {
  if (!streamer_)
    return; // whether a tensor comes by block is asked of each program when it runs
  auto forEach = [&](auto &&call) {
    for (size_t m = 0; m < modules.size(); ++m) {
      for (const char *name : {"forward", "backward"})
        if (const Program *program = modules[m].find(name), *first = like[m].find(name); program && first)
          call(m, *program, *first);
      if (!modules[m].isElsewhere())
        call(m, evaluated(modules[m]), evaluated(like[m]));
    }
  };
  forEach([&](size_t m, const Program &program, const Program &first) {
    streamer_->requireAlike(modules[m].name(), program, first);
  });
  release();
  forEach([&](size_t m, const Program &program, const Program &) {
    streamer_->addAlike(modules[m].name(), program, sourcesOf(m));
  });
}

void StreamedParameters::findResidents(const std::vector<Module> &modules, const std::vector<OptimizerPlan> &plans) {
  if (arePlanned())
    for (const ParameterInfo &info : table_.infos())
      streamed_.push_back(info.members.size() == 1);
  auto note = [&](size_t module, const Program &program) {
    BlockUses uses = blockUses(program);
    for (size_t i = 0; arePlanned() && i < program.inputs().size(); ++i) {
      const Value &value = program.inputs()[i];
      if ((value.role == Role::Parameter || value.role == Role::Frozen) && !uses.streamable[i] && uses.touched[i])
        streamed_[table_.slotOf(module, value.name)] = false;
    }
    return uses;
  };
  for (size_t m = 0; m < modules.size(); ++m) {
    if (arePlanned() && modules[m].isElsewhere())
      for (const std::vector<Value> *values : {&modules[m].parameters(), &modules[m].frozen()})
        for (const Value &value : *values)
          streamed_[table_.slotOf(m, value.name)] = false;
    for (std::string_view name : {"forward", "backward", "inference"})
      if (const Program *program = modules[m].find(name))
        note(m, *program);
    for (const Program *program : {plans[m].optimizer, plans[m].gradNorm})
      if (program)
        byBlock_[program] = note(m, *program).streamable;
  }
}

bool StreamedParameters::comesByBlock(const Program &program) const {
  return arePlanned() || (streamer_ && !isStale_ && streamer_->hasProgram(program));
}

bool StreamedParameters::comesByBlock(const Program &program, size_t input) const {
  auto found = byBlock_.find(&program);
  return found != byBlock_.end() && found->second[input];
}

Tensor StreamedParameters::allocate(const DeviceRef &device, size_t slot) {
  const ParameterInfo &info = table_.infos()[slot];
  const TensorDesc &desc = info.desc;
  OwnerId owner = device->memory().intern(
      {.value = info.key, .role = std::string(name(info.trained ? Role::Parameter : Role::Frozen))});
  bool isNew = streamer_ && !homes_.contains(slot);
  bool isGranted = !isNew || streamer_->reservePinned(desc.spanBytes());
  if (isNew && isGranted)
    homes_.insert(slot);
  Tensor home = emptyHome(device, desc, isGranted, owner);
  if (!device->isHomeSpace(home.desc().layout.space))
    giveHomeBack(slot);
  return home;
}

void StreamedParameters::giveHomeBack(size_t slot) {
  if (homes_.erase(slot))
    streamer_->releasePinned(table_.infos()[slot].desc.spanBytes());
}

std::vector<ProgramWeight> programWeights(std::span<const ParameterInfo> parameters) {
  std::map<std::string_view, size_t> holders; // a name that several have is nobody's
  for (size_t slot = 0; slot < parameters.size(); ++slot)
    for (const ParameterRef &member : parameters[slot].members)
      if (auto [it, isNew] = holders.emplace(member.name, slot); !isNew && it->second != slot)
        it->second = SIZE_MAX;
  std::vector<ProgramWeight> weights;
  for (size_t slot = 0; slot < parameters.size(); ++slot)
    for (const ParameterRef &member : parameters[slot].members) {
      ProgramWeight weight{.names = {}, .desc = parameters[slot].desc, .isTrained = parameters[slot].trained};
      if (holders[member.name] == slot)
        weight.names.push_back(member.name);
      weight.names.push_back(member.module + "." + member.name);
      weights.push_back(std::move(weight));
    }
  return weights;
}

/// A layer of the slab by the names that the parameter goes by, or empty.
static std::string nameIn(const SlabSource &slab, std::span<const ProgramWeight> members) {
  for (const ProgramWeight &member : members)
    for (const std::string &name : member.names)
      if (slab.holds(name) && slab.shape(name) == member.desc.shape)
        return name;
  return "";
}

void StreamedParameters::takeFromSlab(const DeviceRef &device, std::vector<Tensor> &values,
                                      const std::function<bool(size_t)> &isElsewhere) {
  std::shared_ptr<SlabSource> slab = streamer_ ? streamer_->slab() : nullptr;
  if (!slab)
    return;
  std::vector<ProgramWeight> weights = programWeights(table_.infos());
  for (size_t slot = 0, next = 0; slot < table_.size(); ++slot) {
    const ParameterInfo &info = table_.infos()[slot];
    std::span members =
        std::span(weights).subspan(std::exchange(next, next + info.members.size()), info.members.size());
    std::string name = info.trained ? "" : nameIn(*slab, members);
    if (name.empty() || isElsewhere(slot))
      continue;
    backings_[slot] = {nullptr, name, ++lastBacking_};
    if (!has(slot)) {                              // it is served once, and stays
      if (isQuantized(info.desc.layout.storage)) { // as stored, not quantised again
        values[slot] = Tensor::empty(device, info.desc);
        slab->serveInto(name, values[slot]);
      } else {
        values[slot] = copyTo(device, dequantized(device, slot), info.desc);
      }
      ::segue::wait(values[slot]);
      backings_.erase(slot);
      dequantized_.clear();
      served_.insert(slot);
      continue;
    }
    values[slot] = standIn(device, slot, "lives in " + slab->path().string() +
                                             " and comes with its block; ask Session::parameter for its value");
  }
}

Tensor StreamedParameters::standIn(const DeviceRef &device, size_t slot, const std::string &why) const {
  alignas(64) static std::byte nowhere[64];
  const ParameterInfo &info = table_.infos()[slot];
  TensorDesc desc(info.desc.shape, info.desc.element);
  desc.layout.storage = info.desc.layout.storage; // floats, or codes that products read
  desc.layout.zeroPoints = info.desc.layout.zeroPoints;
  Tensor tensor = Tensor::wrap(device, std::move(desc), nowhere, [] {}, /*writable=*/false);
  tensor.storage()->outcome()->fail(Error(ErrorCode::InvalidArgument, "parameter \"" + info.key + "\" " + why));
  return tensor;
}

void StreamedParameters::setOriginal(size_t slot, std::function<Tensor()> read) {
  streamer_->slab()->setOriginal(backings_.at(slot).name, std::move(read));
}

bool StreamedParameters::isInSlab(size_t slot) const {
  auto backing = backings_.find(slot);
  return backing != backings_.end() && !backing->second.file;
}

const Tensor &StreamedParameters::dequantized(const DeviceRef &device, size_t slot) {
  if (auto found = dequantized_.find(slot); found != dequantized_.end())
    return found->second;
  dequantized_.clear();
  return dequantized_[slot] = dequantizing(device, slot).read();
}

DeferredTensor StreamedParameters::dequantizing(const DeviceRef &device, size_t slot) const {
  const TensorDesc &desc = table_.infos()[slot].desc;
  auto read = [device, slab = streamer_->slab(), name = backings_.at(slot).name, shape = desc.shape,
               element = desc.element] {
    Tensor host = Tensor::onHost(device, shape, element);
    if (device->hasBytes())
      slab->copyDequantized(name, element, {host.bytes(), size_t(host.desc().spanBytes())});
    return host;
  };
  return {desc.shape, desc.element, std::move(read)};
}

uint64_t StreamedParameters::backingNumber(size_t slot) const {
  auto backing = backings_.find(slot);
  return backing == backings_.end() ? 0 : backing->second.number;
}

std::set<std::shared_ptr<const SafetensorsFile>> StreamedParameters::files() const {
  std::set<std::shared_ptr<const SafetensorsFile>> files;
  for (const auto &[slot, backing] : backings_)
    if (backing.file)
      files.insert(backing.file);
  return files;
}

void StreamedParameters::setFile(size_t slot, std::shared_ptr<const SafetensorsFile> file, std::string name) {
  giveHomeBack(slot);
  backings_[slot] = {std::move(file), std::move(name), ++lastBacking_};
  isStale_ = true;
}

void StreamedParameters::replaced(size_t slot) {
  backings_.erase(slot);
  dequantized_.erase(slot);
  served_.erase(slot);
  const Tensor &value = values_[slot];
  if (!value.device()->isHomeSpace(value.desc().layout.space) || value.storage()->isExternal())
    giveHomeBack(slot);
  isStale_ |= has(slot);
}

void StreamedParameters::replacedAll() {
  for (size_t slot = 0; arePlanned() && slot < values_.size(); ++slot)
    if (has(slot) && values_[slot])
      residency_->homeWritten(values_[slot]);
  if (streamer_)
    streamer_->stop();
  isStale_ = true;
}

std::optional<WeightSource> StreamedParameters::sourceOf(size_t slot) const {
  if (!has(slot))
    return std::nullopt;
  WeightSource source;
  source.host = values_[slot];
  source.rank = rankOf_ ? rankOf_(slot) : std::nullopt;
  if (auto backing = backings_.find(slot); backing != backings_.end()) {
    source.file = backing->second.file;
    source.inSlab = !source.file;
    source.name = backing->second.name;
  }
  return source;
}

void StreamedParameters::prepare() {
  if (!streamer_ || (streamer_->isStarted() && !isStale_))
    return;
  if (streamer_->isStarted()) {
    streamer_->flush();
    streamer_->stop();
  }
  streamer_->start();
  isStale_ = false;
}

void StreamedParameters::release() {
  if (!streamer_ || !streamer_->isStarted())
    return;
  streamer_->flush();
  streamer_->stop();
}

void StreamedParameters::flush() {
  if (residency_)
    residency_->writeBack();
  if (streamer_ && streamer_->isStarted())
    streamer_->flush();
}

bool StreamedParameters::isOnDevice(const Tensor &home) const {
  return (residency_ && residency_->holdsNewer(home)) ||
         (streamer_ && streamer_->isSavingBack(home));
}

void StreamedParameters::checkFiles() const {
  if (streamer_ && streamer_->isStarted())
    return streamer_->checkFiles();
  for (const auto &file : files())
    file->checkUnchanged();
}

void StreamedParameters::wait() {
  if (streamer_)
    streamer_->wait();
}

void StreamedParameters::written(size_t slot) {
  served_.erase(slot);
  if (arePlanned() && has(slot))
    return residency_->homeWritten(values_[slot]);
  if (has(slot) && streamer_->isStarted())
    streamer_->hostChanged(values_[slot]);
}

} // namespace segue::inline runtime
