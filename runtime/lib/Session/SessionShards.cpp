//===- SessionShards.cpp - updates and checkpoints of sharded states ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each rank updates parameters of its own, and gives their values to the others while the
// next forward begins. Where it has their gradients alone, too, the norm of all is made of
// the squares that each rank tells. A checkpoint is that of one rank alone: rank 0 writes it, and asks
// for the states that others have one by one.
//
//===----------------------------------------------------------------------===//

#include "CheckpointHashes.h"
#include "CheckpointValues.h"
#include "SessionState.h"
#include "segue/runtime/Collectives/Collectives.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

void Session::State::shareOptimizers() {
  auto updatesElsewhere = [](const Module &module) { return module.updatesInBackward() || module.updatesInForward(); };
  if (!isSharded() || std::ranges::any_of(modules, updatesElsewhere)) // which is refused
    return;
  if (options.shards) { // the modules are shares
    shards = options.shards;
    return leaveModules(modules);
  }
  int ranks = options.collectives->ranks();
  shards = isPipelined()
               ? std::make_shared<ShardedStates>(modules, table, PipelineStages(modules, options.stages, ranks))
               : std::make_shared<ShardedStates>(modules, table, ranks);
  for (size_t m = 0; m < modules.size(); ++m)
    modules[m] = shards->shareOf(modules[m], m, table, options.collectives->rank(), options.sharding);
}

//===----------------------------------------------------------------------===//
// The norm
//===----------------------------------------------------------------------===//

/// Returns the values of tensors of one f32 each, in their order. They come together, as each alone is hardly worth the way.
static std::vector<float> bringScalars(const DeviceRef &device, std::span<const Tensor> scalars) {
  if (scalars.empty())
    return {};
  constexpr uint64_t step = 64; // places where a copy may begin
  Tensor host = Tensor::onHost(device, {int64_t(scalars.size() * step / sizeof(float))}, ElementType::f32);
  for (size_t i = 0; i < scalars.size(); ++i) {
    auto place = std::make_shared<TensorDesc>(scalars[i].desc().shape, ElementType::f32);
    place->layout.space = host.desc().layout.space;
    place->layout.offset = host.desc().layout.offset + i * step;
    copyInto(scalars[i], Tensor::in(host.storage(), std::move(place)));
  }
  wait(host);
  std::vector<float> values(scalars.size());
  for (size_t i = 0; i < values.size() && device->hasBytes(); ++i)
    values[i] = host.data<float>()[i * step / sizeof(float)];
  return values;
}

double Session::State::squareOverRanks(const std::vector<std::vector<Tensor>> &norms) {
  int rank = options.collectives->rank();
  std::vector<Tensor> scalars;
  for (size_t m = 0; m < norms.size(); ++m)
    for (size_t i = 0; i < norms[m].size(); ++i) { // but for gradients of parameters that other modules update
      std::string_view parameter = plans[m].gradNorm->output(i).name;
      parameter.remove_prefix(gradSquaresName.size() + 1);
      if (table.owner(table.slotOf(m, parameter)) == m)
        scalars.push_back(norms[m][i]);
    }
  std::vector<float> own = bringScalars(device, scalars);
  StepWord word;
  size_t next = 0;
  for (const std::vector<size_t> &slots : shards->squares())
    for (size_t slot : slots)
      word.squares.push_back(shards->rankOf(slot) == rank ? own.at(next++) : 0);
  std::vector<StepWord> words = meetOnce(word);
  double square = 0;
  size_t at = 0;
  for (const std::vector<size_t> &slots : shards->squares()) {
    float sum = 0; // in f32 and in this order, as those of one rank are added up
    for (size_t slot : slots)
      sum += words[size_t(shards->rankOf(slot))].squares.at(at++);
    square += sum;
  }
  return square;
}

//===----------------------------------------------------------------------===//
// Updates
//===----------------------------------------------------------------------===//

