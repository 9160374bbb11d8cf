//===- SessionCheckpoint.cpp - a finished step, out and back --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../Services/Actors/PrecisionActor.h"
#include "SessionState.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <chrono>

namespace segue::inline runtime {

Checkpoint Session::checkpoint() const {
  SessionState &s = *state_;
  s.flush();
  s.streamed->checkFiles();
  s.requireValues();
  Checkpoint checkpoint;
  for (size_t slot = 0; slot < s.values.size(); ++slot)
    if (const std::string &key = s.table.infos()[slot].key; s.isElsewhere(slot))
      continue;
    else if (s.streamed->isInSlab(slot))
      checkpoint.deferred[key] = s.streamed->dequantizing(s.device, slot);
    else
      checkpoint.parameters[key] = s.values[slot];
  checkpoint.state = s.optimizerState;
  checkpoint.step = s.step;
  checkpoint.seed = s.options.seed;
  if (s.precision)
    checkpoint.precision = s.precision->saveState();
  if (s.options.lossScaling)
    checkpoint.lossScale = s.options.lossScaling->state();
  checkpoint.checkSource = [files = s.streamed->files()] {
    for (const auto &file : files)
      file->checkUnchanged();
  };
  return checkpoint;
}

/// Says why a checkpoint and a session have not the same tensors.
static std::string misfit(std::string_view what) {
  if (what == "parameter")
    return "; it belongs to other modules";
  return "; it belongs to other modules or another optimizer. Its parameters alone can be loaded, as weights";
}

/// Throws where the file keeps an optimizer state in codes and the session does not, or the other way round.
static void checkStateBits(const std::string &key, const Tensor &state, const TensorDesc &wanted) {
  if (!state || (state.element() == ElementType::i8) == (wanted.element == ElementType::i8))
    return;
  auto bits = [](ElementType element) -> std::string {
    return element == ElementType::i8 ? "state_bits=8" : "state_bits=32";
  };
  auto text = [](const TensorDesc &desc) { return TensorDesc(desc.shape, desc.element).str(); }; // wherever it lies
  throw Error(ErrorCode::LayoutMismatch,
              "optimizer state \"" + key + "\" is " + text(state.desc()) +
                  " in the checkpoint, which was written with " + bits(state.element()) + ", and " + text(wanted) +
                  " here, with " + bits(wanted.element) + ". Give the optimizer " + bits(state.element()) +
                  ", or load the checkpoint's parameters alone, as weights");
}

/// The tensor called `key`, of the shape of `wanted`; names what is missing.
static const Tensor &requireIn(const TensorMap &tensors, const std::string &key, const TensorDesc &wanted,
                               const std::string &what) {
  auto it = tensors.find(key);
  if (it == tensors.end()) {
    std::vector<std::string_view> known;
    for (const auto &[name, tensor] : tensors)
      known.push_back(name);
    throw Error(ErrorCode::MissingWeight, "the checkpoint lacks " + what + " \"" + key + "\"" +
                                              nearestHint(key, known) + misfit(what));
  }
  checkSame("checkpoint, " + what + " \"" + key + "\"", it->second, wanted);
  return it->second;
}

void Session::restore(const Checkpoint &checkpoint) {
  SessionState &s = *state_;
  std::vector<Tensor> sources;
  std::set<std::string_view> keys;
  size_t deferred = 0;
  for (size_t slot = 0; slot < s.table.size(); ++slot) {
    const ParameterInfo &info = s.table.infos()[slot];
    keys.insert(info.key);
    auto given = checkpoint.deferred.find(info.key);
    if (s.isElsewhere(slot)) { // as in state(), which has what this rank has
      if (auto there = checkpoint.parameters.find(info.key); there != checkpoint.parameters.end())
        checkSame("checkpoint, parameter \"" + info.key + "\"", there->second, info.desc);
      sources.emplace_back();
      continue;
    }
    if (given == checkpoint.deferred.end()) {
      sources.push_back(requireIn(checkpoint.parameters, info.key, info.desc, "parameter"));
      continue;
    }
    ++deferred;
    Tensor source = given->second.read();
    checkSame("checkpoint, parameter \"" + info.key + "\"", source, info.desc);
    // A weight that the slab has already is let go, so that one is in memory at a time.
    bool stays = s.streamed->isInSlab(slot) && haveEqualBytes(source, s.streamed->dequantized(s.device, slot));
    sources.push_back(stays ? Tensor() : std::move(source));
  }
  TensorMap states; // of those in the checkpoint; other ranks have the others
  for (const auto &[key, tensor] : s.optimizerState) {
    if (auto given = checkpoint.state.find(key); given != checkpoint.state.end())
      checkStateBits(key, given->second, tensor.desc());
    states[key] = requireIn(checkpoint.state, key, tensor.desc(), "optimizer state");
  }
  auto rejectOthers = [](const auto &given, size_t known, auto &&has, const char *what) {
    if (given.size() != known)
      for (const auto &[key, tensor] : given)
        if (!has(key))
          throw Error(ErrorCode::NameUnknown, std::string("the checkpoint has ") + what + " \"" + key +
                                                  "\", which the session lacks" + misfit(what));
  };
  auto isParameter = [&](const std::string &key) { return keys.contains(key); };
  rejectOthers(checkpoint.parameters, keys.size() - deferred, isParameter, "parameter");
  rejectOthers(checkpoint.deferred, deferred, isParameter, "parameter");
  auto isState = [&](const std::string &key) {
    return s.ranks ? s.ranks->hasState(key) : s.optimizerState.contains(key);
  };
  rejectOthers(checkpoint.state, s.ranks ? s.ranks->stateCount() : s.optimizerState.size(), isState,
               "optimizer state");
  std::function<void()> restorePrecision = [] {};
  if (s.precision)
    restorePrecision = s.precision->prepareState(checkpoint.precision);
  std::optional<LossScaling> lossScaling = s.options.lossScaling;
  if (lossScaling && !checkpoint.lossScale.empty())
    lossScaling->restore(checkpoint.lossScale);
  s.assignAll(std::move(sources), {}, std::move(states), checkpoint.checkSource ? checkpoint.checkSource : [] {});
  restorePrecision();
  s.step = checkpoint.step;
  s.options.seed = checkpoint.seed;
  s.options.lossScaling = lossScaling;
  s.torn.clear();
  s.drop();
}

void Session::save(const std::filesystem::path &path, std::string notes) const {
  SessionRanks *ranks = state_->ranks.get();
  bool isTogether = ranks && (ranks->shards() || isCheckpointFolder(path));
  bool writes = !isTogether || ranks->rank() == 0;
  ReplacedSeal replaced(writes ? path : std::filesystem::path());
  auto make = [&] {
    Checkpoint checkpoint = this->checkpoint();
    checkpoint.notes = notes;
    return checkpoint;
  };
  if (isTogether)
    ranks->saveTogether(path, make);
  else
    saveCheckpoint(path, make());
  if (state_->sealer && state_->sealer->isAt(path))
    state_->sealer->unseal();
  replaced.remove();
}

std::string Session::load(const std::filesystem::path &path) {
  auto isNeeded = [&](const std::string &key, bool isState) {
    if (isState) // other ranks have the others
      return state_->optimizerState.contains(key);
    const std::vector<ParameterInfo> &infos = state_->table.infos();
    auto found = std::ranges::find(infos, key, &ParameterInfo::key);
    return found == infos.end() || !state_->isElsewhere(size_t(found - infos.begin()));
  };
  Checkpoint read = loadCheckpoint(state_->device, path, state_->options.warn, isNeeded);
  if (state_->sealer) // all that is sealed may be written over
    state_->sealer->requireSpareForAll();
  restore(read);
  return std::move(read.notes);
}

/// Returns true if each rank has the states of some parameters alone.
static bool areShardsOf(const SessionRanks *ranks) { return ranks && ranks->shards(); }

bool Session::canSeal() const { return !areShardsOf(state_->ranks.get()) && canSealOn(*state_->device); }

SealRoom sealRoomOf(const ParameterTable &table, const std::vector<Tensor> &values, const TensorMap &states) {
  SealRoom room;
  for (size_t slot = 0; slot < values.size(); ++slot)
    if (const ParameterInfo &info = table.infos()[slot]; info.trained)
      room.spareBytes += sealableBytes(values[slot]);
    else if (values[slot] && !sealableBytes(values[slot]))
      room.copyBytes += copyBytes(info.desc);
  for (const auto &[key, tensor] : states)
    room.spareBytes += sealableBytes(tensor);
  return room;
}

uint64_t Session::sealRoom() const {
  const SessionState &s = *state_;
  if (!canSeal())
    throw noDiskToSealOn(s.device->name());
  return sealRoomOf(s.table, s.values, s.optimizerState).bytes();
}

void Session::sealAt(const std::filesystem::path &path) {
  SessionState &s = *state_;
  if (areShardsOf(s.ranks.get()))
    throw Error(ErrorCode::Unsupported, "a sealed checkpoint lies where this rank's states do, and it has those of some "
                                        "parameters alone; save checkpoints instead");
  if (isCheckpointFolder(path))
    throw Error(ErrorCode::InvalidArgument, path.string() + ": a sealed checkpoint is a file; name one");
  if (s.device->hasBytes())
    OutputFile::check(path);
  auto sealer = std::make_unique<CheckpointSealer>(s.device, path);
  sealer->takeRoom(sealRoomOf(s.table, s.values, s.optimizerState));
  s.sealer = std::move(sealer);
}

Session::SealFigures Session::seal(std::string notes) {
  SessionState &s = *state_;
  if (!s.sealer)
    throw Error(ErrorCode::InvalidArgument, "nobody has said where to seal checkpoints; call sealAt first");
  auto begin = std::chrono::steady_clock::now();
  SealFigures figures;
  uint64_t before = s.sealer->writtenBytes();
  Checkpoint checkpoint = this->checkpoint();
  checkpoint.notes = std::move(notes);
  CheckpointSealer::Frozen frozen;
  for (size_t slot = 0; slot < s.values.size(); ++slot)
    if (const ParameterInfo &info = s.table.infos()[slot]; !info.trained)
      frozen[info.key] = s.streamed->backingNumber(slot);
  auto hashOf = [&](const Tensor &home) { return s.residency ? s.residency->hashAtHome(home) : std::nullopt; };
  figures.sealedBytes = s.sealer->seal(checkpoint, frozen, hashOf, s.options.warn);
  figures.writtenBytes = s.sealer->writtenBytes() - before;
  figures.fileBytes = s.sealer->fileBytes();
  figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return figures;
}

} // namespace segue::inline runtime
