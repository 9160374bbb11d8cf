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
#include "segue/runtime/Transfer/ToLayout.h"
#include <chrono>

namespace segue::inline runtime {

Checkpoint Session::checkpoint() const {
  State &s = *state_;
  s.flush();
  s.streamed->checkFiles();
  s.requireValues();
  Checkpoint checkpoint;
  for (size_t slot = 0; slot < s.values.size(); ++slot)
    checkpoint.parameters[s.table.infos()[slot].key] =
        s.streamed->isInSlab(slot) ? s.streamed->dequantized(s.device, slot) : s.values[slot];
  checkpoint.state = s.optimizerState;
  checkpoint.step = s.step;
  checkpoint.seed = s.options.seed;
  if (s.precision)
    checkpoint.precision = s.precision->saveState();
  if (s.options.lossScaling)
    checkpoint.lossScale = s.options.lossScaling->state();
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
  State &s = *state_;
  std::vector<Tensor> sources;
  for (const ParameterInfo &info : s.table.infos())
    sources.push_back(requireIn(checkpoint.parameters, info.key, info.desc, "parameter"));
  for (const auto &[key, tensor] : s.optimizerState) {
    if (auto given = checkpoint.state.find(key); given != checkpoint.state.end())
      checkStateBits(key, given->second, tensor.desc());
    requireIn(checkpoint.state, key, tensor.desc(), "optimizer state");
  }
  auto rejectOthers = [](const TensorMap &given, size_t known, auto &&has, const char *what) {
    if (given.size() != known)
      for (const auto &[key, tensor] : given)
        if (!has(key))
          throw Error(ErrorCode::NameUnknown, std::string("the checkpoint has ") + what + " \"" + key +
                                                  "\", which the session lacks" + misfit(what));
  };
  std::set<std::string_view> keys;
  for (const ParameterInfo &info : s.table.infos())
    keys.insert(info.key);
  rejectOthers(
      checkpoint.parameters, keys.size(), [&](const std::string &key) { return keys.contains(key); }, "parameter");
  rejectOthers(
      checkpoint.state, s.optimizerState.size(), [&](const std::string &key) { return s.optimizerState.contains(key); },
      "optimizer state");
  std::function<void()> restorePrecision = [] {};
  if (s.precision)
    restorePrecision = s.precision->prepareState(checkpoint.precision);
  std::optional<LossScaling> lossScaling = s.options.lossScaling;
  if (lossScaling && !checkpoint.lossScale.empty())
    lossScaling->restore(checkpoint.lossScale);
  s.assignAll(std::move(sources), {}, checkpoint.state, checkpoint.checkSource ? checkpoint.checkSource : [] {});
  restorePrecision();
  s.step = checkpoint.step;
  s.options.seed = checkpoint.seed;
  s.options.lossScaling = lossScaling;
  s.torn.clear();
  s.drop();
}

void Session::save(const std::filesystem::path &path, std::string notes) const {
  std::filesystem::path replaced = sealedFileOf(path);
  Checkpoint checkpoint = this->checkpoint();
  checkpoint.notes = std::move(notes);
  saveCheckpoint(path, checkpoint);
  if (state_->sealer && state_->sealer->isAt(path))
    state_->sealer->unseal();
  removeSealedFile(replaced, path);
}

std::string Session::load(const std::filesystem::path &path) {
  Checkpoint read = loadCheckpoint(state_->device, path, state_->options.warn);
  if (state_->sealer) // all that is sealed may be written over
    state_->sealer->requireSpareForAll();
  restore(read);
  return std::move(read.notes);
}

bool Session::canSeal() const { return canSealOn(*state_->device); }

uint64_t Session::sealRoom() const {
  const State &s = *state_;
  if (!canSeal())
    throw noDiskToSealOn(s.device->name());
  uint64_t bytes = 0;
  for (size_t slot = 0; slot < s.values.size(); ++slot)
    if (s.table.infos()[slot].trained)
      bytes += sealableBytes(s.values[slot]);
  for (const auto &[key, tensor] : s.optimizerState)
    bytes += sealableBytes(tensor);
  return bytes;
}

void Session::sealAt(const std::filesystem::path &path) {
  State &s = *state_;
  auto sealer = std::make_unique<CheckpointSealer>(s.device, path);
  sealer->requireSpare(sealRoom());
  s.sealer = std::move(sealer);
}

Session::SealFigures Session::seal(std::string notes) {
  State &s = *state_;
  if (!s.sealer)
    throw Error(ErrorCode::InvalidArgument, "nobody has said where to seal checkpoints; call sealAt first");
  auto begin = std::chrono::steady_clock::now();
  SealFigures figures;
  uint64_t before = s.sealer->writtenBytes();
  Checkpoint checkpoint = this->checkpoint();
  checkpoint.notes = std::move(notes);
  figures.sealedBytes = s.sealer->seal(checkpoint, [&](const Tensor &home) {
    return s.residency ? s.residency->hashAtHome(home) : std::nullopt;
  });
  figures.writtenBytes = s.sealer->writtenBytes() - before;
  figures.fileBytes = s.sealer->fileBytes();
  figures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return figures;
}

} // namespace segue::inline runtime
