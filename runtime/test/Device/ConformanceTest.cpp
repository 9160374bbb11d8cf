//===- ConformanceTest.cpp - what every device must do --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// ConformanceSpecs.cpp has the devices of the runtime itself.
//
//===----------------------------------------------------------------------===//

#include "ConformanceTest.h"
#include "segue/runtime/Engine/CpuEngine.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Tensor/Tensor.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <atomic>
#include <cmath>
#include <limits>
#include <random>

using namespace segue;
using namespace segue::test;

TEST_P(ConformanceTest, NameOpensItAgain) {
  DeviceRef again = Device::open(device->name());
  EXPECT_EQ(again->name(), device->name());
  EXPECT_EQ(again->threads(), device->threads());
  ASSERT_EQ(again->spaces().size(), device->spaces().size());
  for (size_t i = 0; i < again->spaces().size(); ++i)
    EXPECT_EQ(again->spaces()[i].capacityBytes, device->spaces()[i].capacityBytes);
}

TEST_P(ConformanceTest, HasTheSpacesOfTheHostAndItsOwn) {
  for (Space space : {Space::Host, Space::HostPinned, Space::DeviceDram})
    EXPECT_TRUE(device->hasSpace(space));
  for (const SpaceInfo &space : device->spaces())
    EXPECT_GT(space.capacityBytes, 0u);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

TEST_P(ConformanceTest, MemoryIsAlignedAndComesBack) {
  for (const SpaceInfo &space : device->spaces())
    for (uint64_t bytes : {0, 1, 63, 64, 4097, 3 << 20})
      for (uint32_t alignment : {1, 64, 512, 4096, 4 << 20}) {
        MemoryBlock block = device->memory().tryAllocate(space.space, bytes, alignment);
        if (!block.data) {
          EXPECT_TRUE(bytes + alignment > space.capacityBytes || alignment > 2 << 20);
          continue;
        }
        EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data) % alignment, 0u);
        EXPECT_TRUE(block.after.empty());
        if (device->hasBytes())
          write(block.data, 0xab, bytes);
        device->memory().free(space.space, block.data, bytes, alignment, block.account, {});
        EXPECT_EQ(device->memory().liveBytes(space.space), 0u);
      }
}

// Bytes that are never in two blocks, whatever was taken and given before.
TEST_P(ConformanceTest, BlocksDoNotOverlap) {
  std::mt19937 random(1);
  for (const SpaceInfo &space : device->spaces()) {
    struct Block {
      MemoryBlock block;
      uint64_t bytes;
      uint32_t alignment;
    };
    std::vector<Block> blocks;
    for (int i = 0; i < 300; ++i) {
      if (blocks.empty() || random() % 3) {
        uint64_t bytes = 1 + random() % 3000;
        uint32_t alignment = 1u << random() % 8;
        MemoryBlock block = device->memory().tryAllocate(space.space, bytes, alignment);
        if (block.data)
          blocks.push_back({block, bytes, alignment});
      } else {
        size_t which = random() % blocks.size();
        const Block &gone = blocks[which];
        device->memory().free(space.space, gone.block.data, gone.bytes, gone.alignment, gone.block.account, {});
        blocks.erase(blocks.begin() + ptrdiff_t(which));
      }
    }
    std::ranges::sort(blocks, {}, [](const Block &block) { return reinterpret_cast<uintptr_t>(block.block.data); });
    for (size_t i = 1; i < blocks.size(); ++i)
      EXPECT_LE(reinterpret_cast<uintptr_t>(blocks[i - 1].block.data) + blocks[i - 1].bytes,
                reinterpret_cast<uintptr_t>(blocks[i].block.data));
    for (const Block &block : blocks)
      device->memory().free(space.space, block.block.data, block.bytes, block.alignment, block.block.account, {});
    EXPECT_EQ(device->memory().liveBytes(space.space), 0u);
  }
}

