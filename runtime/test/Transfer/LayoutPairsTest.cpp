//===- LayoutPairsTest.cpp - any place and layout to any other ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// toLayout is total: every ordered pair of the layouts of LayoutCases, each in
// every space that a device has, through the device's transfer engine, held to
// the element by element reference. Bytes get to and from the device by one
// plain copy of a raw range, not by the engine, so that two wrong conversions
// cannot hide each other.
//
//===----------------------------------------------------------------------===//

#include "LayoutCases.h"
#include "Sample.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cstring>
#include <gtest/gtest.h>
#include <map>

using namespace segue;
using namespace segue::test;

namespace {
class LayoutPairsTest : public testing::TestWithParam<std::string> {
protected:
  /// The spaces of the device, in the order of their enum.
  std::vector<Space> spaces() const {
    std::vector<Space> spaces;
    for (Space space : {Space::Host, Space::HostPinned, Space::DeviceDram, Space::DeviceL1})
      if (device->hasSpace(space))
        spaces.push_back(space);
    return spaces;
  }

  /// One copy between the host and wherever `data` lies, by `queue`; tried
  /// until it comes through.
  Fence copyRaw(Queue queue, const Fence &after, void *target, const void *source, uint64_t bytes) {
    struct Endless final : CopyTries {
      void trying() noexcept override {}
      bool triesAgain(const Error &, uint32_t) noexcept override { return true; }
    };
    static Endless endless;
    auto run = [raw = device.get(), target, source, bytes] { raw->copy(target, source, bytes, &endless); };
    return Fence(queue, device->enqueue(queue, after, {run, {.linkBytes = bytes}, "test"}));
  }

  /// A tensor of `desc` that holds `bytes`. Memory of the host alone is given
  /// over at the end of the copy.
  Tensor make(const TensorDesc &desc, const std::vector<std::byte> &bytes) {
    // A storage of its own, and in it whatever offset `desc` has.
    TensorDesc whole({int64_t(desc.layout.offset + bytes.size())}, ElementType::i8,
                     Layout{.space = desc.layout.space, .alignment = std::max(desc.layout.alignment, 64u)});
    Tensor all = Tensor::empty(device, whole);
    Tensor tensor = Tensor::in(all.storage(), std::make_shared<const TensorDesc>(desc));
    if (bytes.empty())
      return tensor;
    Fence done = copyRaw(Queue::HostToDevice, all.storage()->uses(), tensor.bytes(), bytes.data(), bytes.size());
    all.storage()->addWrite(done);
    device->wait(done);
    return tensor;
  }

  std::vector<std::byte> read(const Tensor &tensor) {
    std::vector<std::byte> bytes(tensor.desc().spanBytes());
    if (!bytes.empty())
      device->wait(
          copyRaw(Queue::DeviceToHost, tensor.storage()->writes(), bytes.data(), tensor.bytes(), bytes.size()));
    return bytes;
  }

  DeviceRef device = Device::open(GetParam());
};

/// The bytes that a target has to hold; those in gaps belong to nobody.
struct Expected {
  std::vector<std::byte> bytes;
  std::vector<uint8_t> matters;

  Expected(const TensorDesc &source, const std::vector<std::byte> &contents, const TensorDesc &target) {
    int64_t row;
    uint64_t size = target.spanBytes();
    bytes = referenceCopy(source, contents, target, std::vector<std::byte>(size), row);
    std::vector<std::byte> other =
        referenceCopy(source, contents, target, std::vector<std::byte>(size, std::byte(0xff)), row);
    matters.resize(size);
    for (uint64_t i = 0; i < size; ++i)
      matters[i] = bytes[i] == other[i];
  }

  /// "" or what is wrong.
  std::string compare(const std::vector<std::byte> &found) const {
    if (found.size() != bytes.size())
      return std::to_string(found.size()) + " bytes, not " + std::to_string(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i)
      if (matters[i] && found[i] != bytes[i])
        return "byte " + std::to_string(i) + " is " + std::to_string(int(found[i])) + ", not " +
               std::to_string(int(bytes[i]));
    return "";
  }
};

/// `layout` in `space`, with the alignment and offset of its turn.
TensorDesc place(const LayoutCase &layout, const Shape &shape, Space space, uint32_t turn) {
  constexpr uint32_t alignments[] = {64, 512, 8, 4096, 64, 128};
  TensorDesc desc = layout.desc(shape);
  desc.layout.space = space;
  desc.layout.alignment = alignments[turn % std::size(alignments)];
  return desc;
}
} // namespace

