//===- TransferEngineTest.cpp - copies between spaces ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the engine does on a discrete device: states, order, counters, faults.
// That the values of all pairs of layouts are right is LayoutPairsTest's.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/TransferEngine.h"
#include "ScriptedDevice.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstring>
#include <gtest/gtest.h>
#include <numeric>

using namespace segue;

namespace {
class TransferEngineTest : public testing::Test {
protected:
  TransferEngine &engine() { return device->transfer(); }
  TransferCounters &counters() { return engine().counters(); }

  static Layout in(Space space) { return Layout{.space = space}; }
  static std::shared_ptr<const TensorDesc> desc(Shape shape, Layout layout = {}, ElementType type = ElementType::f32) {
    return std::make_shared<const TensorDesc>(std::move(shape), type, std::move(layout));
  }

  /// first, first + 1, ... in memory of the host.
  Tensor numbers(Shape shape, float first = 0, Space space = Space::Host) {
    Tensor tensor = Tensor::empty(device, desc(std::move(shape), in(space)));
    if (!tensor.storage()->uses().empty())
      device->wait(tensor.storage()->uses());
    std::iota(tensor.data<float>(), tensor.data<float>() + tensor.elementCount(), first);
    return tensor;
  }
  Tensor onDevice(Shape shape, float first = 0) {
    return engine().toLayout(device, numbers(shape, first), desc(shape));
  }

  static std::vector<float> values(const Tensor &tensor) {
    Tensor host = toHost(tensor);
    return {host.data<float>(), host.data<float>() + host.elementCount()};
  }
  static std::vector<float> sequence(size_t count, float first = 0) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
  }

  void configure(void (*change)(StitchOptions &)) {
    StitchOptions options;
    change(options);
    engine().configure(options);
  }

  template <typename Call> static std::string messageOf(ErrorCode code, Call call) {
    try {
      call();
    } catch (const Error &error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }
  static bool contains(const std::string &text, std::string_view part) { return text.find(part) != std::string::npos; }

  std::shared_ptr<ScriptedDevice> scripted =
      std::make_shared<ScriptedDevice>("sim:dram=32MiB,pinned=16MiB,l1=16KiB,threads=1,latency=0s,link=100GB/s");
  DeviceRef device = scripted;
};
} // namespace

//===----------------------------------------------------------------------===//
// States and order
//===----------------------------------------------------------------------===//

TEST_F(TransferEngineTest, WhatIsQueuedIsPendingUntilItIsDone) {
  Tensor host = numbers({4, 4});
  scripted->pause();
  Tensor there = engine().toLayout(device, host, desc({4, 4}));
  EXPECT_EQ(there.storage()->state(), StorageState::Pending);
  Tensor cast = engine().toLayout(device, there, desc({4, 4}, {.strides = {1, 4}})); // waits in its queue
  EXPECT_EQ(cast.storage()->state(), StorageState::Pending);
  scripted->resume();
  wait(cast);
  EXPECT_EQ(cast.storage()->state(), StorageState::Ready);
  EXPECT_EQ(values(cast), sequence(16));
  EXPECT_EQ(there.desc().layout.space, Space::DeviceDram);
}

TEST_F(TransferEngineTest, WhatIsThereIsNotCopied) {
  Tensor there = onDevice({4, 4});
  uint64_t copies = counters().copies;
  Tensor same = engine().toLayout(device, there, desc({4, 4}, {.strides = {4, 1}}));
  EXPECT_EQ(same.storage(), there.storage());
  EXPECT_EQ(counters().copies, copies);
}

// A copy that reads before a write was queued sees the old values; one queued
// after it the new ones (R7). Dropping handles changes nothing.
TEST_F(TransferEngineTest, ReadsAndWritesKeepTheirOrder) {
  Tensor there = onDevice({256}), next = onDevice({256}, 1000);
  scripted->pause();
  Tensor before = engine().toLayout(device, there, desc({256}, in(Space::Host)));
  engine().copyInto(next, there);
  next = Tensor();
  Tensor after = engine().toLayout(device, there, desc({256}, in(Space::HostPinned)));
  there = Tensor();
  Tensor reuse = onDevice({256}, -5); // may get the memory of `next`
  scripted->resume();
  EXPECT_EQ(values(before), sequence(256));
  EXPECT_EQ(values(after), sequence(256, 1000));
  EXPECT_EQ(values(reuse), sequence(256, -5));
}

TEST_F(TransferEngineTest, OverwritingCountsAsAVersion) {
  Tensor there = onDevice({8});
  uint64_t version = there.storage()->version();
  copyInto(numbers({8}, 50), there);
  EXPECT_EQ(there.storage()->version(), version + 1);
  EXPECT_EQ(values(there), sequence(8, 50));
}