// All of the capacity can be had, and not a byte more.
TEST_P(ConformanceTest, CapacityIsExact) {
  for (const SpaceInfo &space : smallSpaces()) {
    std::vector<MemoryBlock> blocks;
    uint64_t piece = space.capacityBytes / 8;
    ASSERT_EQ(piece * 8, space.capacityBytes);
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(device->memory().tryAllocate(space.space, piece, 64));
      ASSERT_NE(blocks.back().data, nullptr) << name(space.space) << ", piece " << i;
    }
    EXPECT_EQ(device->memory().tryAllocate(space.space, 1, 1).data, nullptr);
    EXPECT_EQ(device->freeMemory(space.space).bytes, 0u);
    if (device->takenBytes(space.space, 0, 64) == 0) {
      EXPECT_NE(device->memory().tryAllocate(space.space, 0, 64).data, nullptr);
    }
    for (const MemoryBlock &block : blocks)
      device->memory().free(space.space, block.data, piece, 64, block.account, {});
    EXPECT_EQ(device->freeMemory(space.space).bytes, space.capacityBytes);
    MemoryBlock whole = device->memory().tryAllocate(space.space, space.capacityBytes, 64);
    ASSERT_NE(whole.data, nullptr) << "what comes back is whole again";
    device->memory().free(space.space, whole.data, space.capacityBytes, 64, whole.account, {});
  }
}

TEST_P(ConformanceTest, ExhaustionIsAnErrorWithAReport) {
  for (Space space : {Space::Host, Space::HostPinned, Space::DeviceDram})
    try {
      Tensor::empty(device, TensorDesc({int64_t(1) << 59}, ElementType::f32, Layout{.space = space}));
      FAIL();
    } catch (const OutOfMemory &error) {
      EXPECT_EQ(error.code(), ErrorCode::DeviceOom);
      EXPECT_EQ(error.report().space, space);
      EXPECT_NE(std::string(error.what()).find(device->name()), std::string::npos) << error.what();
    }
}

TEST_P(ConformanceTest, ASpaceThatItLacksIsUnsupported) {
  if (device->hasSpace(Space::DeviceL1))
    return;
  try {
    Tensor::empty(device, TensorDesc({4}, ElementType::f32, Layout{.space = Space::DeviceL1}));
    FAIL();
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_NE(std::string(error.what()).find("device_l1"), std::string::npos);
  }
}

// A block that is freed while queued work reads it serves others at once; the
// fence that comes with it keeps the next writer behind the reader.
TEST_P(ConformanceTest, FreedBlocksAreReusedBehindTheirFence) {
  for (const SpaceInfo &space : smallSpaces()) {
    if (space.space == Space::Host)
      continue; // the test itself needs some
    uint64_t bytes = space.capacityBytes;
    Held result(device, Space::Host, 4096);
    MemoryBlock old = device->memory().allocate(space.space, bytes, 64);
    Held source(device, Space::Host, 4096);
    if (device->hasBytes())
      std::memset(source.data(), 1, 4096);
    std::byte *oldData = static_cast<std::byte *>(old.data);
    uint64_t written =
        enqueue(Queue::HostToDevice, old.after, [=, this, &source] { device->copy(oldData, source.data(), 4096); });
    uint64_t read = enqueue(Queue::DeviceToHost, Fence(Queue::HostToDevice, written),
                            [=, this, &result] { device->copy(result.data(), oldData, 4096); });
    Fence lastUse(Queue::HostToDevice, written);
    lastUse.join(Fence(Queue::DeviceToHost, read));
    device->memory().free(space.space, old.data, bytes, 64, old.account, lastUse);

    MemoryBlock next = device->memory().allocate(space.space, bytes, 64);
    auto *nextData = static_cast<std::byte *>(next.data);
    if (!device->runsInline()) {
      EXPECT_EQ(next.after, lastUse) << name(space.space);
    }
    Held other(device, Space::Host, 4096);
    if (device->hasBytes())
      std::memset(other.data(), 2, 4096);
    uint64_t overwritten =
        enqueue(Queue::HostToDevice, next.after, [=, this, &other] { device->copy(nextData, other.data(), 4096); });
    device->drain();
    for (uint64_t i = 0; i < 4096 && device->hasBytes(); ++i)
      ASSERT_EQ(result.data()[i], std::byte(1)) << i;
    device->memory().free(space.space, next.data, bytes, 64, next.account, Fence(Queue::HostToDevice, overwritten));
  }
}

