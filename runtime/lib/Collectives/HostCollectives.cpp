//===- HostCollectives.cpp - collectives by way of the host's memory ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tensors that the host reaches are used where they lie, or are packed into a message with
// others; those of a device with memory of its own are brought to page-locked memory by its
// copy queues and back, beside what it computes.
//
//===----------------------------------------------------------------------===//

#include "MessageMemory.h"
#include "MessageWork.h"
#include "segue/runtime/Collectives/Transport.h"
#include "segue/runtime/Collectives/VirtualGroup.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include "segue/runtime/Transfer/TransferPlan.h"
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>

namespace segue::inline runtime {

/// Returns the place of a part behind so many bytes of a message.
static uint64_t placeAfter(uint64_t bytes) {
  return (bytes + MessageMemory::alignment - 1) / MessageMemory::alignment * MessageMemory::alignment;
}
static uint64_t bytesOf(const Tensor &tensor) { return tensor.desc().spanBytes(); }

/// Returns the end of the tensors that make a message from `first` on, of `count`.
static size_t endOfBucket(size_t count, size_t first, uint64_t bucketBytes,
                          const std::function<uint64_t(size_t)> &bytesAt) {
  uint64_t bytes = bytesAt(first);
  size_t end = first + 1;
  while (end < count && bytes + bytesAt(end) <= bucketBytes)
    bytes += bytesAt(end++);
  return end;
}

static uint64_t bytesUnderWay(const CollectiveOptions &options) {
  return options.bucketsUnderWay && options.bucketBytes > UINT64_MAX / 2 / options.bucketsUnderWay
             ? UINT64_MAX / 2
             : options.bucketBytes * options.bucketsUnderWay;
}

namespace {
/// A Message is a run of the host's memory for one operation, with the tensors that are brought there or come from it.
struct Message {
  std::shared_ptr<Storage> storage;
  /// The first byte, and how many there are. The address is that of a storage of the host's, which stays.
  std::byte *data = nullptr;
  uint64_t bytes = 0;
  /// The tensors with their places in `storage`; empty where the message is a tensor itself.
  std::vector<std::pair<Tensor, Tensor>> parts;
};

/// A copy within the host's memory, of a tensor to its message or back.
struct Pack {
  std::byte *to;
  const std::byte *from;
  uint64_t bytes;
};

/// A Source is memory that an operation reads, and the outcome of who was to write it.
struct Source {
  std::byte *data;
  uint64_t bytes;
  std::shared_ptr<Outcome> outcome;
};

class HostCollectives final : public Collectives {
public:
  HostCollectives(DeviceRef device, std::shared_ptr<Transport> transport, CollectiveOptions options)
      : device_(std::move(device)), transport_(std::move(transport)), options_(options),
        underWay_(device_, bytesUnderWay(options_)) {}

  int rank() const override { return transport_->rank(); }
  int ranks() const override { return transport_->ranks(); }
  uint64_t bucketBytes() const override { return options_.bucketBytes; }
  CollectiveFigures figures() const override {
    CollectiveFigures figures = figures_;
    figures.peakBytes = underWay_.peakBytes();
    return figures;
  }

  uint64_t memoryFor(std::span<const std::vector<uint64_t>> calls) const override;