TEST_F(TransferEngineTest, ReadOnlyMemoryIsNotWritten) {
  float memory[4] = {};
  Tensor wrapped = Tensor::wrap(device, TensorDesc({4}, ElementType::f32), memory, [] {}, /*writable=*/false);
  std::string message = messageOf(ErrorCode::InvalidArgument, [&] { copyInto(onDevice({4}, 1), wrapped); });
  EXPECT_TRUE(contains(message, "read-only memory")) << message;
  device->drain();
  EXPECT_EQ(memory[0], 0);
}

// Whoever lent memory gets it back when no queued copy needs it any more.
TEST_F(TransferEngineTest, LentMemoryIsGivenBackOnceNothingUsesIt) {
  for (bool isWritten : {false, true}) {
    SCOPED_TRACE(isWritten ? "written" : "read");
    std::vector<float> memory = sequence(256), atTheEnd;
    Tensor there = onDevice({256}, 1000);
    Tensor lent = Tensor::wrap(device, TensorDesc({256}, ElementType::f32), memory.data(), [&] {
      atTheEnd = memory;
      std::ranges::fill(memory, -1.0f);
    });
    device->drain();
    scripted->pause(/*resumesWhenWaited=*/true);
    if (isWritten)
      engine().copyInto(there, lent);
    else
      engine().copyInto(lent, there);
    lent = Tensor();
    scripted->resume();
    device->drain();
    EXPECT_EQ(values(there), sequence(256, isWritten ? 1000 : 0));
    EXPECT_EQ(atTheEnd, sequence(256, isWritten ? 1000 : 0));
  }
}

// Parts of one storage that overlap: as if the source had been copied away.
TEST_F(TransferEngineTest, OverlappingRangesGoThroughOtherMemory) {
  for (Space space : {Space::DeviceDram, Space::DeviceL1, Space::Host}) {
    Tensor all = engine().toLayout(device, numbers({64}), desc({64}, in(space)));
    Layout front{.space = space, .alignment = 4}, back = front;
    back.offset = 16 * 4;
    Tensor low = Tensor::in(all.storage(), desc({48}, front)), high = Tensor::in(all.storage(), desc({48}, back));
    uint64_t bounces = counters().bounces;
    copyInto(low, high);
    EXPECT_EQ(counters().bounces - bounces, space == Space::DeviceL1 ? 1u : 0u);
    std::vector<float> expected = sequence(16), moved = sequence(48);
    expected.insert(expected.end(), moved.begin(), moved.end());
    EXPECT_EQ(values(all), expected) << name(space);
  }
  configure([](StitchOptions &options) { options.l1Bounce = L1Bounce::Forbid; });
  Tensor all = engine().toLayout(device, numbers({8}), desc({8}, in(Space::DeviceL1)));
  Layout low{.space = Space::DeviceL1, .alignment = 4}, high = low;
  high.offset = 8;
  std::string message = messageOf(ErrorCode::InvalidArgument, [&] {
    copyInto(Tensor::in(all.storage(), desc({6}, low)), Tensor::in(all.storage(), desc({6}, high)));
  });
  EXPECT_TRUE(contains(message, "l1_bounce")) << message;
  EXPECT_EQ(values(all), sequence(8));
}

TEST_F(TransferEngineTest, FromOneDeviceToAnother) {
  DeviceRef other = Device::open("sim:dram=1MiB,threads=1"), cpu = Device::open("cpu:threads=1");
  Tensor there = onDevice({4, 8});
  Tensor moved = toLayout(other, there, TensorDesc({4, 8}, ElementType::f32, {.strides = {1, 4}}));
  there = Tensor();
  EXPECT_EQ(moved.device(), other);
  EXPECT_EQ(values(moved), sequence(32));
  Tensor home = toLayout(cpu, moved, TensorDesc({4, 8}, ElementType::f32));
  moved = Tensor();
  EXPECT_EQ(home.device(), cpu);
  EXPECT_EQ(values(home), sequence(32));
  Tensor again = toLayout(device, home, TensorDesc({4, 8}, ElementType::f32));
  home = Tensor();
  EXPECT_EQ(values(again), sequence(32));
  EXPECT_EQ(other->memory().liveBytes(Space::DeviceDram), 0u);
}

//===----------------------------------------------------------------------===//
// Bytes
//===----------------------------------------------------------------------===//