//===----------------------------------------------------------------------===//
// Queues
//===----------------------------------------------------------------------===//

TEST_P(ConformanceTest, PositionsCountEntries) {
  for (Queue queue : allQueues) {
    EXPECT_EQ(device->position(queue), 0u);
    for (uint64_t i = 1; i <= 5; ++i) {
      EXPECT_EQ(enqueue(queue, {}, [] {}), i);
      EXPECT_EQ(device->position(queue), i);
    }
  }
}

TEST_P(ConformanceTest, EntriesOfAQueueRunInOrderAndOnce) {
  for (Queue queue : allQueues) {
    std::vector<int> order;
    uint64_t last = 0;
    for (int i = 0; i < 100; ++i)
      last = enqueueCall(queue, {}, [&order, i] { order.push_back(i); });
    device->wait(Fence(queue, last));
    if (!device->hasBytes())
      continue;
    ASSERT_EQ(order.size(), 100u);
    EXPECT_TRUE(std::ranges::is_sorted(order));
  }
}

TEST_P(ConformanceTest, WaitingMakesFencesDone) {
  EXPECT_TRUE(device->isDone({}));
  device->wait({});
  device->drain();
  Fence all;
  for (int round = 0; round < 10; ++round)
    for (Queue queue : allQueues)
      all.join(Fence(queue, enqueue(queue, all, [] {})));
  device->wait(Fence(Queue::Compute, 3));
  EXPECT_TRUE(device->isDone(Fence(Queue::Compute, 3)));
  EXPECT_TRUE(device->waitFor(all, std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(device->isDone(all));
  EXPECT_TRUE(device->waitFor(all, 0));
  device->drain();
}

// A fence that is done stays done, and so does everything before it.
TEST_P(ConformanceTest, DoneIsMonotone) {
  uint64_t seen[queueCount] = {};
  for (int i = 0; i < 200; ++i) {
    for (Queue queue : allQueues)
      enqueue(queue, {}, [] {}, {.flops = 1000});
    for (Queue queue : allQueues) {
      uint64_t &done = seen[uint8_t(queue)];
      EXPECT_TRUE(device->isDone(Fence(queue, done)));
      while (done < device->position(queue) && device->isDone(Fence(queue, done + 1)))
        ++done;
    }
  }
}

// What work holds is let go when it has run, before its fence is done.
TEST_P(ConformanceTest, WorkIsDestroyedOnceItHasRun) {
  auto token = std::make_shared<int>(0);
  for (Queue queue : allQueues)
    for (int i = 0; i < 20; ++i)
      enqueue(queue, {}, [token] { ++*token; });
  device->drain();
  EXPECT_EQ(token.use_count(), 1);
}

TEST_P(ConformanceTest, GoesAwayCleanlyWithWorkPending) {
  std::atomic<int> ran{0};
  auto token = std::make_shared<int>(0);
  Fence all;
  for (int i = 0; i < 50; ++i)
    for (Queue queue : allQueues)
      all.join(Fence(queue, enqueueCall(queue, all, [&ran, token] { ++ran; })));
  bool hasBytes = device->hasBytes();
  device.reset();
  EXPECT_EQ(ran, hasBytes ? 50 * int(queueCount) : 0);
  EXPECT_EQ(token.use_count(), 1);
}

TEST_P(ConformanceTest, TimeIsMonotone) {
  double before = device->seconds();
  for (int i = 0; i < 20; ++i) {
    uint64_t position = enqueue(Queue::Compute, {}, [] {}, {.memoryBytes = 1 << 20, .flops = 1 << 20});
    device->wait(Fence(Queue::Compute, position));
    double now = device->seconds();
    EXPECT_GE(now, before);
    before = now;
  }
}

//===----------------------------------------------------------------------===//
// Random graphs of work against a sequential reference
//===----------------------------------------------------------------------===//

namespace {
/// Plays random work on buffers of all spaces: kernels on the compute queue,
/// copies on the others, frees and allocations in between; each entry waits
/// for what it touches and for nothing else. The values are those of the same
/// work done in order.
class RandomGraph {
public:
  static constexpr int64_t length = 64;

  /// `kernel` is mixKernel.
  RandomGraph(DeviceRef device, KernelRef kernel, unsigned seed)
      : device_(std::move(device)), kernel_(std::move(kernel)), random_(seed) {
    for (const SpaceInfo &space : device_->spaces())
      for (int i = 0; i < (space.space == Space::DeviceDram ? 6 : 3); ++i)
        makeBuffer(space.space);
  }
  ~RandomGraph() {
    device_->drain();
    for (Buffer &buffer : buffers_)
      release(buffer);
  }

  void play(int steps) {
    for (int step = 0; step < steps; ++step) {
      unsigned kind = random_() % 16;
      if (kind < 6) {
        compute();
      } else if (kind < 13) {
        transfer();
      } else if (kind == 13) {
        replace();
      } else {
        Buffer &buffer = buffers_[random_() % buffers_.size()];
        if (kind == 14)
          device_->wait(buffer.writes);
        EXPECT_TRUE(device_->isDone(buffer.writes) || kind == 15);
      }
    }
  }

  void check() {
    device_->drain();
    if (!device_->hasBytes())
      return;
    std::vector<int64_t> values(length);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      device_->copy(values.data(), buffers_[i].data(), length * sizeof(int64_t));
      ASSERT_EQ(values, buffers_[i].expected) << "buffer " << i << " in " << name(buffers_[i].space);
    }
  }

private:
  struct Buffer {
    Space space;
    MemoryBlock block;
    std::vector<int64_t> expected;
    Fence writes, uses;
    int64_t *data() const { return static_cast<int64_t *>(block.data); }
    bool onDevice() const { return space == Space::DeviceDram || space == Space::DeviceL1; }
  };
  static constexpr uint64_t bytes = length * sizeof(int64_t);

  void makeBuffer(Space space) {
    Buffer buffer{space, device_->memory().allocate(space, bytes, 64), std::vector<int64_t>(length), {}, {}};
    buffer.uses = buffer.block.after;
    // Written before anything reads it, by a copy from the host.
    for (int64_t &value : buffer.expected)
      value = int64_t(random_());
    auto source = std::make_shared<std::vector<int64_t>>(buffer.expected);
    int64_t *target = buffer.data();
    Device *device = device_.get();
    uint64_t position =
        device_->enqueue(Queue::HostToDevice, buffer.uses,
                         {[=] { device->copy(target, source->data(), bytes); }, {.linkBytes = bytes}, "fill"});
    buffer.uses.join(Fence(Queue::HostToDevice, position));
    buffer.writes = Fence(Queue::HostToDevice, position);
    buffers_.push_back(std::move(buffer));
  }
  void release(Buffer &buffer) {
    device_->memory().free(buffer.space, buffer.block.data, bytes, 64, buffer.block.account, buffer.uses);
  }
  template <typename Predicate> Buffer &pick(Predicate predicate) {
    for (;;)
      if (Buffer &buffer = buffers_[random_() % buffers_.size()]; predicate(buffer))
        return buffer;
  }
  /// `target` op= `a` in the kernel of DeviceKernels.h.
  void compute() {
    Buffer &target = pick([](const Buffer &buffer) { return buffer.onDevice(); });
    Buffer &a = pick([&](const Buffer &buffer) { return buffer.onDevice() && &buffer != &target; });
    Device *device = device_.get();
    int threads = int(random_() % 3);
    Fence after = a.writes;
    after.join(target.uses);
    uint64_t position = device_->enqueue(Queue::Compute, after,
                                         {[=, kernel = kernel_, t = target.data(), s = a.data()] {
                                            void *args[] = {t, s};
                                            device->launch(*kernel, args, length, 8, threads);
                                          },
                                          {.memoryBytes = 3 * bytes, .flops = length},
                                          "mix"});
    void *args[] = {target.expected.data(), a.expected.data()};
    mixKernel(args, 0, length);
    note(a, target, Fence(Queue::Compute, position));
  }
  void transfer() {
    Buffer &target = pick([](const Buffer &) { return true; });
    Buffer &source = pick([&](const Buffer &buffer) { return &buffer != &target; });
    Queue queue = target.onDevice() == source.onDevice() ? allQueues[random_() % queueCount]
                  : target.onDevice()                    ? Queue::HostToDevice
                                                         : Queue::DeviceToHost;
    Device *device = device_.get();
    Fence after = source.writes;
    after.join(target.uses);
    uint64_t position = device_->enqueue(
        queue, after,
        {[=, t = target.data(), s = source.data()] { device->copy(t, s, bytes); }, {.linkBytes = bytes}, "copy"});
    target.expected = source.expected;
    note(source, target, Fence(queue, position));
  }
  void note(Buffer &read, Buffer &written, const Fence &fence) {
    read.uses.join(fence);
    written.uses.join(fence);
    written.writes.join(fence);
  }
  /// Frees a buffer while work on it may be pending, and takes another.
  void replace() {
    size_t which = random_() % buffers_.size();
    Space space = buffers_[which].space;
    release(buffers_[which]);
    buffers_.erase(buffers_.begin() + ptrdiff_t(which));
    makeBuffer(space);
  }

  DeviceRef device_;
  KernelRef kernel_;
  std::mt19937 random_;
  std::vector<Buffer> buffers_;
};
} // namespace

TEST_P(ConformanceTest, FencesOrderRandomGraphs) {
  KernelRef mix = kernel("mix", mixKernel);
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " on " + device->name());
    RandomGraph graph(device, mix, seed);
    graph.play(300);
    graph.check();
    if (HasFatalFailure())
      return;
  }
}