/// Returns the parameters of each message and whose they are: the first message of each rank, then the second of each, so
/// that what the next forward reads first comes first on every link.
template <typename IsSent>
static std::vector<std::pair<int, std::vector<size_t>>>
messagesOf(const ParameterTable &table, const ShardedStates &shards, int ranks, uint64_t bucketBytes, IsSent isSent) {
  std::vector<std::vector<std::vector<size_t>>> byRank((size_t(ranks)));
  std::vector<uint64_t> filled(size_t(ranks), 0);
  for (size_t slot = 0; slot < table.size(); ++slot) {
    if (!isSent(slot))
      continue;
    auto rank = size_t(shards.rankOf(slot));
    uint64_t bytes = table.infos()[slot].desc.spanBytes();
    if (byRank[rank].empty() || filled[rank] + bytes > bucketBytes) {
      byRank[rank].emplace_back();
      filled[rank] = 0;
    }
    byRank[rank].back().push_back(slot);
    filled[rank] += bytes;
  }
  std::vector<std::pair<int, std::vector<size_t>>> messages;
  for (size_t round = 0, given = 1; given; ++round) {
    given = 0;
    for (int rank = 0; rank < ranks; ++rank)
      if (auto &own = byRank[size_t(rank)]; round < own.size()) {
        messages.emplace_back(rank, std::move(own[round]));
        ++given;
      }
  }
  return messages;
}

void Session::State::leaveHostToMessages(std::span<const TensorMap> batches) {
  Collectives &ranks = *options.collectives;
  std::vector<std::vector<uint64_t>> sums, gathered, updates;
  for (const GradientReduction::Message &message : reduction->messages())
    for (std::vector<uint64_t> &sum = sums.emplace_back(); size_t slot : message.slots)
      sum.push_back(TensorDesc(table.infos()[slot].desc.shape, ElementType::f32).spanBytes());
  if (isPipelined()) {
    leavePipelineTo(batches, gathered, updates);
  } else if (shards) {
    auto isSent = [&](size_t slot) { return table.infos()[slot].trained && !rankOf(slot); };
    for (const auto &[rank, slots] : messagesOf(table, *shards, ranks.ranks(), ranks.bucketBytes(), isSent))
      for (std::vector<uint64_t> &update = updates.emplace_back(); size_t slot : slots)
        update.push_back(table.infos()[slot].desc.spanBytes());
    for (size_t slot = 0; slot < table.size(); ++slot) // for forward, and once more for backward
      if (rankOf(slot))
        gathered.resize(gathered.size() + 2, {table.infos()[slot].desc.spanBytes()});
  }
  leftForBatches = batches.size();
  gathered.insert(gathered.end(), sums.begin(), sums.end());
  device->transfer().leaveToMessages(std::max(ranks.memoryFor(gathered), ranks.memoryFor(updates)));
}

void Session::State::shareUpdates(int64_t number) {
  // A plan has parameters on the device when a step begins, and finds out in its step which have come home instead.
  bool isTwin = shards == options.shards;
  if (!shards || isTwin)
    return;
  Collectives &ranks = *options.collectives;
  auto isSent = [&](size_t slot) { return table.infos()[slot].trained && !rankOf(slot); };
  try {
    if (isPipelined()) // nobody else has any use for the others
      return shareTied();
    // A parameter that comes to the device by block is sent from its home, and is written there.
    streamed->flush();
    struct Staged {
      size_t slot;
      Tensor host;
    };
    std::vector<Staged> staged;
    Fence home;
    for (auto &[rank, slots] : messagesOf(table, *shards, ranks.ranks(), ranks.bucketBytes(), isSent)) {
      std::vector<Tensor> tensors;
      for (size_t slot : slots) {
        Tensor value = values[slot];
        if (!value.desc().isDense()) {
          value = Tensor::onHost(device, value.shape(), value.element());
          if (rank == ranks.rank())
            copyInto(values[slot], value);
          else
            staged.push_back({slot, value});
        }
        tensors.push_back(std::move(value));
      }
      Fence sent = ranks.broadcast(tensors, rank);
      if (std::ranges::any_of(slots, [&](size_t slot) { return streamed->has(slot); }))
        home.join(sent);
    }
    for (const Staged &each : staged)
      copyInto(each.host, values[each.slot]);
    device->wait(home);
    for (size_t slot = 0; slot < table.size(); ++slot)
      if (isSent(slot) && streamed->has(slot) && shards->rankOf(slot) != ranks.rank()) {
        wait(values[slot]);
        streamed->written(slot);
      }
  } catch (const std::exception &error) { // others are in the midst of it
    noteTorn(number, std::string("updates did not reach every rank (") + error.what() + ")");
    ranks.abandon(tornError(torn).what());
    abort();
    requireWhole();
  }
}