INSTANTIATE_TEST_SUITE_P(All, LayoutPairsTest, testing::ValuesIn(layoutPairSpecs()), [](const auto &info) {
  std::string name = info.param;
  std::ranges::replace_if(name, [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
});

// All ordered pairs, bit-equal to the reference; none unsupported.
TEST_P(LayoutPairsTest, AllOrderedPairs) {
  std::vector<LayoutCase> cases = layoutCases();
  std::vector<Shape> shapes = layoutShapes();
  std::vector<Space> spaces = this->spaces();
  ASSERT_GE(cases.size() * spaces.size(), 40u);
  // Every pair meets some of the shapes, half as many in a sample; where a copy is done
  // when it returns, more of them. A kernel of the fake GPU takes its time.
  bool isGpu = GetParam().starts_with("cuda");
  uint32_t each = device->runsInline() ? 4 : isGpu ? 1 : 2;
  if (sampleSeed())
    each = std::max(1u, each / 2);
  uint64_t start = sampleStart();
  if (isGpu)
    std::erase(spaces, Space::HostPinned);
  // Where the link stumbles, small chunks: most copies are staged, some through memory that is not pinned.
  bool linkStumbles = GetParam().find("fail-copy") != std::string::npos;
  StitchOptions options;
  if (linkStumbles)
    options.stagingChunkBytes = 500;
  device->transfer().configure(options);
  std::vector<std::string> unsupported;
  std::map<std::pair<size_t, size_t>, uint32_t> met;
  uint64_t copies = 0, elided = 0;
  uint32_t turn = 0;
  for (size_t s = 0; s < shapes.size(); ++s)
    for (size_t f = 0; f < cases.size(); ++f) {
      const Shape &shape = shapes[s];
      std::vector<std::byte> contents;
      std::vector<Tensor> sources;
      for (Space space : spaces) {
        TensorDesc desc = place(cases[f], shape, space, ++turn);
        desc.layout.offset = turn % 3 == 0 ? desc.layout.alignment * 3 : 0;
        if (sources.empty()) {
          // What belongs to no element, but to the tensor, is zero in a source too.
          int64_t row;
          contents = makeContents(desc, uint32_t(s * cases.size() + f));
          contents = referenceCopy(desc, contents, desc, contents, row);
        }
        sources.push_back(make(desc, contents));
      }
      for (size_t t = 0; t < cases.size(); ++t) {
        if (cases[t].isReadOnly() || (s + f * 5 + t * 7 + start) % shapes.size() >= each)
          continue;
        ++met[{f, t}];
        Expected expected(sources[0].desc(), contents, cases[t].desc(shape));
        // All space pairs at once, in whatever order the device takes them.
        std::vector<std::pair<const Tensor *, Tensor>> results;
        for (const Tensor &source : sources)
          for (Space space : spaces) {
            TensorDesc wanted = place(cases[t], shape, space, ++turn);
            ++copies;
            try {
              Tensor result = toLayout(device, source, wanted);
              elided += result.storage() == source.storage();
              ASSERT_TRUE(hasLayout(result, wanted.layout)) << wanted.str() << " is " << result.desc().str();
              ASSERT_EQ(result.element(), wanted.element);
              bool isAligned = reinterpret_cast<uintptr_t>(result.bytes()) % wanted.layout.alignment == 0;
              ASSERT_TRUE(isAligned || result.elementCount() == 0) << wanted.str();
              results.emplace_back(&source, std::move(result));
            } catch (const Error &error) {
              if (error.code() != ErrorCode::Unsupported)
                throw;
              unsupported.push_back(source.desc().str() + " to " + wanted.str());
            }
          }
        for (const auto &[source, result] : results) {
          auto what = [&] {
            return cases[f].name + " (" + source->desc().str() + ") to " + cases[t].name + " (" + result.desc().str() +
                   "), turn " + std::to_string(turn) + " on " + device->name();
          };
          ASSERT_NO_THROW(wait(result)) << what();
          ASSERT_EQ(expected.compare(read(result)), "") << what();
        }
      }
      for (const Tensor &source : sources)
        ASSERT_EQ(read(source), contents) << "a source was changed: " << source.desc().str();
    }
  uint64_t writable = uint64_t(std::ranges::count_if(cases, [](const LayoutCase &c) { return !c.isReadOnly(); }));
  ASSERT_EQ(met.size(), cases.size() * writable);
  for (const auto &[pair, count] : met)
    EXPECT_EQ(count, each);
  std::printf("%zu ordered pairs of %zu layouts (%zu x %zu spaces) on %s: %lu toLayout, %lu of them elided, "
              "%zu unsupported\n",
              met.size() * spaces.size() * spaces.size(), cases.size() * spaces.size(), cases.size(), spaces.size(),
              device->name().c_str(), copies, elided, unsupported.size());
  EXPECT_EQ(unsupported, std::vector<std::string>());
  EXPECT_GT(elided, 0u);
  TransferCounters &counters = device->transfer().counters();
  EXPECT_EQ(counters.failures, 0u);
  EXPECT_EQ(counters.retries > 0, linkStumbles);
}