//===----------------------------------------------------------------------===//
// Copies, kernels, library calls
//===----------------------------------------------------------------------===//

TEST_P(ConformanceTest, CopiesBetweenAllPairsOfSpaces) {
  if (!device->hasBytes())
    return;
  for (const SpaceInfo &from : device->spaces())
    for (const SpaceInfo &to : device->spaces())
      for (uint64_t bytes : {0, 1, 64, 4097}) {
        Held source(device, from.space, bytes + 1), target(device, to.space, bytes + 1);
        std::vector<std::byte> values(bytes + 1), found(bytes + 1);
        for (uint64_t i = 0; i <= bytes; ++i)
          values[i] = std::byte(i * 7 + 1);
        device->copy(source.data(), values.data(), bytes + 1);
        std::byte last{0x5a};
        device->copy(target.data() + bytes, &last, 1);
        device->copy(target.data(), source.data(), bytes);
        device->copy(found.data(), target.data(), bytes + 1);
        values[bytes] = last; // not written by the copy
        EXPECT_EQ(found, values) << name(from.space) << " to " << name(to.space);
      }
}

TEST_P(ConformanceTest, RelayoutsWithinEachMemory) {
  if (!device->hasBytes())
    return;
  CopyPlan transpose(std::vector<int64_t>{3, 4}, {ElementType::f32, {4, 1}}, {ElementType::f32, {1, 3}});
  for (const SpaceInfo &space : device->spaces()) {
    Held source(device, space.space, 48), target(device, space.space, 48);
    float values[12], found[12];
    for (int i = 0; i < 12; ++i)
      values[i] = float(i);
    device->copy(source.data(), values, 48);
    Queue queue = space.space == Space::HostPinned ? Queue::HostToDevice : Queue::Compute;
    auto relayout = [&] { device->relayout(transpose, source.data(), target.data()); };
    EXPECT_EQ(messageOf(queue, relayout, ErrorCode::Unsupported), "");
    device->copy(found, target.data(), 48);
    for (int row = 0; row < 3; ++row)
      for (int column = 0; column < 4; ++column)
        EXPECT_EQ(found[column * 3 + row], values[row * 4 + column]);
  }
}

