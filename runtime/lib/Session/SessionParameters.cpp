//===- SessionParameters.cpp - values that come in from outside -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Tensor/NullHandles.h"
#include "CheckpointHashes.h"
#include "SessionState.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>

namespace segue::inline runtime {

const std::vector<ParameterInfo> &Session::parameters() const & { return state_->table.infos(); }

void checkSame(const std::string &what, const Tensor &tensor, const TensorDesc &wanted) {
  if (!tensor)
    throw Error(ErrorCode::InvalidArgument, what + ": a null tensor was given");
  if (tensor.shape() != wanted.shape || tensor.element() != wanted.element)
    throw Error(ErrorCode::LayoutMismatch, what + ": " + tensor.desc().str() + " given, " + wanted.str() + " declared");
}

void SessionState::checkFits(size_t slot, const Tensor &tensor) const {
  checkSame("parameter \"" + table.infos()[slot].key + "\"", tensor, table.infos()[slot].desc);
}

void giveBack(const Tensor &tensor) {
  if (tensor.storage()->isExternal())
    waitForUses(tensor);
}

Tensor emptyNamed(const DeviceRef &device, const TensorDesc &wanted, std::string name, std::string_view role) {
  OwnerId owner = device->memory().intern({.value = std::move(name), .role = std::string(role)});
  auto desc = std::make_shared<TensorDesc>(wanted);
  auto storage = Storage::allocate(device, desc->layout.space, desc->spanBytes(), desc->layout.alignment, owner);
  return Tensor::in(std::move(storage), std::move(desc));
}

Tensor zerosNamed(const DeviceRef &device, const TensorDesc &wanted, std::string name, std::string_view role) {
  Tensor tensor = emptyNamed(device, wanted, std::move(name), role);
  device->transfer().fillZero(tensor);
  return tensor;
}

Tensor SessionState::emptyParameter(size_t slot) {
  if (streamed->has(slot))
    return streamed->allocate(device, slot);
  const ParameterInfo &info = table.infos()[slot];
  try {
    return emptyNamed(device, info.desc, info.key, name(info.trained ? Role::Parameter : Role::Frozen));
  } catch (const OutOfMemory &error) {
    if (!step && letStatesLeave())
      return emptyParameter(slot);
    refuseTooSmall(error);
    throw;
  }
}

Tensor SessionState::placed(size_t slot, const Tensor &source) {
  Tensor value = emptyParameter(slot);
  copyInto(source, value);
  return value;
}

void SessionState::assign(size_t slot, const Tensor &tensor) {
  if (ranks)
    ranks->valuesGiven();
  if (isElsewhere(slot))
    return giveBack(tensor);
  Tensor value = values[slot];
  bool isKept = value && value.storage()->isWritable();
  if (isKept && streamed->has(slot))
    streamed->flush();
  if (isKept)
    copyInto(tensor, value);
  else
    value = placed(slot, tensor);
  giveBack(tensor);
  wait(value); // a value that never arrives is no value
  values[slot] = std::move(value);
  isKept ? streamed->written(slot) : streamed->replaced(slot);
}

void Session::setParameter(std::string_view key, const Tensor &tensor) {
  size_t slot = state_->table.require(key);
  state_->checkFits(slot, tensor);
  state_->makeDeferred();
  state_->assign(slot, tensor);
}

bool Session::bindParameter(std::string_view key, const Tensor &tensor) {
  size_t slot = state_->table.require(key);
  state_->checkFits(slot, tensor);
  state_->makeDeferred();
  const ParameterInfo &info = state_->table.infos()[slot];
  Layout layout = info.desc.layout;
  bool isStreamed = state_->streamed->has(slot);
  if (isStreamed) { // it is copied from wherever it lies
    layout.space = tensor.desc().layout.space;
    layout.alignment = tensor.desc().layout.alignment;
  }
  bool fits = !state_->isElsewhere(slot) && tensor.device() == state_->device && hasLayout(tensor, layout) &&
              (tensor.storage()->isWritable() || !info.trained) &&
              (!isStreamed || state_->canBeStreamedFrom(slot, tensor));
  if (!fits) {
    state_->assign(slot, tensor);
    return false;
  }
  if (isStreamed)
    state_->streamed->flush();
  if (state_->ranks)
    state_->ranks->valuesGiven();
  state_->values[slot] = tensor;
  state_->streamed->replaced(slot);
  return true;
}

void Session::allocateParameters() {
  for (size_t slot = 0; slot < state_->values.size(); ++slot)
    if (!state_->values[slot])
      state_->values[slot] = state_->emptyParameter(slot);
}

std::vector<std::string> Session::slabParameters() const {
  std::vector<std::string> keys;
  for (size_t slot = 0; slot < state_->table.size(); ++slot)
    if (state_->streamed->isInSlab(slot) || state_->streamed->wasServed(slot))
      keys.push_back(state_->table.infos()[slot].key);
  return keys;
}

const Tensor &SessionState::parameter(size_t slot) {
  if (!values[slot])
    throw Error(ErrorCode::MissingWeight,
                "parameter \"" + table.infos()[slot].key + "\" has no value yet; set it or load weights");
  makeDeferred();
  if (isElsewhere(slot))
    throw *values[slot].storage()->failure();
  if (streamed->isInSlab(slot))
    return streamed->dequantized(device, slot);
  if (streamed->isBacked(slot)) {
    streamed->checkFiles();
  } else if (streamed->has(slot)) {
    flush();
  } else { // of a step that was torn none is given, whole as it may be
    settle();
    requireWhole();
  }
  return values[slot];
}

const Tensor &Session::parameter(std::string_view key) const & { return state_->parameter(state_->table.require(key)); }

std::vector<std::string> Session::parametersElsewhere() const {
  std::vector<std::string> keys;
  for (size_t slot = 0; slot < state_->table.size(); ++slot)
    if (state_->isElsewhere(slot))
      keys.push_back(state_->table.infos()[slot].key);
  return keys;
}

void Session::gatherParameters(const std::function<void(const ParameterInfo &, const Tensor &)> &take) {
  requireGiven(take, "gatherParameters");
  if (state_->ranks)
    return state_->ranks->gatherParameters(take);
  for (size_t slot = 0; slot < state_->table.size(); ++slot)
    take(state_->table.infos()[slot], state_->parameter(slot));
}

static std::string memberText(const ParameterInfo &info) {
  return "module \"" + info.members.front().module + "\", parameter \"" + info.members.front().name + "\"";
}

namespace {
/// A file of weights while parameters are looked for in it.
struct WeightsFile {
  std::shared_ptr<const SafetensorsFile> file;
  std::set<std::string_view> unused;
};
} // namespace

/// Throws for a checkpoint that is sealed, which has no tensors in its file.
static WeightsFile openWeights(const std::filesystem::path &path) {
  WeightsFile opened{std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path)), {}};
  opened.file->settle();
  if (std::filesystem::path sealed = sealedFileOf(path); !sealed.empty())
    throw Error(ErrorCode::InvalidArgument, path.string() + ": its tensors lie in " + sealed.string() +
                                                "; resume from it, or make a file of it that holds them (segue-run "
                                                "export)");
  for (const SafetensorsEntry &entry : opened.file->entries())
    opened.unused.insert(entry.name);
  return opened;
}

