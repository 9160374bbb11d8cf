//===- InProcess.cpp - ranks that are threads of one process --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Collectives/InProcess.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>

namespace segue::inline runtime {

namespace {
/// An Offer is what a rank brings to an operation.
struct Offer {
  std::string_view what;
  const void *data = nullptr;
  uint64_t bytes = 0;
};

/// A Group is what the ends share.
struct Group {
  Group(int ranks, InProcessOptions options) : options(options), offers(size_t(ranks)), rounds(size_t(ranks)),
                                                haveMissed(size_t(ranks)) {}

  const InProcessOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  /// The offers of the operation under way, and how many meetings each rank has come to.
  std::vector<Offer> offers;
  std::vector<uint64_t> rounds;
  /// The tensors that were sent and not received yet, by sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> sent;
  /// Why the group has ended; empty: it has not.
  std::string ended;
  /// The ranks that have found others missing by another way than calls of this transport.
  std::vector<bool> haveMissed;
};

class End final : public Transport {
public:
  End(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {
    if (group_->options.seed)
      random_.seed(*group_->options.seed * 1009 + uint64_t(rank));
  }

  int rank() const override { return rank_; }
  int ranks() const override { return int(group_->rounds.size()); }

  void allReduce(float *data, int64_t count) override {
    std::vector<float> sum(static_cast<size_t>(count));
    together({"allReduce", data, uint64_t(count) * sizeof(float)}, [&] { addAll(sum, 0); });
    std::memcpy(data, sum.data(), sum.size() * sizeof(float));
  }
  void reduce(float *data, int64_t count, int root) override {
    std::vector<float> sum(root == rank_ ? static_cast<size_t>(count) : 0);
    together({"reduce", data, uint64_t(count) * sizeof(float)}, [&] { addAll(sum, 0); });
    // Elsewhere there is what nobody should take for a sum.
    root == rank_ ? std::memcpy(data, sum.data(), sum.size() * sizeof(float))
                  : std::memset(data, 0xff, size_t(count) * sizeof(float));
  }
  void reduceScatter(const float *whole, float *part, int64_t count) override {
    std::vector<float> sum(static_cast<size_t>(count));
    together({"reduceScatter", whole, uint64_t(count) * sizeof(float) * uint64_t(ranks())},
             [&] { addAll(sum, size_t(rank_) * size_t(count)); });
    std::memcpy(part, sum.data(), sum.size() * sizeof(float));
  }
  void allGather(const void *part, void *whole, uint64_t bytes) override {
    together({"allGather", part, bytes}, [&] {
      for (size_t rank = 0; rank < group_->offers.size(); ++rank)
        std::memcpy(static_cast<std::byte *>(whole) + rank * bytes, group_->offers[rank].data, bytes);
    });
  }
  void broadcast(void *data, uint64_t bytes, int root) override {
    together({"broadcast", data, bytes}, [&] {
      if (root != rank_)
        std::memcpy(data, group_->offers[size_t(root)].data, bytes);
    });
  }
  void send(const void *data, uint64_t bytes, int to) override {
    begin();
    std::lock_guard lock(group_->mutex);
    throwIfEnded();
    auto *first = static_cast<const std::byte *>(data);
    group_->sent[{rank_, to}].emplace_back(first, first + bytes);
    group_->changed.notify_all();
  }
  void receive(void *data, uint64_t bytes, int from) override;
  void abandon(std::string_view why) noexcept override {
    std::lock_guard lock(group_->mutex);
    if (group_->ended.empty())
      group_->ended = "rank " + std::to_string(rank_) + " has given up: " + std::string(why);
    group_->changed.notify_all();
  }
  double timeoutSeconds() const override { return group_->options.timeoutSeconds; }
  std::string ended() override {
    std::lock_guard lock(group_->mutex);
    return group_->ended;
  }
  std::string missed(std::string_view what) override;

private:
  void addAll(std::vector<float> &sum, size_t first) const {
    for (size_t i = 0; i < sum.size(); ++i) {
      float total = static_cast<const float *>(group_->offers[0].data)[first + i];
      for (size_t rank = 1; rank < group_->offers.size(); ++rank)
        total += static_cast<const float *>(group_->offers[rank].data)[first + i];
      sum[i] = total;
    }
  }
  void throwIfEnded() const {
    if (!group_->ended.empty())
      throw Error(ErrorCode::RankFailed, group_->ended);
  }
  void begin();
  void dawdle();
  void meet(std::unique_lock<std::mutex> &lock, std::string_view what);
  template <typename Read> void together(const Offer &offer, Read read);

  std::shared_ptr<Group> group_;
  int rank_;
  uint64_t calls_ = 0;
  bool isGone_ = false;
  std::mt19937_64 random_;
};
} // namespace

/// Lets time pass, by chance.
void End::dawdle() {
  if (!group_->options.seed)
    return;
  switch (random_() % 4) {
  case 0:
    return std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
  case 1:
    return std::this_thread::yield();
  default:
    return;
  }
}

/// Begins a call; the one that is to fail does so here.
void End::begin() {
  dawdle();
  const auto &fault = group_->options.fault;
  bool fails = fault && fault->rank == rank_ && fault->call == calls_++;
  isGone_ |= fails && fault->vanishes;
  if (isGone_)
    throw Error(ErrorCode::RankFailed, "this rank has vanished, as its test wants");
  if (!fails)
    return;
  abandon("call " + std::to_string(fault->call) + " was to fail");
  throw Error(ErrorCode::RankFailed, "call " + std::to_string(fault->call) + " was to fail");
}

/// Returns when every rank has come to this meeting.
void End::meet(std::unique_lock<std::mutex> &lock, std::string_view what) {
  Group &group = *group_;
  uint64_t round = ++group.rounds[size_t(rank_)];
  group.changed.notify_all();
  auto hasCome = [round](uint64_t other) { return other >= round; };
  auto isOver = [&] { return !group.ended.empty() || std::ranges::all_of(group.rounds, hasCome); };
  bool isInTime =
      group.changed.wait_for(lock, std::chrono::duration<double>(group.options.timeoutSeconds), isOver);
  // Who has met the others is not told of what came after.
  if (std::ranges::all_of(group.rounds, hasCome))
    return;
  if (!isInTime) {
    std::string missing;
    for (size_t rank = 0; rank < group.rounds.size(); ++rank)
      if (!hasCome(group.rounds[rank]))
        missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
    group.ended = missing + " did not come to " + std::string(what) + " within " +
                  std::to_string(group.options.timeoutSeconds) + " s";
    group.changed.notify_all();
  }
  throwIfEnded();
}

/// Calls `read` while the offers of all ranks are there to be read.
template <typename Read> void End::together(const Offer &offer, Read read) {
  begin();
  std::unique_lock lock(group_->mutex);
  throwIfEnded();
  group_->offers[size_t(rank_)] = offer;
  meet(lock, offer.what);
  for (size_t rank = 0; rank < group_->offers.size(); ++rank) {
    const Offer &other = group_->offers[rank];
    if (other.what == offer.what && other.bytes == offer.bytes)
      continue;
    group_->ended = "rank " + std::to_string(rank_) + " calls " + std::string(offer.what) + " of " +
                    std::to_string(offer.bytes) + " bytes, and rank " + std::to_string(rank) + " " +
                    std::string(other.what) + " of " + std::to_string(other.bytes);
    group_->changed.notify_all();
    throwIfEnded();
  }
  lock.unlock();
  read();
  dawdle();
  lock.lock();
  meet(lock, offer.what); // before anybody writes to what others read
}

void End::receive(void *data, uint64_t bytes, int from) {
  begin();
  Group &group = *group_;
  std::unique_lock lock(group.mutex);
  auto &waiting = group.sent[{from, rank_}];
  bool isInTime = group.changed.wait_for(lock, std::chrono::duration<double>(group.options.timeoutSeconds),
                                         [&] { return !group.ended.empty() || !waiting.empty(); });
  if (!isInTime) {
    group.ended = "rank " + std::to_string(from) + " sent nothing to rank " + std::to_string(rank_) + " within " +
                  std::to_string(group.options.timeoutSeconds) + " s";
    group.changed.notify_all();
  }
  if (waiting.empty())
    throwIfEnded();
  std::vector<std::byte> message = std::move(waiting.front());
  waiting.pop_front();
  if (message.size() != bytes)
    throw Error(ErrorCode::RankFailed, "rank " + std::to_string(from) + " sent " + std::to_string(message.size()) +
                                           " bytes where rank " + std::to_string(rank_) + " takes " +
                                           std::to_string(bytes));
  std::memcpy(data, message.data(), bytes);
}

/// Ranks that wait, too, find out at about the same time: who has not after as long once more is the cause.
std::string End::missed(std::string_view what) {
  Group &group = *group_;
  std::unique_lock lock(group.mutex);
  group.haveMissed[size_t(rank_)] = true;
  group.changed.notify_all();
  group.changed.wait_for(lock, std::chrono::duration<double>(std::min(group.options.timeoutSeconds, 1.0)), [&] {
    return !group.ended.empty() || std::ranges::all_of(group.haveMissed, [](bool has) { return has; });
  });
  if (group.ended.empty()) {
    std::string missing;
    for (size_t rank = 0; rank < group.haveMissed.size(); ++rank)
      if (!group.haveMissed[rank])
        missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
    group.ended = (missing.empty() ? "no rank" : missing) + (missing.empty() ? " ended " : " did not come to ") +
                  std::string(what) + " within " + std::to_string(group.options.timeoutSeconds) + " s";
    group.changed.notify_all();
  }
  return group.ended;
}

std::vector<std::shared_ptr<Transport>> inProcessRanks(int ranks, InProcessOptions options) {
  if (ranks < 1)
    throw Error(ErrorCode::InvalidArgument, "a group has one rank at least, and not " + std::to_string(ranks));
  auto group = std::make_shared<Group>(ranks, options);
  std::vector<std::shared_ptr<Transport>> ends;
  for (int rank = 0; rank < ranks; ++rank)
    ends.push_back(std::make_shared<End>(group, rank));
  return ends;
}

} // namespace segue::inline runtime