// No scale brings NaN to a code: every device says so, and in which row first.
TEST_P(ConformanceTest, RelayoutsDoNotQuantiseWhatIsNotFinite) {
  if (!device->hasBytes())
    return;
  TensorDesc plain({4, 16}, ElementType::f32), rows({4, 16}, ElementType::f32, {.storage = StorageType::Int8Row});
  CopyPlan quantize(plain, rows);
  for (const SpaceInfo &space : device->spaces()) {
    Held source(device, space.space, plain.spanBytes()), target(device, space.space, rows.spanBytes());
    std::vector<float> values(64, 1);
    auto run = [&]() -> std::string {
      device->copy(source.data(), values.data(), 256);
      return messageOf(
          Queue::Compute, [&] { device->relayout(quantize, source.data(), target.data()); }, ErrorCode::NonFinite);
    };
    EXPECT_EQ(run(), "");
    values[3 * 16] = std::numeric_limits<float>::infinity();
    values[2 * 16 + 15] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_NE(run().find("row 2 holds NaN or infinity"), std::string::npos) << run();
  }
}

// Each unit is done once, in pieces that are multiples of the grain.
TEST_P(ConformanceTest, LaunchCoversTheRangeOnce) {
  if (!device->hasBytes())
    return;
  KernelRef mark = kernel("mark", markKernel);
  for (int64_t range : {0, 1, 7, 64, 1000})
    for (int64_t grain : {1, 3, 64, 5000})
      for (int threads : {1, 2, 8}) {
        Held counts(device, Space::DeviceDram, 4 * uint64_t(range + 1)), step(device, Space::DeviceDram, 8);
        std::vector<int32_t> values(size_t(range) + 1);
        device->copy(counts.data(), values.data(), 4 * values.size());
        device->copy(step.data(), &grain, 8);
        std::string message = messageOf(
            Queue::Compute,
            [&] {
              void *args[] = {counts.data(), step.data()}; // read during the call
              device->launch(*mark, args, range, grain, threads);
            },
            ErrorCode::IndexOutOfRange);
        ASSERT_EQ(message, "");
        device->copy(values.data(), counts.data(), 4 * values.size());
        EXPECT_EQ(std::count(values.begin(), values.end() - 1, 1), range);
        EXPECT_EQ(values.back(), 0);
      }
}