static Error missingWeight(const ParameterInfo &info, std::span<const std::filesystem::path> paths,
                           std::span<const WeightsFile> files) {
  std::vector<std::string_view> known;
  std::string where;
  for (size_t i = 0; i < files.size(); ++i) {
    where += (i ? i + 1 < files.size() ? ", " : " and " : "") + paths[i].string();
    for (const SafetensorsEntry &entry : files[i].file->entries())
      known.push_back(entry.name);
  }
  return Error(ErrorCode::MissingWeight, memberText(info) + " (" + info.desc.str() + "): " + where +
                                             (files.size() > 1 ? " have" : " has") + " no tensor \"" + info.key + "\"" +
                                             nearestHint(info.key, known));
}

std::vector<std::vector<std::string>> Session::loadWeights(std::span<const std::filesystem::path> paths) {
  std::vector<WeightsFile> opened;
  for (const std::filesystem::path &path : paths)
    opened.push_back(openWeights(path));
  std::vector<Tensor> sources(state_->table.size());
  std::vector<SessionState::FileEntry> files(state_->table.size()), originals(state_->table.size());
  for (size_t slot = 0; slot < state_->table.size(); ++slot) {
    const ParameterInfo &info = state_->table.infos()[slot];
    std::vector<std::string> names = sourceNames(info.key, state_->options.aliases);
    for (const ParameterRef &member : info.members) // also by its full name
      std::ranges::copy(sourceNames(member.module + "." + member.name, state_->options.aliases), std::back_inserter(names));
    const SafetensorsEntry *entry = nullptr;
    const WeightsFile *of = nullptr;
    for (WeightsFile &each : opened)
      for (auto name = names.begin(); name != names.end(); ++name)
        if (const SafetensorsEntry *found = each.file->find(*name)) {
          each.unused.erase(found->name);
          entry = found, of = &each;
          break;
        }
    bool isInSlab = state_->streamed->isInSlab(slot), isOfSlab = isInSlab || state_->streamed->wasServed(slot);
    if (!entry && isOfSlab)
      continue;
    if (!entry)
      throw missingWeight(info, paths, opened);
    const SafetensorsFile &file = *of->file;
    if (hasHashes(file)) // a checkpoint
      checkTensorHash(file, *entry);
    Tensor source = file.tensor(state_->device, entry->name);
    checkSame(paths[of - opened.data()].string() + ", parameter \"" + info.key + "\"", source, info.desc);
    if (isInSlab)
      originals[slot] = {of->file, entry->name};
    if (isOfSlab || state_->isElsewhere(slot)) // the slab's, made of these or not, or another rank's
      continue;
    sources[slot] = std::move(source);
    if (state_->streamed->canLiveInFile(slot))
      files[slot] = {of->file, entry->name};
  }
  state_->assignAll(std::move(sources), files, {}, [&] {
    for (const WeightsFile &each : opened)
      each.file->checkUnchanged();
  });
  for (size_t slot = 0; slot < originals.size(); ++slot)
    if (auto [file, name] = originals[slot]; file)
      state_->streamed->setOriginal(slot, [file, name, device = state_->device] { return file->copyOf(device, name); });
  std::vector<std::vector<std::string>> unused;
  for (const WeightsFile &each : opened)
    unused.emplace_back(each.unused.begin(), each.unused.end());
  return unused;
}