// R3 by the counters of a run, not only by the plan.
TEST_F(TransferEngineTest, BytesOverTheLink) {
  Tensor host = numbers({1024, 1024});
  engine().record(0);
  Tensor narrow = engine().toLayout(device, host, desc({1024, 1024}, {}, ElementType::bf16));
  StitchTelemetry down = engine().record(1);
  EXPECT_EQ(down.h2d_bytes, 2'097'152u);
  EXPECT_EQ(down.d2h_bytes, 0u);
  Tensor wide = engine().toLayout(device, host, desc({1024, 1024}));
  engine().record(2);
  Tensor up = engine().toLayout(device, wide, desc({1024, 1024}, in(Space::Host), ElementType::bf16));
  StitchTelemetry back = engine().record(3);
  EXPECT_EQ(back.d2h_bytes, 2'097'152u);
  EXPECT_EQ(back.step, 3);
  wait(up);
  Tensor brought = toHost(narrow);
  EXPECT_EQ(std::memcmp(brought.bytes(), up.bytes(), 2'097'152), 0);
}

// Zero points that are all zero stay at home; the values are the same.
TEST_F(TransferEngineTest, IdleZeroPointsDoNotCross) {
  Shape shape{3072, 3072};
  auto rows =
      desc(shape, {.space = Space::HostPinned, .storage = StorageType::Int8Row, .zeroPoints = true}, ElementType::bf16);
  Tensor stored = Tensor::empty(device, rows);
  LayoutParts parts = rows->parts();
  std::memset(stored.bytes(), 3, parts.elements);
  float *scales = reinterpret_cast<float *>(stored.bytes() + parts.scales);
  float *zeroPoints = reinterpret_cast<float *>(stored.bytes() + parts.zeroPoints);
  std::fill(scales, scales + parts.rows, 0.5f);
  std::fill(zeroPoints, zeroPoints + parts.rows, 0.0f);
  auto first = [&] {
    Tensor value = toHost(engine().toLayout(device, stored, desc(shape, {}, ElementType::bf16)));
    return bf16ToFloat(*value.data<uint16_t>());
  };
  engine().record(0);
  EXPECT_EQ(first(), 1.5f);
  EXPECT_EQ(engine().record(1).h2d_bytes, 9'449'472u);
  zeroPoints[0] = 1;
  EXPECT_EQ(first(), 1.0f);
  EXPECT_EQ(engine().record(2).h2d_bytes, 9'449'472u + 12'288u);
}

TEST_F(TransferEngineTest, PageableMemoryCrossesInChunks) {
  configure([](StitchOptions &options) {
    options.stagingChunkBytes = 4096;
    options.stagingBuffers = 3;
  });
  for (int64_t count : {1, 1024, 1025, 10'000, 40'960}) {
    scripted->copies = 0;
    scripted->largestCopy = 0;
    Tensor there = onDevice({count}, 7);
    wait(there);
    EXPECT_EQ(scripted->copies, (count * 4 + 4095) / 4096);
    EXPECT_LE(scripted->largestCopy, 4096u);
    EXPECT_EQ(values(there), sequence(size_t(count), 7));
  }
  EXPECT_EQ(device->memory().liveBytes(Space::HostPinned), 0u);
  EXPECT_LE(device->memory().peakBytes(Space::HostPinned), 2 * 3 * 4096u); // both directions
  EXPECT_EQ(counters().pageableCopies, 0u);
}

// Without pinned memory it is slower, counted, and right.
TEST_F(TransferEngineTest, NoPinnedMemory) {
  scripted->noPinned = true;
  Tensor there = onDevice({2000});
  EXPECT_EQ(there.storage()->state(), StorageState::Ready); // synchronous
  Tensor narrow = engine().toLayout(device, numbers({2000}), desc({2000}, {}, ElementType::bf16));
  EXPECT_EQ(values(there), sequence(2000));
  EXPECT_EQ(counters().pageableCopies, 3u);
  wait(narrow);
  EXPECT_EQ(device->memory().liveBytes(Space::Host), 0u);
}

TEST_F(TransferEngineTest, ZerosAndScalars) {
  Tensor there = onDevice({4096}, 1);
  scripted->pause();
  Tensor old = engine().toLayout(device, there, desc({4096}, in(Space::Host)));
  engine().fillZero(there);
  Tensor scalar = Tensor::empty(device, desc({}));
  float value = 2.5f;
  engine().writeScalar(scalar, &value, 4);
  value = 0; // it was taken
  scripted->resume();
  EXPECT_EQ(values(old), sequence(4096, 1));
  EXPECT_EQ(values(there), std::vector<float>(4096, 0.0f));
  EXPECT_EQ(values(scalar), std::vector<float>{2.5f});
}

//===----------------------------------------------------------------------===//
// Faults
//===----------------------------------------------------------------------===//

TEST_F(TransferEngineTest, ALinkThatStumblesOnceIsTriedAgain) {
  scripted->copiesToFail = 1;
  EXPECT_EQ(values(onDevice({100})), sequence(100));
  EXPECT_EQ(counters().retries, 1u);
  EXPECT_EQ(counters().failures, 0u);
}

// Destination FAILED, source whole, the error says tensor, hop and bytes, and
// goes on to whatever would have read it.
TEST_F(TransferEngineTest, ACopyThatFailsTwice) {
  Tensor host = numbers({100});
  TransferOptions options;
  options.consumer = std::make_shared<const TransferConsumer>(
      TransferConsumer{.program = "forward", .tensor = "input 3 (\"x\")", .location = "model.py:7:3"});
  scripted->copiesToFail = 2;
  scripted->pause(); // a copy that has failed already would be refused at the next call
  Tensor there = engine().toLayout(device, host, desc({100}), options);
  Tensor cast = engine().toLayout(device, there, desc({100}, {}, ElementType::bf16));
  scripted->resume();
  device->drain();
  EXPECT_EQ(there.storage()->state(), StorageState::Failed);
  EXPECT_EQ(cast.storage()->state(), StorageState::Failed);
  EXPECT_EQ(counters().failures, 1u);
  EXPECT_EQ(counters().retries, 1u);
  std::string message = messageOf(ErrorCode::TransferFailed, [&] { wait(there); });
  for (const char *part : {"program \"forward\", input 3 (\"x\"), f32[100]", "400 bytes", "host -> device_dram",
                           "queue h2d", "the test cut the link"})
    EXPECT_TRUE(contains(message, part)) << message;
  message = messageOf(ErrorCode::TransferFailed, [&] { toHost(cast); });
  EXPECT_TRUE(contains(message, "the test cut the link")) << message;
  message = messageOf(ErrorCode::TransferFailed, [&] { toLayout(device, there, *desc({100}, {.strides = {2}})); });
  EXPECT_TRUE(contains(message, "never written")) << message;
  // The source can be tried again, and what failed be written again.
  EXPECT_EQ(values(host), sequence(100));
  copyInto(host, there);
  EXPECT_EQ(values(there), sequence(100));
  EXPECT_EQ(there.storage()->state(), StorageState::Ready);
}

// A chunk in the middle of a staged copy.
TEST_F(TransferEngineTest, AStagedCopyThatFails) {
  configure([](StitchOptions &options) { options.stagingChunkBytes = 1024; });
  Tensor there = onDevice({4096});
  wait(there);
  scripted->copiesToFail = 2;
  Tensor up = engine().toLayout(device, there, desc({4096}, in(Space::Host)));
  device->drain();
  EXPECT_EQ(up.storage()->state(), StorageState::Failed);
  EXPECT_EQ(values(there), sequence(4096)); // the queue goes on
}

TEST_F(TransferEngineTest, NoMemoryForTheTarget) {
  Tensor host = numbers({1 << 20}); // 4 MiB
  device->memory().setBudget(Space::DeviceDram, 1 << 20);
  uint64_t copies = counters().copies;
  std::string message = messageOf(ErrorCode::DeviceOom, [&] { engine().toLayout(device, host, desc({1 << 20})); });
  EXPECT_TRUE(contains(message, "device_dram")) << message;
  EXPECT_EQ(counters().copies, copies);
  EXPECT_EQ(host.storage()->state(), StorageState::Ready);
  EXPECT_EQ(host.data<float>()[5], 5);
}

TEST_F(TransferEngineTest, FreedTensorsAreRefused) {
  Tensor there = onDevice({16});
  there.storage()->free();
  EXPECT_EQ(there.storage()->state(), StorageState::Freed);
  messageOf(ErrorCode::UseAfterFree, [&] { toHost(there); });
  messageOf(ErrorCode::UseAfterFree, [&] { copyInto(there, onDevice({16})); });
  messageOf(ErrorCode::UseAfterFree, [&] { copyInto(onDevice({16}), there); });
  messageOf(ErrorCode::UseAfterFree, [&] { wait(there); });
}

TEST_F(TransferEngineTest, BytesThatChangedOutside) {
  Tensor there = onDevice({64});
  TransferOptions options;
  options.checksum = std::make_shared<TransferChecksum>();
  Tensor away = engine().toLayout(device, there, desc({64}, in(Space::HostPinned)), options);
  wait(away);
  ASSERT_TRUE(options.checksum->isSet());
  EXPECT_EQ(values(engine().toLayout(device, away, desc({64}), options)), sequence(64));
  away.data<float>()[9] = 1;
  Tensor back = engine().toLayout(device, away, desc({64}), options);
  std::string message = messageOf(ErrorCode::ChecksumMismatch, [&] { wait(back); });
  EXPECT_TRUE(contains(message, "not those that left")) << message;
  EXPECT_EQ(counters().retries, 0u);
}

//===----------------------------------------------------------------------===//
// L1
//===----------------------------------------------------------------------===//

TEST_F(TransferEngineTest, L1ThroughDram) {
  Tensor l1 = engine().toLayout(device, numbers({64}, 0, Space::HostPinned), desc({64}, in(Space::DeviceL1)));
  EXPECT_EQ(counters().bounces, 1u);
  EXPECT_EQ(values(l1), sequence(64));
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), 0u);
}

