//===- CudaLibraryTest.cpp - library calls of cuda:N ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Products of groups of rows and convolutions, held to those of the CPU's engine, which
// the tests of operators hold to PyTorch's, and sorted rows, held to std::stable_sort.
//
//===----------------------------------------------------------------------===//

#include "../Engine/SortCases.h"
#include "../Engine/Values.h"
#include "CudaSpecs.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

namespace {
constexpr ElementType summedInF32[] = {ElementType::f32, ElementType::bf16, ElementType::f16};

/// A call with its ends of groups, if it has some, as its third operand.
struct Case {
  LibraryCallSpec spec;
  std::vector<int64_t> ends;
  /// The largest number of terms of a sum.
  int64_t depth;
  /// How often the CPU rounds a number that becomes a result, or the device.
  int roundings = 1;
};

class CudaLibraryTest : public testing::TestWithParam<std::string> {
protected:
  Tensor onDevice(const void *data, uint64_t bytes) {
    Tensor there = Tensor::empty(device, TensorDesc({int64_t(bytes)}, ElementType::i8));
    device->copy(there.bytes(), data, bytes);
    return there;
  }

  /// Runs the call on the CPU, on the device, and there again in a body: the same numbers, and the same bits.
  void check(const Case &given) {
    const LibraryCallSpec &spec = given.spec;
    const LibraryOperation *operation = findLibraryOperation(spec.operation);
    ASSERT_TRUE(operation);
    ASSERT_EQ(operation->findProblem(spec), "");
    ElementType type = spec.reads[0].element;
    std::vector<std::vector<uint8_t>> here;
    for (size_t i = 0; i < spec.reads.size(); ++i) {
      const LibraryTensor &tensor = spec.reads[i];
      if (isFloat(tensor.element)) {
        Values values(tensor.element, tensor.elements(), i + 1);
        for (int64_t at = 0; type == ElementType::f32 && at < values.size(); ++at)
          values.set(at, float(values.at(at)) * 0.7310586f);
        here.push_back(values.bytes());
        continue;
      }
      std::vector<uint8_t> bytes(given.ends.size() * byteSize(tensor.element));
      for (size_t at = 0; at < given.ends.size(); ++at)
        std::memcpy(&bytes[at * byteSize(tensor.element)], &given.ends[at], byteSize(tensor.element));
      here.push_back(bytes);
    }
    std::vector<Tensor> there;
    std::vector<void *> hostAt, deviceAt;
    for (std::vector<uint8_t> &bytes : here) {
      there.push_back(onDevice(bytes.data(), bytes.size()));
      hostAt.push_back(bytes.data());
      deviceAt.push_back(there.back().bytes());
    }
    std::vector<Values> before;
    for (const LibraryTensor &tensor : spec.writes)
      before.emplace_back(type, tensor.elements(), 9);
    std::vector<Values> wanted = before, found = before;
    for (size_t k = 0; k < before.size(); ++k) {
      const std::vector<uint8_t> &bytes = before[k].bytes();
      there.push_back(Tensor::empty(device, TensorDesc({int64_t(bytes.size() + skippedBytes)}, ElementType::i8)));
      hostAt.push_back(wanted[k].data());
      deviceAt.push_back(there.back().bytes() + skippedBytes);
      device->copy(deviceAt.back(), bytes.data(), bytes.size());
    }
    auto readResults = [&] {
      for (size_t k = 0; k < found.size(); ++k)
        device->copy(found[k].data(), deviceAt[spec.reads.size() + k], found[k].bytes().size());
    };
    cpu->engine().planLibraryCall(spec)->run(hostAt);
    auto plan = device->engine().planLibraryCall(spec);
    plan->run(deviceAt);
    readResults();
    // A term is at most 1.
    for (size_t k = 0; k < found.size(); ++k)
      for (int64_t i = 0; i < found[k].size(); ++i)
        ASSERT_NEAR(found[k].at(i), wanted[k].at(i),
                    given.roundings * tolerance(type) * (1 + std::fabs(wanted[k].at(i))) + 2e-7 * double(given.depth))
            << "at " << i << " of result " << k;
    std::vector<Values> first = found;
    for (size_t k = 0; k < found.size(); ++k)
      device->copy(deviceAt[spec.reads.size() + k], before[k].bytes().data(), before[k].bytes().size());
    Work again{[&] { plan->run(deviceAt); }, {}, "test"};
    device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(again))));
    readResults();
    for (size_t k = 0; k < found.size(); ++k)
      EXPECT_EQ(found[k].bytes(), first[k].bytes()) << "another run gives other bits";
  }

  /// Results begin so many bytes behind where a tensor does.
  uint64_t skippedBytes = 0;

  DeviceRef device = Device::open(GetParam());
  DeviceRef cpu = Device::open("cpu:threads=1");
};