// Of several failing pieces, the first by position is reported, at the end of the entry.
TEST_P(ConformanceTest, LaunchReportsTheFirstFailure) {
  if (!device->hasBytes())
    return;
  KernelRef failBehind = kernel("failBehind", failBehindKernel);
  Held limit(device, Space::DeviceDram, 8);
  auto run = [&](int64_t most) {
    device->copy(limit.data(), &most, 8);
    int64_t code = 0;
    Work work;
    work.run = [&] {
      void *args[] = {limit.data()};
      device->launch(*failBehind, args, 1000, 10, 4);
    };
    work.ended = [&](const Error *error) {
      if (auto *fault = error ? error->details<KernelFault::Code>() : nullptr)
        code = fault->value;
      EXPECT_EQ(error != nullptr, code != 0);
    };
    device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(work))));
    return code;
  };
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(run(0), 1);
  EXPECT_EQ(run(1000), 0);
}

// A body sees nothing of what it gives: the order of its calls is the order in which
// they are done, those on the host among them, and the times of its stamps ascend. Where
// the host is asked whether the entry may begin only when it looks, that comes late.
TEST_P(ConformanceTest, WhatABodyGivesIsDoneInItsOrder) {
  if (!device->hasBytes())
    return;
  Held there(device, Space::DeviceDram, 8), in(device, Space::Host, 8), out(device, Space::Host, 8);
  auto *given = reinterpret_cast<int64_t *>(in.data()), *found = reinterpret_cast<int64_t *>(out.data());
  std::string order;
  auto begin = std::make_shared<Timestamp>(), end = std::make_shared<Timestamp>();
  EXPECT_FALSE(begin->isKnown());
  Fence before(Queue::HostToDevice, enqueueCall(Queue::HostToDevice, {}, [&] { *given = 3, order += "before "; }));
  Work work;
  work.mayBegin = [&] { return order += "asked ", true; };
  work.run = [&] {
    device->stamp(begin);
    device->copy(there.data(), given, 8);
    device->call([&] { *given = 4, order += "call "; });
    device->engine().fill(there.data(), 4, 1, 4);
    device->copy(found, there.data(), 8);
    device->stamp(end);
  };
  work.ended = [&](const Error *error) { order += error ? error->what() : "ended"; };
  device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, before, std::move(work))));
  EXPECT_TRUE(order == "before asked call ended" || order == "before call asked ended") << order;
  EXPECT_EQ(*found, 1);
  EXPECT_EQ(*given, 4);
  EXPECT_GE(end->seconds(), begin->seconds());
}

