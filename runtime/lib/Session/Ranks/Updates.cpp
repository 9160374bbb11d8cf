//===- Updates.cpp - updates of parameters that are shared out ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each rank updates parameters of its own, and gives their values to the others while the
// next forward begins. Where it has their gradients alone, too, the norm of all is made of
// the squares that each rank tells.
//
//===----------------------------------------------------------------------===//

#include "SharedSession.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"

namespace segue::inline runtime {

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

double SharedSession::squareOverRanks(const std::vector<std::vector<Tensor>> &norms) {
  int rank = group_->rank();
  std::vector<Tensor> scalars;
  for (size_t m = 0; m < norms.size(); ++m)
    for (size_t i = 0; i < norms[m].size(); ++i) { // but for gradients of parameters that other modules update
      std::string_view parameter = s.plans[m].gradNorm->output(i).name;
      parameter.remove_prefix(gradSquaresName.size() + 1);
      if (s.table.owner(s.table.slotOf(m, parameter)) == m)
        scalars.push_back(norms[m][i]);
    }
  std::vector<float> own = bringScalars(s.device, scalars);
  StepWord word;
  size_t next = 0;
  for (const std::vector<size_t> &slots : shards_->squares())
    for (size_t slot : slots)
      word.squares.push_back(shards_->rankOf(slot) == rank ? own.at(next++) : 0);
  std::vector<StepWord> words = meetOnce(word);
  double square = 0;
  size_t at = 0;
  for (const std::vector<size_t> &slots : shards_->squares()) {
    float sum = 0; // in f32 and in this order, as those of one rank are added up
    for (size_t slot : slots)
      sum += words[size_t(shards_->rankOf(slot))].squares.at(at++);
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

void SharedSession::leaveHostToMessages(std::span<const TensorMap> batches) {
  Collectives &ranks = *group_;
  std::vector<std::vector<uint64_t>> sums, gathered, updates;
  for (const GradientReduction::Message &message : reduction_->messages())
    for (std::vector<uint64_t> &sum = sums.emplace_back(); size_t slot : message.slots)
      sum.push_back(TensorDesc(s.table.infos()[slot].desc.shape, ElementType::f32).spanBytes());
  if (isPipelined()) {
    leavePipelineTo(batches, gathered, updates);
  } else if (shards_) {
    auto isSent = [&](size_t slot) { return s.table.infos()[slot].trained && !rankOf(slot); };
    for (const auto &[rank, slots] : messagesOf(s.table, *shards_, ranks.ranks(), ranks.bucketBytes(), isSent))
      for (std::vector<uint64_t> &update = updates.emplace_back(); size_t slot : slots)
        update.push_back(s.table.infos()[slot].desc.spanBytes());
    for (size_t slot = 0; slot < s.table.size(); ++slot) // for forward, and once more for backward
      if (rankOf(slot))
        gathered.resize(gathered.size() + 2, {s.table.infos()[slot].desc.spanBytes()});
  }
  leftForBatches_ = batches.size();
  gathered.insert(gathered.end(), sums.begin(), sums.end());
  s.device->transfer().leaveToMessages(std::max(ranks.memoryFor(gathered), ranks.memoryFor(updates)));
}

void SharedSession::shareUpdates(int64_t number) {
  // A plan has parameters on the device when a step begins, and finds out in its step which have come home instead.
  bool isTwin = shards_ == s.options.shards;
  if (!shards_ || isTwin)
    return;
  Collectives &ranks = *group_;
  auto isSent = [&](size_t slot) { return s.table.infos()[slot].trained && !rankOf(slot); };
  try {
    if (isPipelined()) // nobody else has any use for the others
      return shareTied();
    // A parameter that comes to the device by block is sent from its home, and is written there.
    s.streamed->flush();
    struct Staged {
      size_t slot;
      Tensor host;
    };
    std::vector<Staged> staged;
    Fence home;
    for (auto &[rank, slots] : messagesOf(s.table, *shards_, ranks.ranks(), ranks.bucketBytes(), isSent)) {
      std::vector<Tensor> tensors;
      for (size_t slot : slots) {
        Tensor value = s.values[slot];
        if (!value.desc().isDense()) {
          value = Tensor::onHost(s.device, value.shape(), value.element());
          if (rank == ranks.rank())
            copyInto(s.values[slot], value);
          else
            staged.push_back({slot, value});
        }
        tensors.push_back(std::move(value));
      }
      Fence sent = ranks.broadcast(tensors, rank);
      if (std::ranges::any_of(slots, [&](size_t slot) { return s.streamed->has(slot); }))
        home.join(sent);
    }
    for (const Staged &each : staged)
      copyInto(each.host, s.values[each.slot]);
    s.device->wait(home);
    for (size_t slot = 0; slot < s.table.size(); ++slot)
      if (isSent(slot) && s.streamed->has(slot) && shards_->rankOf(slot) != ranks.rank()) {
        wait(s.values[slot]);
        s.streamed->written(slot);
      }
  } catch (const std::exception &error) { // others are in the midst of it
    s.noteTorn(number, std::string("updates did not reach every rank (") + error.what() + ")");
    ranks.abandon(tornError(s.torn).what());
    s.abort();
    s.requireWhole();
  }
}

} // namespace segue::inline runtime