/// "dot", "dot transposed" or "outer" of groups that end at `ends`.
Case groupsOf(const std::string &form, ElementType type, ElementType index, int64_t rows, int64_t depth, int64_t width,
              std::vector<int64_t> ends) {
  auto groups = int64_t(ends.size());
  bool outer = form == "outer", transposed = form == "dot transposed";
  Case made{.ends = ends, .depth = outer ? rows : depth};
  made.spec.operation = outer ? "grouped_outer" : "grouped_dot";
  if (!outer)
    made.spec.numbers = {transposed};
  std::vector<int64_t> second = outer        ? std::vector{rows, width}
                                : transposed ? std::vector{groups, width, depth}
                                             : std::vector{groups, depth, width};
  made.spec.reads = {{type, {rows, depth}}, {type, second}, {index, {groups}}};
  made.spec.writes = {{type, outer ? std::vector{groups, depth, width} : std::vector{rows, width}}};
  return made;
}

struct Axis {
  int64_t image, taps, stride = 1, low = 0, high = 0, dilation = 1;
  int64_t output() const { return (image + low + high - (taps - 1) * dilation - 1) / stride + 1; }
};

/// A convolution, or with `gradOf` the gradient of "input" or "weight".
Case convolutionOf(const std::string &gradOf, ElementType type, int64_t images, int64_t channels, int64_t outputs,
                   int64_t groups, std::vector<Axis> axes, bool hasBias = false) {
  Case made;
  LibraryCallSpec &spec = made.spec;
  std::vector<int64_t> x{images, channels}, w{outputs, channels / groups}, y{images, outputs};
  for (const Axis &axis : axes) {
    x.push_back(axis.image);
    w.push_back(axis.taps);
    y.push_back(axis.output());
  }
  for (auto number : {&Axis::stride, &Axis::low, &Axis::high, &Axis::dilation})
    for (const Axis &axis : axes)
      spec.numbers.push_back(axis.*number);
  spec.numbers.push_back(groups);
  LibraryTensor image{type, x}, weight{type, w}, output{type, y};
  spec.operation = axes.size() == 3 ? "conv3d" : "conv2d";
  if (gradOf.empty())
    spec.reads = {image, weight}, spec.writes = {output};
  else if (gradOf == "input")
    spec.reads = {output, weight}, spec.writes = {image};
  else
    spec.reads = {output, image}, spec.writes = {weight};
  if (!gradOf.empty())
    spec.operation += "_" + gradOf + "_grad";
  if (hasBias)
    spec.reads.push_back({type, {outputs}});
  made.depth = gradOf.empty() ? weight.elements() / outputs
               : gradOf == "input" ? weight.elements() / (channels / groups)
                                   : images * output.elements() / std::max<int64_t>(images * outputs, 1);
  return made;
}
} // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, CudaLibraryTest, testing::Values(cudaSpecs().front()));