// 12 of 16 KiB cannot lie in L1 twice: what is given up leaves it for a moment.
TEST_F(TransferEngineTest, L1BouncesThroughDram) {
  auto rows = desc({32, 96}, in(Space::DeviceL1)),
       columns = desc({32, 96}, {.space = Space::DeviceL1, .strides = {1, 32}});
  Tensor l1 = engine().toLayout(device, numbers({32, 96}), rows);
  wait(l1);
  // Kept by the caller: there is no room.
  messageOf(ErrorCode::DeviceOom, [&] { engine().toLayout(device, l1, columns); });
  EXPECT_EQ(values(l1), sequence(32 * 96));
  uint64_t bounces = counters().bounces;
  Tensor turned = engine().toLayout(device, std::move(l1), columns);
  EXPECT_EQ(counters().bounces, bounces + 1);
  EXPECT_EQ(values(turned), sequence(32 * 96));
  configure([](StitchOptions &options) { options.l1Bounce = L1Bounce::Forbid; });
  std::string message = messageOf(ErrorCode::DeviceOom, [&] { engine().toLayout(device, std::move(turned), rows); });
  EXPECT_TRUE(contains(message, "memory.stitch.l1_bounce")) << message;
}

TEST_F(TransferEngineTest, L1DirectWhereThereIsRoom) {
  Tensor l1 = engine().toLayout(device, numbers({64, 4}), desc({64, 4}, in(Space::DeviceL1)));
  uint64_t bounces = counters().bounces;
  Tensor turned = engine().toLayout(device, l1, desc({64, 4}, {.space = Space::DeviceL1, .strides = {1, 64}}));
  EXPECT_EQ(counters().bounces, bounces);
  EXPECT_EQ(values(turned), sequence(256));
}