Error tornError(const std::string &why) {
  return Error(ErrorCode::StateTorn, why + "; parameters are between two steps: load the last checkpoint");
}

/// Says why a step is torn, a queued write of which has failed: the optimizer's, or one of what another rank updates.
static std::string tornByLoss(int64_t step, const Error &loss) {
  return "step " + std::to_string(step) + " was torn: " +
         (loss.code() == ErrorCode::RankFailed ? "updates of another rank have not come ("
                                               : "its optimizer failed midway (") +
         loss.what() + ")";
}

void SessionState::requireValues() const {
  size_t missing = 0, first = 0;
  for (size_t slot = values.size(); slot-- > 0;)
    if (!values[slot])
      ++missing, first = slot;
  if (!missing)
    return;
  std::string others = missing > 1 ? " (and " + std::to_string(missing - 1) + " others have none)" : "";
  throw Error(ErrorCode::MissingWeight, memberText(table.infos()[first]) + " (" + table.infos()[first].desc.str() +
                                            ") has no value" + others + "; set parameters or load weights first");
}

const Error *SessionState::lostState() const {
  auto lossOf = [&](const Tensor &tensor) {
    const Error *failure = tensor ? tensor.storage()->failure() : nullptr;
    return failure && !streamed->isOnDevice(tensor) ? failure : nullptr;
  };
  for (size_t slot = 0; slot < values.size(); ++slot)
    if (const Error *loss = lossOf(values[slot]); loss && !streamed->isInSlab(slot) && !isElsewhere(slot))
      return loss;
  for (const auto &[key, state] : optimizerState)
    if (const Error *loss = lossOf(state))
      return loss;
  return nullptr;
}

bool SessionState::settlesWhole() noexcept {
  if (!torn.empty())
    return false;
  try {
    settle();
    if (const Error *loss = lostState())
      torn = tornByLoss(step, *loss);
  } catch (const std::exception &error) { // a device that runs nothing any more, maybe
    noteTorn(step, std::string("its end cannot be waited for (") + error.what() + ")");
  }
  return torn.empty();
}

void SessionState::settle() {
  Fence writes;
  auto add = [&](const Tensor &tensor) {
    if (tensor)
      writes.join(tensor.storage()->writes());
  };
  std::ranges::for_each(values, add);
  for (const auto &[key, tensor] : optimizerState)
    add(tensor);
  if (!writes.empty())
    device->wait(writes);
  streamed->wait();
}

void SessionState::flush() {
  makeDeferred();
  settle();
  requireWhole();
  streamed->flush();
}

/// Returns true if a parameter can be streamed from the memory of `tensor`. Memory that two
/// parameters share would be two copies on the device. Values that a plan brings home are
/// written while the next step runs already, and so not where the caller reads.
bool SessionState::canBeStreamedFrom(size_t slot, const Tensor &tensor) const {
  if (streamed->arePlanned() && table.infos()[slot].trained && tensor.storage()->isExternal())
    return false;
  if (!isHostSpace(tensor.desc().layout.space) && !device->hasUnifiedMemory())
    return false;
  for (size_t other = 0; other < values.size(); ++other)
    if (other != slot && values[other] && values[other].storage() == tensor.storage())
      return false;
  return true;
}

void SessionState::requireWhole() const {
  if (!torn.empty())
    throw tornError(torn);
  if (const Error *loss = lostState())
    throw tornError(tornByLoss(step, *loss));
}

void SessionState::noteTorn(int64_t number, const std::string &why) {
  torn = "step " + std::to_string(number) + " was torn: " + why;
}

void SessionState::tear(int64_t number, const std::string &why) {
  noteTorn(number, why);
  throw tornError(torn);
}

} // namespace segue::inline runtime