// Groups of several tiles, of one row and of none, ends that go back or pass the last row, and rows in no group.
TEST_P(CudaLibraryTest, MultipliesGroupsAsTheCpuDoes) {
  for (ElementType type : summedInF32)
    for (std::string form : {"dot", "dot transposed", "outer"}) {
      SCOPED_TRACE(form + " " + std::string(name(type)));
      check(groupsOf(form, type, ElementType::i32, 150, 37, 70, {64, 64, 65, 147}));
      check(groupsOf(form, type, ElementType::i64, 70, 66, 5, {-3, 20, 9, 90, 95}));
      check(groupsOf(form, type, ElementType::i32, 5, 8, 130, {5}));
      check(groupsOf(form, type, ElementType::i64, 0, 4, 3, {0, 0}));
      check(groupsOf(form, type, ElementType::i64, 9, 0, 3, {4, 9}));
      if (form != "outer")
        check(groupsOf(form, type, ElementType::i64, 9, 6, 3, {}));
    }
}

TEST_P(CudaLibraryTest, ConvolvesAsTheCpuDoes) {
  for (ElementType type : summedInF32)
    for (std::string gradOf : {"", "input", "weight"}) {
      SCOPED_TRACE(gradOf + " " + std::string(name(type)));
      bool isForward = gradOf.empty();
      // Dense, with a bias; strides, paddings that differ, dilations; groups, one channel each; three dimensions.
      check(convolutionOf(gradOf, type, 2, 3, 5, 1, {{7, 3, 1, 1, 1}, {9, 3, 1, 1, 1}}, isForward));
      check(convolutionOf(gradOf, type, 3, 4, 70, 1, {{11, 3, 2, 2, 1, 2}, {8, 2, 3, 0, 4, 3}}));
      check(convolutionOf(gradOf, type, 2, 6, 9, 3, {{6, 1}, {5, 4, 2, 3, 0}}, isForward));
      check(convolutionOf(gradOf, type, 1, 12, 12, 12, {{9, 3, 1, 1, 1}, {10, 3, 2, 1, 1}}, isForward));
      check(convolutionOf(gradOf, type, 2, 4, 6, 2, {{4, 2, 1, 1, 0}, {5, 3, 2, 1, 1}, {6, 2, 1, 0, 2, 2}}, isForward));
      check(convolutionOf(gradOf, type, 1, 1, 1, 1, {{1, 1}, {1, 1}}));
      check(convolutionOf(gradOf, type, 0, 2, 3, 1, {{4, 3}, {4, 3}}, isForward));
      if (HasFatalFailure())
        return;
    }
}

// Few tiles with long sums: their parts are added by a second kernel.
TEST_P(CudaLibraryTest, CutsLongSumsIntoParts) {
  for (ElementType type : summedInF32) {
    SCOPED_TRACE(name(type));
    check(convolutionOf("weight", type, 3, 4, 6, 2, {{25, 3, 1, 1, 1}, {21, 3, 1, 0, 0}}));
    check(convolutionOf("", type, 1, 130, 6, 1, {{4, 3, 1, 1, 1}, {5, 3, 1, 1, 1}}, /*hasBias=*/true));
    check(convolutionOf("input", type, 1, 3, 130, 1, {{4, 3, 1, 1, 1}, {5, 3, 1, 1, 1}}));
  }
  // Their memory has one size, which is known once a plan has wanted it.
  DeviceRef fresh = Device::open(GetParam());
  uint64_t before = fresh->memory().liveBytes(Space::DeviceDram);
  Case grad = convolutionOf("weight", ElementType::f32, 3, 4, 6, 2, {{25, 3, 1, 1, 1}, {21, 3, 1, 0, 0}});
  fresh->memory().setBudget(Space::DeviceDram, before + (2 << 20));
  EXPECT_THROW(fresh->engine().planLibraryCall(grad.spec), OutOfMemory);
  EXPECT_EQ(fresh->bytesForPrograms(), 4u << 20);
  fresh->memory().setBudget(Space::DeviceDram, before + (4 << 20));
  auto plan = fresh->engine().planLibraryCall(grad.spec);
  EXPECT_EQ(fresh->memory().liveBytes(Space::DeviceDram) - before, 4u << 20);
  EXPECT_EQ(fresh->bytesForPrograms(), 0u);
}

TEST_P(CudaLibraryTest, RefusesWhatItCannotCount) {
  Case large = convolutionOf("", ElementType::f32, 1, 1, 1, 1, {{int64_t(1) << 20, 1}, {int64_t(1) << 12, 1}});
  try {
    device->engine().planLibraryCall(large.spec);
    ADD_FAILURE() << "planned";
  } catch (const Error &error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_NE(std::string(error.what()).find("2^31 places"), std::string::npos) << error.what();
  }
}