//===----------------------------------------------------------------------===//
// Cached copies
//===----------------------------------------------------------------------===//

TEST_F(TransferEngineTest, ParametersAreConvertedOnce) {
  TransferOptions parameter{.isParameter = true};
  auto wanted = desc({8, 8}, {.strides = {1, 8}});
  Tensor weight = onDevice({8, 8});
  auto align = [&] {
    Tensor input = weight;
    Alignment alignment = engine().align(device, input, wanted, parameter);
    return std::pair(alignment, input);
  };
  auto [first, converted] = align();
  EXPECT_EQ(first, Alignment::Converted);
  uint64_t copies = counters().copies;
  auto [second, cached] = align();
  EXPECT_EQ(second, Alignment::Cached);
  EXPECT_EQ(cached.storage(), converted.storage());
  EXPECT_EQ(counters().copies, copies);
  // Written: the copy is stale.
  copyInto(numbers({8, 8}, 100), weight);
  auto [third, fresh] = align();
  EXPECT_EQ(third, Alignment::Converted);
  EXPECT_EQ(values(fresh), sequence(64, 100));
  EXPECT_EQ(values(cached), sequence(64)); // whoever holds the old one keeps it
  Tensor in = fresh;
  EXPECT_EQ(engine().align(device, in, wanted, parameter), Alignment::Elided);
  StitchTelemetry line = engine().record(1);
  EXPECT_EQ(line.inputs, 4u);
  EXPECT_EQ(line.inputs_elided, 1u);
  EXPECT_EQ(line.inputs_converted, 2u);
  EXPECT_EQ(line.cache_hits, 1u);
}

TEST_F(TransferEngineTest, OnlyParametersAreCached) {
  Tensor input = onDevice({8, 8});
  auto wanted = desc({8, 8}, {.strides = {1, 8}});
  EXPECT_NE(engine().toLayout(device, input, wanted).storage(), engine().toLayout(device, input, wanted).storage());
  EXPECT_EQ(engine().derivedBytes(), 0u);
  configure([](StitchOptions &options) { options.derivedCache = false; });
  engine().toLayout(device, input, wanted, {.isParameter = true});
  EXPECT_EQ(engine().derivedBytes(), 0u);
}