//===----------------------------------------------------------------------===//
// Checkpoints
//===----------------------------------------------------------------------===//

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

Tensor Session::State::receive(const std::string &key, const TensorDesc &desc, int rank) {
  Collectives &ranks = *options.collectives;
  meetAboutCheckpoint(ranks, key, "");
  meetAboutCheckpoint(ranks, "", ""); // whoever has it can read it
  Tensor host = Tensor::onHost(device, desc.shape, desc.element);
  device->wait(ranks.receive(host, rank));
  wait(host);
  return host;
}

void Session::State::saveShards(const std::filesystem::path &path, Checkpoint checkpoint) {
  for (const auto &[key, state] : shards->states())
    if (!checkpoint.state.contains(key))
      checkpoint.deferredState.emplace(
          key, DeferredTensor{state.desc.shape, state.desc.element, [this, key = key, state = state] {
                                return receive(std::string(statePrefix) + key, state.desc, state.rank);
                              }});
  for (size_t slot = 0; slot < table.size(); ++slot)
    if (isElsewhere(slot)) {
      const ParameterInfo &info = table.infos()[slot];
      checkpoint.deferred.emplace(info.key, DeferredTensor{info.desc.shape, info.desc.element, [this, &info, slot] {
                                                             return receive(info.key, info.desc, *rankOf(slot));
                                                           }});
    }
  try {
    saveCheckpoint(path, checkpoint);
  } catch (const std::exception &error) {
    auto *known = dynamic_cast<const Error *>(&error);
    if (!known || known->code() != ErrorCode::RankFailed) // which all know
      meetAboutCheckpoint(*options.collectives, "", error.what());
    throw;
  }
  meetAboutCheckpoint(*options.collectives, "", "");
}

void Session::State::sendStates() {
  Collectives &ranks = *options.collectives;
  for (std::string key; !(key = meetAboutCheckpoint(ranks, "", "")).empty();) {
    bool isState = key.starts_with(statePrefix);
    std::string ofState = isState ? key.substr(statePrefix.size()) : "";
    size_t slot = isState ? 0 : table.require(key);
    bool isOwn = (isState ? shards->states().at(ofState).rank : rankOf(slot)) == ranks.rank();
    Tensor host;
    try {
      if (isOwn)
        wait(host = toHost(isState ? optimizerState.at(ofState) : values[slot]));
    } catch (const std::exception &error) {
      meetAboutCheckpoint(ranks, "", error.what());
      throw;
    }
    meetAboutCheckpoint(ranks, "", "");
    if (isOwn)
      device->wait(ranks.send(host, 0));
  }
}

//===----------------------------------------------------------------------===//
// Checkpoints with a part of each rank
//===----------------------------------------------------------------------===//

std::vector<CheckpointTensor> Session::State::checkpointTensors() const {
  std::vector<CheckpointTensor> tensors;
  auto add = [&](std::string name, const TensorDesc &desc, std::optional<int> owner) {
    tensors.push_back({std::move(name), TensorDesc(desc.shape, desc.element).spanBytes(), owner});
  };
  for (size_t slot = 0; slot < table.size(); ++slot)
    add(table.infos()[slot].key, table.infos()[slot].desc, rankOf(slot));
  for (const auto &[key, tensor] : optimizerState)
    if (!shards)
      add(std::string(statePrefix) + key, tensor.desc(), std::nullopt);
  if (shards)
    for (const auto &[key, state] : shards->states())
      add(std::string(statePrefix) + key, state.desc, state.rank);
  return tensors;
}

void Session::State::saveParts(const std::filesystem::path &folder, CheckpointSave *save, const std::string &name,
                               const std::function<Checkpoint()> &make) {
  Collectives &ranks = *options.collectives;
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

void Session::State::saveTogether(const std::filesystem::path &path, const std::function<Checkpoint()> &make) {
  Collectives &ranks = *options.collectives;
  bool isFirst = ranks.rank() == 0;
  Checkpoint checkpoint;
  std::optional<CheckpointSave> save; // to a folder, of rank 0, which decides for all what the path is
  std::vector<Json> words = meetBehind(ranks, [&] {
    checkpoint = make();
    if (isFirst && isCheckpointFolder(path))
      save.emplace(path);
    return Json::array({save ? save->name() : "", hasAgreed});
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