  Fence allReduce(std::span<const Tensor> tensors) override;
  Fence reduce(std::span<const Tensor> tensors, int root) override;
  Fence broadcast(std::span<const Tensor> tensors, int root) override;
  Fence reduceScatter(const Tensor &whole, const Tensor &part) override;
  Fence allGather(const Tensor &part, const Tensor &whole) override;
  Fence send(const Tensor &tensor, int to) override;
  Fence receive(const Tensor &tensor, int from) override;
  std::vector<std::string> exchange(std::string_view what, std::string_view message) override;
  std::shared_ptr<Collectives> twin(DeviceRef device) const override;
  void abandon(std::string_view why) noexcept override { transport_->abandon(why); }

private:
  void check(std::string_view what, const Tensor &tensor, bool isSum) const {
    requireMessage(device_, what, tensor, isSum);
  }
  void checkRank(int rank) const { requireRank(rank, ranks()); }
  /// Returns true if the host reaches the device's memory: messages are packed there, and need not be brought.
  bool isReached() const;
  /// Returns true if tensors that are given together go in one message.
  bool packsTogether() const { return !options_.areDirect; }
  /// Returns true if the call of the transport packs messages; otherwise copies are queued for that.
  bool hostPacks() const { return device_->runsInline() || isReached(); }
  Message messageFor(std::span<const Tensor> tensors);
  Fence bring(Message &message);
  Fence takeBack(const Message &message) noexcept;
  Fence perform(std::string_view label, std::span<Message *const> read, std::span<Message *const> written,
                const RingTraffic &traffic, std::function<void(bool isLost)> call, double notBefore = 0);
  void goOn();
  /// Returns when what has been given to the network's queue is done, in virtual time.
  double endOfMessages() const;
  WorkCost costOf(const RingTraffic &traffic) const;
  /// Calls `give` with the tensors in groups that make a message each.
  template <typename Give> Fence byBucket(std::span<const Tensor> tensors, Give give);