// A copy goes with what it was made from, and the memory with both.
TEST_F(TransferEngineTest, CachedCopiesGoWithTheirSource) {
  Tensor weight = onDevice({64, 64});
  engine().toLayout(device, weight, desc({64, 64}, {.strides = {1, 64}}), {.isParameter = true});
  EXPECT_EQ(engine().derivedBytes(), 16384u);
  weight = Tensor();
  EXPECT_EQ(engine().derivedBytes(), 0u);
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), 0u);
}

// The least recently used goes first, what is in use never, and the bytes kept
// never pass the limit.
TEST_F(TransferEngineTest, TheCacheKeepsToItsLimit) {
  constexpr uint64_t each = 64 * 64 * 4;
  configure([](StitchOptions &options) { options.derivedCacheMaxBytes = 3 * each; });
  auto wanted = desc({64, 64}, {.strides = {1, 64}});
  TransferOptions parameter{.isParameter = true};
  std::vector<Tensor> weights;
  for (int i = 0; i < 5; ++i)
    weights.push_back(onDevice({64, 64}, float(i)));
  auto isCached = [&](int i) {
    Tensor input = weights[size_t(i)];
    return engine().align(device, input, wanted, parameter) == Alignment::Cached;
  };
  for (int i : {0, 1, 2})
    EXPECT_FALSE(isCached(i));
  EXPECT_TRUE(isCached(0)); // 1 is now the oldest
  EXPECT_FALSE(isCached(3));
  EXPECT_EQ(engine().derivedBytes(), 3 * each);
  EXPECT_EQ(counters().cacheEvictions, 1u);
  EXPECT_TRUE(isCached(0));
  EXPECT_TRUE(isCached(2));
  EXPECT_FALSE(isCached(1)); // pushes 3 out
  // In use: all three of them. A fourth is not kept then.
  std::vector<Tensor> held;
  for (int i : {0, 1, 2})
    held.push_back(engine().toLayout(device, weights[size_t(i)], wanted, parameter));
  EXPECT_FALSE(isCached(4));
  EXPECT_FALSE(isCached(4));
  EXPECT_EQ(engine().derivedBytes(), 3 * each);
  EXPECT_EQ(engine().dropDerived(Space::DeviceDram, UINT64_MAX), 0u);
  held.pop_back();
  EXPECT_EQ(engine().dropDerived(Space::HostPinned, UINT64_MAX), 0u);
  EXPECT_EQ(engine().dropDerived(Space::DeviceDram, 1), each);
  EXPECT_EQ(engine().derivedBytes(), 2 * each);
}

// Memory is asked back from the cache before an allocation fails.
TEST_F(TransferEngineTest, TheCacheMakesRoom) {
  Tensor weight = onDevice({512, 512}); // 1 MiB
  engine().toLayout(device, weight, desc({512, 512}, {.strides = {1, 512}}), {.isParameter = true});
  device->memory().setBudget(Space::DeviceDram, (2 << 20) + (512 << 10));
  Tensor another = Tensor::empty(device, *desc({512, 512}));
  EXPECT_EQ(engine().derivedBytes(), 0u);
  EXPECT_EQ(counters().cacheEvictions, 1u);
}

//===----------------------------------------------------------------------===//
// Giving away
//===----------------------------------------------------------------------===//

TEST_F(TransferEngineTest, DonationsOfSharedStorageAreIgnoredAndCounted) {
  Tensor there = onDevice({8});
  EXPECT_TRUE(donate(there));
  EXPECT_TRUE(there.storage()->isDonated());
  Tensor shared = onDevice({8}), other = shared;
  EXPECT_FALSE(donate(shared));
  EXPECT_FALSE(shared.storage()->isDonated());
  EXPECT_EQ(engine().record(1).donations_ignored, 1u);
  float memory[2] = {};
  EXPECT_FALSE(donate(Tensor::wrap(device, TensorDesc({2}, ElementType::f32), memory, [] {})));
}

TEST_F(TransferEngineTest, WhatIsNotRetainedIsFreedOnceRead) {
  Tensor there = onDevice({1024}), kept = there;
  Tensor moved = engine().toLayout(device, there, desc({1024}, in(Space::HostPinned)), {.retain = false});
  EXPECT_EQ(kept.storage()->state(), StorageState::Freed);
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), 0u);
  EXPECT_EQ(values(moved), sequence(1024));
  Tensor retained = onDevice({4});
  EXPECT_TRUE(retained.storage()->isRetained());
  setRetain(retained, false);
  EXPECT_FALSE(retained.storage()->isRetained());
}

//===----------------------------------------------------------------------===//
// Tokens and traces
//===----------------------------------------------------------------------===//

