//===- Recording.cpp - rows that are given by one call --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Recording.h"
#include "../Hash.h"
#include <algorithm>

namespace segue::inline runtime::cuda {

//===----------------------------------------------------------------------===//
// One recording
//===----------------------------------------------------------------------===//

class Recording::Run {
public:
  explicit Run(std::shared_ptr<Recording> recording) : recording_(std::move(recording)) {}
  ~Run() { recording_->isUnderWay_.store(false, std::memory_order_release); }
  Recording &recording() { return *recording_; }

private:
  std::shared_ptr<Recording> recording_;
};

/// A run in one of its entries.
class Recording::Replayed final : public Given {
public:
  Replayed(std::shared_ptr<Run> run, size_t place) : run_(std::move(run)), place_(place) {}

  void settle() override {
    Recording &recording = run_->recording();
    std::exception_ptr first;
    for (std::unique_ptr<Given> &given : recording.given_[place_])
      try {
        given->settle();
      } catch (...) {
        if (!first)
          first = std::current_exception();
      }
    if (!first)
      return;
    recording.isSpoiled_.store(true, std::memory_order_release);
    std::rethrow_exception(first);
  }

private:
  std::shared_ptr<Run> run_;
  size_t place_;
};

Recording::~Recording() {
  context_.use();
  if (graph_)
    (void)context_.succeeded(context_.api().graphExecDestroy(graph_), "cuGraphExecDestroy");
}

void Recording::keep(size_t place, std::unique_ptr<Given> given) {
  given_[place].push_back(std::move(given));
  hasWords_ = true;
}

bool Recording::make(CUgraph graph) {
  return context_.succeeded(context_.api().graphInstantiate(&graph_, graph, 0), "cuGraphInstantiateWithFlags");
}

void Recording::launch(CUstream stream) {
  context_.check(context_.api().graphLaunch(graph_, stream), "cuGraphLaunch");
  for (std::atomic<uint64_t> *counter : counters_)
    counter->fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<Recording::Run> Recording::begun() {
  isUnderWay_.store(true, std::memory_order_relaxed);
  return std::make_shared<Run>(shared_from_this());
}

std::unique_ptr<Given> Recording::givenOf(size_t place, std::shared_ptr<Run> run) {
  return std::make_unique<Replayed>(std::move(run), place);
}

//===----------------------------------------------------------------------===//
// All of them
//===----------------------------------------------------------------------===//

void RowKey::add(const WorkCommand &command) {
  words_.push_back(command.number); // which says how many addresses follow
  for (void *address : command.addresses)
    words_.push_back(reinterpret_cast<uint64_t>(address));
  ++commands_;
}

uint64_t RowKey::hash() const { return hashOf(words_.data(), words_.size() * sizeof(uint64_t)); }

std::pair<std::shared_ptr<Recording>, bool> Recordings::find(const RowKey &key) {
  auto [found, isNew] = rows_.try_emplace(key.hash());
  Row &row = found->second;
  row.lastUse = ++uses_;
  if (isNew || row.key != key) {
    row = {key, {}, true, uses_};
    if (rows_.size() > mostRows)
      rows_.erase(std::ranges::min_element(rows_, {}, [](const auto &each) { return each.second.lastUse; }));
    return {nullptr, false};
  }
  std::erase_if(row.recordings, [](const auto &recording) { return recording->isSpoiled(); });
  for (const auto &recording : row.recordings)
    if (recording->isFree())
      return {recording, false};
  return {nullptr, row.canBeRecorded && row.recordings.size() < mostAlike};
}

void Recordings::keep(const RowKey &key, std::shared_ptr<Recording> recording) {
  Row &row = rows_.at(key.hash());
  if (recording)
    row.recordings.push_back(std::move(recording));
  else
    row.canBeRecorded = false;
}

} // namespace segue::inline runtime::cuda