// An entry whose sources have failed says nothing of its own, whatever its work gives.
TEST_P(ConformanceTest, AnEntryThatMayNotBeginHasNoErrors) {
  if (!device->hasBytes())
    return;
  int asked = 0, ended = 0;
  Work work;
  work.mayBegin = [&] { return ++asked, false; };
  work.run = [&] { device->call([] { throw Error(ErrorCode::IoFailed, "in vain"); }); };
  work.ended = [&](const Error *error) {
    ++ended;
    EXPECT_EQ(error, nullptr);
  };
  device->wait(Fence(Queue::DeviceToHost, device->enqueue(Queue::DeviceToHost, {}, std::move(work))));
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(ended, 1);
  EXPECT_NE(messageOf(Queue::Compute, [&] { device->call([] { throw Error(ErrorCode::IoFailed, "heard"); }); },
                      ErrorCode::IoFailed),
            "");
}

// Library calls give on the queue of a device what they give on the host.
TEST_P(ConformanceTest, EnginePlansRunOnTheComputeQueue) {
  if (!device->hasBytes())
    return;
  constexpr int64_t n = 96, bytes = n * n * 4;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> a(n * n), b(n * n), expected(n * n), found(n * n);
  for (auto *values : {&a, &b})
    for (float &value : *values)
      value = normal(random);
  MatmulSpec matmul{.batch = 1, .m = n, .n = n, .k = n};
  matmul.a.strides = matmul.b.strides = matmul.c.strides = {0, n, 1};
  AttentionSpec attention;
  attention.batch = 1, attention.heads = 2, attention.rows = attention.keys = n, attention.dim = n / 2;
  attention.q = attention.k = attention.v = attention.out = {n * n, n / 2, n, 1};
  attention.causal = true;
  attention.scale = 1 / std::sqrt(float(n / 2));
  ASSERT_EQ(attention.findProblem(), "");
  CpuEngine engine{Threads(device->threads())};
  std::vector<float> lse(2 * n);
  auto expectFound = [&] {
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], GetParam().hasTheBitsOfTheCpu ? 0 : 1e-4) << "at " << i;
  };

  Held da(device, Space::DeviceDram, bytes), db(device, Space::DeviceDram, bytes), dc(device, Space::DeviceDram, bytes),
      dlse(device, Space::DeviceDram, 2 * n * 4);
  device->copy(da.data(), a.data(), bytes);
  device->copy(db.data(), b.data(), bytes);
  auto matmulPlan = device->engine().planMatmul(matmul);
  auto attentionPlan = device->engine().planAttention(attention);
  for (int round = 0; round < 3; ++round) {
    engine.planMatmul(matmul)->run(a.data(), b.data(), expected.data(), nullptr);
    device->wait(Fence(Queue::Compute, enqueue(Queue::Compute, {},
                                               [&] { matmulPlan->run(da.data(), db.data(), dc.data(), nullptr); })));
    device->copy(found.data(), dc.data(), bytes);
    expectFound();

    engine.planAttention(attention)->run({a.data(), b.data(), a.data(), nullptr, nullptr, nullptr, expected.data(), lse.data()});
    device->wait(Fence(Queue::Compute, enqueue(Queue::Compute, {}, [&] {
                         attentionPlan->run({da.data(), db.data(), da.data(), nullptr, nullptr, nullptr, dc.data(),
                                             reinterpret_cast<float *>(dlse.data())});
                       })));
    device->copy(found.data(), dc.data(), bytes);
    expectFound();
  }
}