namespace {
class CountingGate final : public TransferGate {
public:
  int limit = 1, inFlight = 0, most = 0, overruns = 0, waits = 0, failed = 0, planned = 0;
  bool suppressSpeculative = false;
  uint64_t bytes = 0;

  Grant acquire(Queue, TransferPriority priority, uint64_t) override {
    if (priority >= TransferPriority::Speculative && (suppressSpeculative || inFlight >= limit))
      return {Answer::Deny};
    if (inFlight >= limit) {
      ++waits;
      return {Answer::Wait};
    }
    most = std::max(most, ++inFlight);
    return {Answer::Go, ++last_};
  }
  uint64_t overrun(Queue, TransferPriority, uint64_t) override {
    ++overruns;
    ++inFlight;
    return ++last_;
  }
  void passed(Queue, uint64_t moved, double seconds, bool succeeded) override {
    EXPECT_GE(seconds, 0);
    ++planned;
    failed += !succeeded;
    bytes += moved;
  }
  void complete(uint64_t token, uint64_t moved, double seconds, bool succeeded) override {
    EXPECT_GT(token, 0u);
    EXPECT_GE(seconds, 0);
    --inFlight;
    failed += !succeeded;
    bytes += moved;
  }

private:
  uint64_t last_ = 0;
};
} // namespace

// What was planned queues up without a token, however few there are.
TEST_F(TransferEngineTest, PlannedHopsWaitForNoToken) {
  CountingGate gate;
  engine().setGate(&gate);
  Tensor pinned = numbers({256}, 0, Space::HostPinned);
  std::vector<Tensor> there;
  for (int i = 0; i < 6; ++i)
    there.push_back(engine().copyTo(device, pinned, desc({256}), {.isPlanned = true}));
  engine().settle(/*all=*/true);
  EXPECT_EQ(gate.planned, 6);
  EXPECT_EQ(gate.waits + gate.most + gate.overruns + gate.failed, 0);
  EXPECT_EQ(gate.bytes, 6u * 1024);
  for (const Tensor &tensor : there)
    EXPECT_EQ(values(tensor), values(pinned));
  engine().setGate(nullptr);
}

TEST_F(TransferEngineTest, HopsTakeTokens) {
  CountingGate gate;
  engine().setGate(&gate);
  Tensor pinned = numbers({256}, 0, Space::HostPinned);
  std::vector<Tensor> there;
  for (int i = 0; i < 5; ++i)
    there.push_back(engine().toLayout(device, pinned, desc({256})));
  EXPECT_EQ(gate.most, 1); // each waited for the one before
  EXPECT_EQ(gate.overruns, 0);
  device->drain(); // or the next would wait for a copy that stands still
  scripted->pause();
  Tensor running = engine().toLayout(device, pinned, desc({256}));
  uint64_t live = device->memory().liveBytes(Space::DeviceDram);
  // Ahead of need, while the link is busy: no, and nothing is left of it.
  EXPECT_FALSE(engine().toLayout(device, pinned, desc({256}), {.priority = TransferPriority::Speculative}));
  EXPECT_EQ(device->memory().liveBytes(Space::DeviceDram), live);
  scripted->resume();
  gate.limit = 0; // nothing of ours to wait for in the end: over the limit
  there.push_back(engine().toLayout(device, pinned, desc({256})));
  EXPECT_EQ(gate.overruns, 1);
  engine().setGate(nullptr);
  EXPECT_EQ(gate.inFlight, 0);
  EXPECT_EQ(gate.bytes, 7 * 1024u);
  // Within one memory there is no hop.
  engine().setGate(&gate);
  engine().toLayout(device, there[0], desc({256}, in(Space::DeviceL1)));
  EXPECT_EQ(gate.waits + gate.overruns, gate.waits + 1);
  engine().setGate(nullptr);
}

// A hop whose transfer failed gives its token back once, and says so.
TEST_F(TransferEngineTest, FailedHopsGiveTheirTokensBack) {
  CountingGate gate;
  engine().setGate(&gate);
  Tensor pinned = numbers({256}, 0, Space::HostPinned);
  scripted->copiesToFail = 2; // with the engine's own second try
  Tensor there = engine().toLayout(device, pinned, desc({256}));
  EXPECT_EQ(gate.inFlight, 1);
  engine().settle(/*all=*/true);
  EXPECT_EQ(gate.inFlight, 0);
  EXPECT_EQ(gate.failed, 1);
  engine().settle(/*all=*/true);
  EXPECT_EQ(gate.inFlight, 0);
  there = engine().toLayout(device, pinned, desc({256}));
  engine().settle(/*all=*/true);
  EXPECT_EQ(gate.failed, 1);
  engine().setGate(nullptr);
}