  DeviceRef device_;
  std::shared_ptr<Transport> transport_;
  CollectiveOptions options_;
  /// The memory of messages that have been given since the ranks last met.
  MessageMemory underWay_;
  CollectiveFigures figures_;
};
} // namespace

/// The twin of a device that has one memory with the host has a link to the disk alone. What goes directly needs the
/// host for nothing.
bool HostCollectives::isReached() const {
  bool isTwinOfHost = !device_->hasBytes() && device_->hasSpace(Space::Disk) && !device_->diskLink();
  return device_->hasUnifiedMemory() || isTwinOfHost || options_.areDirect;
}

uint64_t HostCollectives::memoryFor(std::span<const std::vector<uint64_t>> calls) const {
  std::vector<uint64_t> messages;
  for (const std::vector<uint64_t> &call : calls)
    for (size_t first = 0, end = 0; first < call.size(); first = end) {
      end = packsTogether() ? endOfBucket(call.size(), first, options_.bucketBytes, [&](size_t i) { return call[i]; })
                            : first + 1;
      if (end == first + 1 && isReached()) // goes from where it is
        continue;
      uint64_t &bytes = messages.emplace_back();
      for (size_t i = first; i < end; ++i)
        bytes = placeAfter(bytes) + call[i];
    }
  return underWay_.mostFor(messages);
}

/// Makes memory of the host for what is given together, without bringing anything there.
Message HostCollectives::messageFor(std::span<const Tensor> tensors) {
  Message message;
  auto isReachable = [&](const Tensor &tensor) { return isReached() || isHostSpace(tensor.desc().layout.space); };
  if (tensors.size() == 1 && isReachable(tensors[0])) {
    message.storage = tensors[0].storage();
    message.data = tensors[0].bytes();
    message.bytes = bytesOf(tensors[0]);
    return message;
  }
  for (const Tensor &tensor : tensors)
    message.bytes = placeAfter(message.bytes) + bytesOf(tensor);
  message.storage = underWay_.take(message.bytes);
  message.data = message.storage->data();
  uint64_t at = 0;
  for (const Tensor &tensor : tensors) {
    at = placeAfter(at);
    auto desc = std::make_shared<TensorDesc>(tensor.shape(), tensor.element());
    desc->layout.space = message.storage->space();
    desc->layout.offset = at;
    message.parts.emplace_back(tensor, Tensor::in(message.storage, std::move(desc)));
    at += bytesOf(tensor);
  }
  return message;
}

/// Brings the tensors of a message there, where queues do that; elsewhere perform() does. One that has failed already is
/// told as one that fails on its way, since the others wait for the message.
Fence HostCollectives::bring(Message &message) {
  for (auto &[tensor, place] : message.parts)
    try {
      if (!hostPacks())
        copyInto(tensor, place);
    } catch (const Error &error) {
      message.storage->outcome()->fail(error);
    }
  return message.storage->uses();
}

/// A copy that cannot be queued is told by its tensor, as one that fails later: the operation is under way.
Fence HostCollectives::takeBack(const Message &message) noexcept {
  Fence done = message.storage->writes();
  for (const auto &[tensor, place] : message.parts) {
    try {
      if (hostPacks()) // the operation has taken it back
        tensor.storage()->addWrite(done);
      else
        copyInto(place, tensor);
    } catch (const Error &error) {
      tensor.storage()->outcome()->fail(error);
    }
    done.join(tensor.storage()->writes());
  }
  return done;
}

/// Appends the call of the transport to the queue, between bringing what it reads and taking back what it writes. A
/// rank whose own tensors have failed calls all the same, as the others wait for it, with numbers that are none and
/// `isLost`.
Fence HostCollectives::perform(std::string_view label, std::span<Message *const> read,
                               std::span<Message *const> written, const RingTraffic &traffic,
                               std::function<void(bool isLost)> call, double notBefore) {
  Fence after;
  for (Message *message : read)
    after.join(bring(*message));
  for (Message *message : written)
    after.join(message->storage->uses());
  bool packs = hostPacks();
  std::vector<Source> sources;
  std::vector<Pack> in, out;
  std::vector<std::shared_ptr<Outcome>> results;
  for (Message *message : read) {
    sources.push_back({message->data, message->bytes, message->storage->outcome()});
    for (const auto &[tensor, place] : message->parts)
      if (packs) {
        in.push_back({place.bytes(), tensor.bytes(), bytesOf(tensor)});
        sources.push_back({place.bytes(), bytesOf(tensor), tensor.storage()->outcome()});
      }
  }
  for (Message *message : written) {
    results.push_back(message->storage->outcome());
    for (const auto &[tensor, place] : message->parts)
      if (packs) {
        out.push_back({tensor.bytes(), place.bytes(), bytesOf(tensor)});
        results.push_back(tensor.storage()->outcome());
      }
  }
  Work work;
  work.label = label;
  work.cost = costOf(traffic);
  work.cost.notBefore = notBefore;
  for (std::span<Message *const> messages : {read, written})
    for (const Message *message : messages)
      work.cost.hostBytes += packs && !message->parts.empty() ? message->bytes : 0;
  work.run = [device = device_.get(), in = std::move(in), out = std::move(out), sources, call = std::move(call)] {
    // The body stays until the call has ended, and with it what the call refers to.
    device->call([&in, &out, &sources, &call] {
      const Error *lost = nullptr;
      for (const Pack &each : in)
        std::memcpy(each.to, each.from, each.bytes);
      for (const Source &source : sources)
        if (const Error *error = source.outcome->error()) {
          lost = error;
          std::memset(source.data, 0xff, source.bytes); // NaN of every float
        }
      call(lost != nullptr);
      if (lost)
        throw *lost;
      for (const Pack &each : out)
        std::memcpy(each.to, each.from, each.bytes);
    });
  };
  work.ended = [results, label](const Error *error) {
    for (const auto &outcome : results)
      if (error && !outcome->error())
        outcome->fail(error->within(std::string(label)));
  };
  traceMessage(*device_, work, traffic.sentBytes);
  ++figures_.messages;
  figures_.sentBytes += traffic.sentBytes;
  Fence fence(Queue::Network, device_->enqueue(Queue::Network, after, std::move(work)));
  for (Message *message : read) {
    message->storage->addRead(fence);
    for (const auto &[tensor, place] : message->parts)
      if (packs)
        tensor.storage()->addRead(fence);
  }
  for (Message *message : written)
    message->storage->addWrite(fence);
  Fence done = fence;
  for (Message *message : written)
    done.join(takeBack(*message));
  for (std::span<Message *const> messages : {read, written})
    for (const Message *message : messages)
      underWay_.given(message->storage);
  return done;
}

double HostCollectives::endOfMessages() const {
  return options_.endOf(Fence(Queue::Network, device_->position(Queue::Network)));
}

/// Has the transport go on with what was sent until the queue has something else; not on the thread that gives it that.
void HostCollectives::goOn() {
  if (!device_->hasBytes())
    return;
  Work work;
  work.label = "messages go on";
  work.run = [device = device_.get(), transport = transport_, own = device_->position(Queue::Network) + 1,
              submitter = std::this_thread::get_id()] {
    device->call([&] {
      if (std::this_thread::get_id() != submitter)
        while (device->position(Queue::Network) <= own && transport->goOn()) {
        }
    });
  };
  device_->enqueue(Queue::Network, {}, std::move(work));
}

/// A device of virtual time takes the seconds of the interconnect, others the time that the transport takes.
WorkCost HostCollectives::costOf(const RingTraffic &traffic) const {
  WorkCost cost;
  cost.linkBytes = traffic.sentBytes;
  cost.seconds = options_.wires ? options_.wires->secondsFor(traffic) : 0;
  return cost;
}

template <typename Give> Fence HostCollectives::byBucket(std::span<const Tensor> tensors, Give give) {
  Fence done;
  for (size_t first = 0, end = 0; first < tensors.size(); first = end) {
    end = packsTogether() ? endOfBucket(tensors.size(), first, options_.bucketBytes,
                                        [&](size_t i) { return bytesOf(tensors[i]); })
                          : first + 1;
    done.join(give(tensors.subspan(first, end - first)));
  }
  return done;
}

//===----------------------------------------------------------------------===//
// The operations
//===----------------------------------------------------------------------===//

/// Returns the sum of what each rank has, one rank after the other.
static void addInOrder(Transport &transport, const float *own, float *sum, uint64_t first, uint64_t count,
                       uint64_t whole) {
  std::vector<float> all(whole * uint64_t(transport.ranks()));
  transport.allGather(own, all.data(), whole * sizeof(float));
  for (uint64_t i = 0; i < count; ++i) {
    float total = all[first + i];
    for (int rank = 1; rank < transport.ranks(); ++rank)
      total += all[uint64_t(rank) * whole + first + i];
    sum[i] = total;
  }
}

Fence HostCollectives::allReduce(std::span<const Tensor> tensors) {
  for (const Tensor &tensor : tensors)
    check("a sum over ranks", tensor, /*isSum=*/true);
  return byBucket(tensors, [&](std::span<const Tensor> bucket) {
    Message message = messageFor(bucket);
    Message *const both[] = {&message};
    RingTraffic traffic = options_.addsInOrder ? RingTraffic::gathering(message.bytes * uint64_t(ranks()), ranks())
                                               : RingTraffic::sum(message.bytes, ranks());
    return perform("a sum over ranks", both, both, traffic,
                   [transport = transport_, data = reinterpret_cast<float *>(message.data),
                    count = message.bytes / sizeof(float), inOrder = options_.addsInOrder](bool) {
                     inOrder ? addInOrder(*transport, data, data, 0, count, count)
                             : transport->allReduce(data, int64_t(count));
                   });
  });
}

Fence HostCollectives::reduce(std::span<const Tensor> tensors, int root) {
  checkRank(root);
  for (const Tensor &tensor : tensors)
    check("a sum for one rank", tensor, /*isSum=*/true);
  return byBucket(tensors, [&](std::span<const Tensor> bucket) {
    Message message = messageFor(bucket);
    Message *const both[] = {&message};
    RingTraffic traffic = options_.addsInOrder ? RingTraffic::gathering(message.bytes * uint64_t(ranks()), ranks())
                                               : RingTraffic::reduction(message.bytes, ranks());
    return perform("a sum for one rank", both, root == rank() ? std::span<Message *const>(both) : std::span<Message *const>(),
                   traffic,
                   [transport = transport_, data = reinterpret_cast<float *>(message.data),
                    count = message.bytes / sizeof(float), inOrder = options_.addsInOrder, root](bool) {
                     inOrder ? addInOrder(*transport, data, data, 0, count, count)
                             : transport->reduce(data, int64_t(count), root);
                   });
  });
}

Fence HostCollectives::broadcast(std::span<const Tensor> tensors, int root) {
  checkRank(root);
  for (const Tensor &tensor : tensors)
    check("a broadcast", tensor, /*isSum=*/false);
  return byBucket(tensors, [&](std::span<const Tensor> bucket) {
    Message message = messageFor(bucket);
    Message *const both[] = {&message};
    bool isRoot = root == rank();
    return perform("a broadcast", isRoot ? std::span<Message *const>(both) : std::span<Message *const>(),
                   isRoot ? std::span<Message *const>() : std::span<Message *const>(both),
                   RingTraffic::broadcast(1, ranks()) + RingTraffic::broadcast(message.bytes, ranks()),
                   [transport = transport_, data = message.data, bytes = message.bytes, root](bool isLost) {
                     uint8_t isThere = !isLost;
                     transport->broadcast(&isThere, 1, root);
                     if (isThere)
                       transport->broadcast(data, bytes, root);
                     else if (transport->rank() != root)
                       throw notThere(root);
                   });
  });
}

Fence HostCollectives::reduceScatter(const Tensor &whole, const Tensor &part) {
  check("a scattered sum", whole, /*isSum=*/true);
  check("a scattered sum", part, /*isSum=*/true);
  requireParts(whole, part, ranks());
  Message from = messageFor(std::span(&whole, 1)), to = messageFor(std::span(&part, 1));
  Message *const read[] = {&from}, *const written[] = {&to};
  RingTraffic traffic = options_.addsInOrder ? RingTraffic::gathering(from.bytes * uint64_t(ranks()), ranks())
                                             : RingTraffic::scatteredSum(from.bytes, ranks());
  return perform("a scattered sum", read, written, traffic,
                 [transport = transport_, all = reinterpret_cast<const float *>(from.data),
                  own = reinterpret_cast<float *>(to.data), count = part.elementCount(),
                  inOrder = options_.addsInOrder](bool) {
                   inOrder ? addInOrder(*transport, all, own, uint64_t(transport->rank()) * count, count,
                                        count * uint64_t(transport->ranks()))
                           : transport->reduceScatter(all, own, int64_t(count));
                 });
}

Fence HostCollectives::allGather(const Tensor &part, const Tensor &whole) {
  check("a gathering", whole, /*isSum=*/false);
  check("a gathering", part, /*isSum=*/false);
  requireParts(whole, part, ranks());
  Message from = messageFor(std::span(&part, 1)), to = messageFor(std::span(&whole, 1));
  Message *const read[] = {&from}, *const written[] = {&to};
  return perform("a gathering", read, written, RingTraffic::gathering(to.bytes, ranks()),
                 [transport = transport_, own = from.data, all = to.data, bytes = from.bytes](bool) {
                   transport->allGather(own, all, bytes);
                 });
}

Fence HostCollectives::send(const Tensor &tensor, int to) {
  checkRank(to);
  check("a tensor to another rank", tensor, /*isSum=*/false);
  Message message = messageFor(std::span(&tensor, 1));
  Message *const read[] = {&message};
  Fence done = perform("a tensor to another rank", read, {}, RingTraffic::toOne(1) + RingTraffic::toOne(message.bytes),
                       [transport = transport_, data = message.data, bytes = message.bytes, to](bool isLost) {
                         uint8_t isThere = !isLost;
                         transport->send(&isThere, 1, to);
                         if (isThere)
                           transport->send(data, bytes, to);
                       });
  goOn();
  if (options_.group)
    options_.group->send(rank(), to, endOfMessages());
  return done;
}

Fence HostCollectives::receive(const Tensor &tensor, int from) {
  checkRank(from);
  check("a tensor of another rank", tensor, /*isSum=*/false);
  Message message = messageFor(std::span(&tensor, 1));
  Message *const written[] = {&message};
  double sentAt = options_.group ? options_.group->receive(from, rank()) : 0;
  return perform(receiveLabel, {}, written, RingTraffic{},
                 [transport = transport_, data = message.data, bytes = message.bytes, from](bool) {
                   uint8_t isThere = 0;
                   transport->receive(&isThere, 1, from);
                   if (!isThere)
                     throw notThere(from);
                   transport->receive(data, bytes, from);
                 },
                 sentAt);
}

//===----------------------------------------------------------------------===//
// Messages
//===----------------------------------------------------------------------===//

namespace {
/// A Frame is sent by every rank first, with all of a message that is short.
struct Frame {
  static constexpr size_t whatBytes = 28, textBytes = 224;
  uint32_t bytes = 0;
  char what[whatBytes] = {};
  char text[textBytes] = {};
};
} // namespace

static std::vector<std::string> exchangeNow(Transport &transport, std::string_view what, std::string_view message) {
  Frame own;
  own.bytes = uint32_t(message.size());
  std::memcpy(own.what, what.data(), std::min(what.size(), Frame::whatBytes - 1));
  std::memcpy(own.text, message.data(), std::min(message.size(), Frame::textBytes));
  std::vector<Frame> frames(size_t(transport.ranks()));
  transport.allGather(&own, frames.data(), sizeof(Frame));
  size_t longest = 0;
  for (size_t rank = 0; rank < frames.size(); ++rank) {
    frames[rank].what[Frame::whatBytes - 1] = 0;
    if (std::string_view(frames[rank].what) != own.what)
      throw Error(ErrorCode::RankFailed, "ranks are at different things: rank " + std::to_string(transport.rank()) +
                                             " is at \"" + own.what + "\", and rank " + std::to_string(rank) +
                                             " at \"" + frames[rank].what +
                                             "\"; each has to make the same calls of its session, in one order");
    longest = std::max<size_t>(longest, frames[rank].bytes);
  }
  std::string mine(message), all;
  if (longest > Frame::textBytes) {
    mine.resize(longest);
    all.resize(longest * frames.size());
    transport.allGather(mine.data(), all.data(), longest);
  }
  std::vector<std::string> messages;
  for (size_t rank = 0; rank < frames.size(); ++rank)
    messages.push_back(all.empty() ? std::string(frames[rank].text, frames[rank].bytes)
                                   : all.substr(rank * longest, frames[rank].bytes));
  return messages;
}

std::vector<std::string> HostCollectives::exchange(std::string_view what, std::string_view message) {
  underWay_.clear();
  ++figures_.meetings;
  double begin = device_->seconds();
  if (!device_->hasBytes()) {
    double allHere = options_.group ? options_.group->meet(rank(), endOfMessages()) : 0;
    auto gather = [&](uint64_t bytes) {
      Work work{.cost = costOf(RingTraffic::gathering(bytes * uint64_t(ranks()), ranks())), .label = meetingLabel};
      work.cost.notBefore = allHere;
      device_->wait(Fence(Queue::Network, device_->enqueue(Queue::Network, {}, std::move(work))));
    };
    gather(sizeof(Frame));
    if (message.size() > Frame::textBytes)
      gather(message.size());
    figures_.meetingSeconds += device_->seconds() - begin;
    return std::vector<std::string>(size_t(ranks()), std::string(message));
  }
  std::vector<std::string> messages;
  std::exception_ptr error;
  auto call = [&] {
    try {
      messages = exchangeNow(*transport_, what, message);
    } catch (...) {
      error = std::current_exception();
    }
  };
  Work work{.run = [device = device_.get(), call] { device->call(call); }, .label = meetingLabel};
  traceMessage(*device_, work, message.size() * uint64_t(ranks() - 1), what);
  device_->wait(Fence(Queue::Network, device_->enqueue(Queue::Network, {}, std::move(work))));
  figures_.meetingSeconds += device_->seconds() - begin;
  if (error)
    std::rethrow_exception(error);
  return messages;
}

std::shared_ptr<Collectives> HostCollectives::twin(DeviceRef device) const {
  CollectiveOptions options = options_;
  options.wires = {.bytesPerSecond = std::numeric_limits<double>::infinity(), .latencySeconds = 0};
  options.group = nullptr;
  return virtualRanks(std::move(device), rank(), ranks(), options);
}

std::shared_ptr<Collectives> makeCollectives(DeviceRef device, std::shared_ptr<Transport> transport,
                                             CollectiveOptions options) {
  if (!device || !transport)
    throw Error(ErrorCode::InvalidArgument, "collectives need a device and a transport");
  return std::make_shared<HostCollectives>(std::move(device), std::move(transport), options);
}

} // namespace segue::inline runtime
