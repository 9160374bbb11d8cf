//===- Checkpoints.cpp - checkpoints that ranks write together ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A checkpoint in a file is that of one rank alone: rank 0 writes it, and asks for the
// parameters and states that others have one by one. In a folder each rank writes a part.
//
//===----------------------------------------------------------------------===//

#include "../CheckpointHashes.h"
#include "../CheckpointValues.h"
#include "SharedSession.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// Meets the other ranks in the midst of a save. Each says a word; a rank that cannot go on says why. Returns all words;
/// throws RankFailed where another rank cannot.
static std::vector<Json> meetWithWords(Collectives &ranks, const Json &word, const std::string &failure) {
  std::vector<Json> words;
  for (const std::string &told : ranks.exchange(
           "a checkpoint", Json::array({word, failure}).dump(-1, ' ', false, Json::error_handler_t::replace)))
    words.push_back(Json::parse(told));
  for (size_t rank = 0; rank < words.size() && failure.empty(); ++rank)
    if (std::string why = words[rank][1]; !why.empty())
      throw Error(ErrorCode::RankFailed, "rank " + std::to_string(rank) + " cannot save: " + why);
  for (Json &each : words)
    each = Json(each[0]);
  return words;
}

/// Does that with the word that `work` returns, or with what it throws.
template <typename Work> static std::vector<Json> meetBehind(Collectives &ranks, Work work) {
  Json word;
  try {
    word = work();
  } catch (const std::exception &error) {
    meetWithWords(ranks, "", error.what());
    throw;
  }
  return meetWithWords(ranks, word, "");
}

/// Does that while rank 0 writes a file: it says the key of the state that it asks for, or none when the file is written.
/// Returns what it has said.
static std::string meetAboutCheckpoint(Collectives &ranks, const std::string &key, const std::string &failure) {
  return meetWithWords(ranks, key, failure)[0];
}

Tensor SharedSession::receive(const std::string &key, const TensorDesc &desc, int rank) {
  Collectives &ranks = *group_;
  meetAboutCheckpoint(ranks, key, "");
  meetAboutCheckpoint(ranks, "", ""); // whoever has it can read it
  Tensor host = Tensor::onHost(s.device, desc.shape, desc.element);
  s.device->wait(ranks.receive(host, rank));
  wait(host);
  return host;
}

void SharedSession::saveShards(const std::filesystem::path &path, Checkpoint checkpoint) {
  for (const auto &[key, state] : shards_->states())
    if (!checkpoint.state.contains(key))
      checkpoint.deferredState.emplace(
          key, DeferredTensor{state.desc.shape, state.desc.element, [this, key = key, state = state] {
                                return receive(std::string(statePrefix) + key, state.desc, state.rank);
                              }});
  for (size_t slot = 0; slot < s.table.size(); ++slot)
    if (isElsewhere(slot)) {
      const ParameterInfo &info = s.table.infos()[slot];
      checkpoint.deferred.emplace(info.key, DeferredTensor{info.desc.shape, info.desc.element, [this, &info, slot] {
                                                             return receive(info.key, info.desc, *rankOf(slot));
                                                           }});
    }
  try {
    saveCheckpoint(path, checkpoint);
  } catch (const std::exception &error) {
    auto *known = dynamic_cast<const Error *>(&error);
    if (!known || known->code() != ErrorCode::RankFailed) // which all know
      meetAboutCheckpoint(*group_, "", error.what());
    throw;
  }
  meetAboutCheckpoint(*group_, "", "");
}

void SharedSession::sendStates() {
  Collectives &ranks = *group_;
  for (std::string key; !(key = meetAboutCheckpoint(ranks, "", "")).empty();) {
    bool isState = key.starts_with(statePrefix);
    std::string ofState = isState ? key.substr(statePrefix.size()) : "";
    size_t slot = isState ? 0 : s.table.require(key);
    bool isOwn = (isState ? shards_->states().at(ofState).rank : rankOf(slot)) == ranks.rank();
    Tensor host;
    try {
      if (isOwn)
        wait(host = toHost(isState ? s.optimizerState.at(ofState) : s.values[slot]));
    } catch (const std::exception &error) {
      meetAboutCheckpoint(ranks, "", error.what());
      throw;
    }
    meetAboutCheckpoint(ranks, "", "");
    if (isOwn)
      s.device->wait(ranks.send(host, 0));
  }
}

//===----------------------------------------------------------------------===//
// Checkpoints with a part of each rank
//===----------------------------------------------------------------------===//

std::vector<CheckpointTensor> SharedSession::checkpointTensors() const {
  std::vector<CheckpointTensor> tensors;
  auto add = [&](std::string name, const TensorDesc &desc, std::optional<int> owner) {
    tensors.push_back({std::move(name), TensorDesc(desc.shape, desc.element).spanBytes(), owner});
  };
  for (size_t slot = 0; slot < s.table.size(); ++slot)
    add(s.table.infos()[slot].key, s.table.infos()[slot].desc, rankOf(slot));
  for (const auto &[key, tensor] : s.optimizerState)
    if (!shards_)
      add(std::string(statePrefix) + key, tensor.desc(), std::nullopt);
  if (shards_)
    for (const auto &[key, state] : shards_->states())
      add(std::string(statePrefix) + key, state.desc, state.rank);
  return tensors;
}

void SharedSession::saveParts(const std::filesystem::path &folder, CheckpointSave *save, const std::string &name,
                               const std::function<Checkpoint()> &make) {
  Collectives &ranks = *group_;
  CheckpointWriters writers = shareWriting(checkpointTensors(), ranks.ranks());
  Checkpoint checkpoint;
  std::vector<Json> words = meetBehind(ranks, [&] {
    checkpoint = make();
    DeferredTensors tensors = tensorsOf(checkpoint);
    std::erase_if(tensors, [&](const auto &each) { return writers.at(each.first) != ranks.rank(); });
    CheckpointPart part = writeCheckpointPart(folder, name, size_t(ranks.rank()), size_t(ranks.ranks()), tensors);
    return Json::array({part.bytes, part.hash});
  });
  meetBehind(ranks, [&] {
    std::vector<CheckpointPart> parts;
    for (const Json &word : words)
      parts.push_back({word[0], word[1]});
    if (save)
      save->commit(checkpoint, parts, writers);
    return "";
  });
}

void SharedSession::saveTogether(const std::filesystem::path &path, const std::function<Checkpoint()> &make) {
  Collectives &ranks = *group_;
  bool isFirst = ranks.rank() == 0;
  Checkpoint checkpoint;
  std::optional<CheckpointSave> save; // to a folder, of rank 0, which decides for all what the path is
  std::vector<Json> words = meetBehind(ranks, [&] {
    checkpoint = make();
    if (isFirst && isCheckpointFolder(path))
      save.emplace(path);
    return Json::array({save ? save->name() : "", hasAgreed_});
  });
  std::string name = words[0][0];
  if (name.empty())
    return isFirst ? saveShards(path, std::move(checkpoint)) : sendStates();
  // Each writes values that are those of all.
  if (std::ranges::any_of(words, [](const Json &word) { return !word[1].get<bool>(); }))
    agree();
  saveParts(path, save ? &*save : nullptr, name, make);
}

} // namespace segue::inline runtime