TEST_F(TransferEngineTest, CopiesAreTracedWithTheirReader) {
  configure([](StitchOptions &options) { options.traceCopies = true; });
  TransferOptions options;
  options.consumer = std::make_shared<const TransferConsumer>(
      TransferConsumer{.program = "forward", .tensor = "input 0 (\"w\")", .location = "model.py:12:3 (h.0.attn)"});
  Tensor there =
      engine().toLayout(device, numbers({32, 8}, 0, Space::HostPinned), desc({32, 8}, {.strides = {1, 32}}), options);
  std::vector<CopyRecord> trace = engine().takeTrace();
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0].hop, "host_pinned -> device_dram");
  EXPECT_EQ(trace[0].queue, "h2d");
  EXPECT_EQ(trace[0].from, "f32[32,8] in host_pinned");
  EXPECT_EQ(trace[0].bytes, 1024u);
  EXPECT_EQ(trace[1].to, "f32[32,8] strides [1,32]");
  EXPECT_EQ(trace[1].queue, "compute");
  for (const CopyRecord &record : trace) {
    EXPECT_EQ(record.consumer->program, "forward");
    EXPECT_EQ(record.consumer->location, "model.py:12:3 (h.0.attn)");
    EXPECT_GT(record.begin, 0);
  }
  EXPECT_TRUE(engine().takeTrace().empty());
  configure([](StitchOptions &) {});
  onDevice({4});
  EXPECT_TRUE(engine().takeTrace().empty());
}

// Records that nobody takes are not kept for ever; those of whoever traces are all there.
TEST_F(TransferEngineTest, UntakenRecordsAreTheLast) {
  configure([](StitchOptions &options) { options.traceCopies = true; });
  constexpr uint64_t most = TransferEngine::mostTraced;
  auto add = [&](uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i) {
      auto record = std::make_shared<CopyRecord>();
      record->bytes = i;
      engine().addToTrace(std::move(record));
    }
  };
  add(0, most + 7);
  std::vector<CopyRecord> trace = engine().takeTrace();
  ASSERT_EQ(trace.size(), most);
  EXPECT_EQ(trace.front().bytes, 7u);
  EXPECT_EQ(trace.back().bytes, most + 6);
  engine().traceCopies(true);
  add(0, most + 7);
  EXPECT_EQ(engine().takeTrace().size(), most + 7);
  engine().traceCopies(false);
  configure([](StitchOptions &) {});
}

TEST_F(TransferEngineTest, LossyCastsAreCountedAndToldOnce) {
  configure([](StitchOptions &options) { options.lossyCasts = LossyCasts::Warn; });
  std::vector<std::string> warnings;
  engine().setWarn([&](const std::string &text) { warnings.push_back(text); });
  TransferOptions options;
  options.consumer = std::make_shared<const TransferConsumer>(TransferConsumer{.program = "f", .tensor = "input 0"});
  for (int i = 0; i < 3; ++i) {
    Tensor input = onDevice({4, 4});
    engine().align(device, input, desc({4, 4}, {.storage = StorageType::Int8Row}), options);
  }
  EXPECT_EQ(engine().record(1).lossy_casts, 3u);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(contains(warnings[0], "program \"f\", input 0: f32[4,4] is converted to")) << warnings[0];
}

//===----------------------------------------------------------------------===//
// Unified memory
//===----------------------------------------------------------------------===//

// On cpu a transfer is one run of a memoised plan: done on return, nothing over
// a link.
TEST(TransferOnCpu, ConvertsAtOnce) {
  DeviceRef cpu = Device::open("cpu:threads=1");
  Tensor tensor = Tensor::empty(cpu, TensorDesc({4, 4}, ElementType::f32));
  std::iota(tensor.data<float>(), tensor.data<float>() + 16, 0.0f);
  auto wanted = std::make_shared<const TensorDesc>(Shape{4, 4}, ElementType::f32, Layout{.strides = {1, 4}});
  TransferEngine &engine = cpu->transfer();
  auto plan = engine.plan(tensor.desc(), *wanted, true);
  EXPECT_EQ(engine.plan(tensor.desc(), *wanted, true), plan);
  Tensor turned = engine.toLayout(cpu, tensor, wanted);
  EXPECT_EQ(turned.storage()->state(), StorageState::Ready);
  EXPECT_EQ(turned.data<float>()[1], 4);
  for (Queue queue : allQueues)
    EXPECT_EQ(cpu->position(queue), 0u);
  StitchTelemetry line = engine.record(1);
  EXPECT_EQ(line.d2d_bytes, 64u);
  EXPECT_EQ(line.h2d_bytes + line.d2h_bytes + line.host_bytes + line.bounces, 0u);
}