//===----------------------------------------------------------------------===//
// Products with gelu
//===----------------------------------------------------------------------===//

/// Gelu of rows times a matrix, and perhaps the sums.
static Case geluOf(bool givesSums, ElementType type, std::vector<int64_t> rows, int64_t depth, int64_t width,
                   bool transposed, bool hasBias) {
  Case made{.ends = {}, .depth = depth, .roundings = 2};
  made.spec.operation = "dot_gelu";
  made.spec.numbers = {transposed};
  std::vector<int64_t> lhs = rows, result = rows;
  lhs.push_back(depth);
  result.push_back(width);
  made.spec.reads = {{type, lhs}, {type, transposed ? std::vector{width, depth} : std::vector{depth, width}}};
  if (hasBias)
    made.spec.reads.push_back({type, {width}});
  made.spec.writes.assign(givesSums ? 2 : 1, {type, result});
  return made;
}

// All types, both ways to read the matrix; by the library's epilogue, and, where it has none (columns in no multiple of
// 8 with sums, no rows, no depth, results that begin elsewhere), by a kernel behind the product.
TEST_P(CudaLibraryTest, TakesGeluOfProducts) {
  for (bool givesSums : {false, true})
    for (ElementType type : summedInF32)
      for (bool transposed : {false, true})
        for (bool hasBias : {false, true})
          for (auto [rows, depth, width] :
               {std::tuple(std::vector<int64_t>{3, 20}, 24, 40), {{17}, 9, 13}, {{0}, 4, 8}, {{2}, 0, 8}, {{}, 5, 16}})
            for (uint64_t skipped : {0, 4}) {
              SCOPED_TRACE(testing::Message() << name(type) << (givesSums ? " sums " : " ") << depth << " x " << width
                                              << (transposed ? " transposed" : "") << (hasBias ? " bias" : "") << ", "
                                              << skipped << " bytes behind");
              skippedBytes = skipped;
              check(geluOf(givesSums, type, rows, depth, width, transposed, hasBias));
              if (HasFatalFailure())
                return;
            }
}

//===----------------------------------------------------------------------===//
// Sorted rows
//===----------------------------------------------------------------------===//

// Every type and every kind of rows; rows that one launch sorts and that are merged once and many times, the whole order
// and parts of it, with all rows at a time and some.
TEST_P(CudaLibraryTest, SortsRowsAsTheCpuDoes) {
  auto sorted = [&](const SortCase &given) {
    std::vector<int64_t> result(size_t(given.spec.writes[0].elements()), -1);
    Tensor x = onDevice(given.x.data(), given.x.size()), places = onDevice(result.data(), result.size() * 8),
           space = Tensor::empty(device, TensorDesc(given.spec.writes[1].shape, ElementType::i64));
    std::vector<void *> tensors = {x.bytes(), places.bytes(), space.bytes()};
    auto plan = device->engine().planLibraryCall(given.spec);
    Work work{[&] { plan->run(tensors); }, {}, "test"};
    device->wait(Fence(Queue::Compute, device->enqueue(Queue::Compute, {}, std::move(work))));
    device->copy(result.data(), places.bytes(), result.size() * 8);
    return result;
  };
  for (ElementType type : allElementTypes)
    for (Elements elements : {Elements::Random, Elements::Few, Elements::Ends})
      for (auto [rows, length, slots] :
           {std::tuple<int64_t, int64_t, int64_t>{5, 37, 5}, {3, 1024, 2}, {3, 1025, 3}, {1, 3001, 1}})
        for (auto [first, count] : {std::pair<int64_t, int64_t>{0, length}, {length / 3, 3}}) {
          SortCase given(type, elements, rows, length, first, count, length % 2 == 0, slots);
          ASSERT_EQ(sorted(given), given.expected())
              << name(type) << " elements " << int(elements) << ", " << rows << " rows of " << length;
        }
}
