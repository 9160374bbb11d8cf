//===- HintsTest.cpp - a run tells the compiler what to change ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Two modules compiled apart do not agree on the layout between them. After a
// run, the hints that the runtime wrote are given to both compilations; then
// nothing is converted, and the values are the same to the bit.
//
//===----------------------------------------------------------------------===//

#include "CompiledModule.h"
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unistd.h>

using namespace segue;

static const std::string producer = R"(
func.func @forward(%x: tensor<48x32xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<32x40xf32> {segue.name = "w", segue.role = #segue.role<frozen>})
    -> (tensor<48x40xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0]
      : tensor<48x32xf32>, tensor<32x40xf32> -> tensor<48x40xf32>
  return %y : tensor<48x40xf32>
})";

/// Takes what the producer gives, in a layout of its own.
static std::string consumer(const std::string &layout) {
  return R"(
func.func @forward(%h: tensor<48x40xf32> {segue.name = "h", segue.role = #segue.role<input>,
                                         segue.layout = #segue.layout<)" +
         layout + R"(>})
    -> (tensor<48x40xf32> {segue.name = "z", segue.role = #segue.role<output>}) {
  %z = segue.tanh %h : tensor<48x40xf32>
  return %z : tensor<48x40xf32>
})";
}

namespace {
struct HintsCase {
  const char *name, *device, *layout;
  /// Conversions in three submits: all of them, or two where the producer lists the layout
  /// and then writes it on demand.
  uint64_t conversions;
  /// With the hints, the producer lays what it writes by a copy.
  bool packs = false;
};

class HintsTest : public testing::TestWithParam<HintsCase> {
protected:
  void SetUp() override {
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::ranges::replace(name, '/', '_');
    hints = std::filesystem::temp_directory_path() / ("segue-hints-" + name + std::to_string(getpid()) + ".json");
  }
  void TearDown() override { std::filesystem::remove(hints); }

  /// Three steps; checks nothing but gives values, what was converted in the
  /// consumer, and what the producer packed for it.
  std::vector<float> run(const Binary &first, const Binary &second, uint64_t &converted) {
    DeviceRef device = Device::open(GetParam().device);
    Tensor x = copyTo(device, randomTensor(device, {48, 32}, 1), first.program("forward").input(0).desc());
    Tensor w = copyTo(device, randomTensor(device, {32, 40}, 2), first.program("forward").input(1).desc());
    std::vector<float> result;
    for (int step = 0; step < 3; ++step) {
      std::vector<Tensor> y = submit(device, first.program("forward"), {x, w});
      result = values(submit(device, second.program("forward"), y)[0]);
    }
    converted = Executor(device, second.program("forward")).counters().inputsConverted +
                Executor(device, first.program("forward")).counters().inputsConverted;
    stitchReport(*device).writeHints(hints);
    packed = 0;
    for (const StitchEdge &edge : stitchReport(*device).edges())
      packed += edge.packed;
    return result;
  }

  uint64_t packed = 0;

  std::filesystem::path hints;
};
} // namespace

TEST_P(HintsTest, TheCopyIsGone) {
  std::string text = consumer(GetParam().layout);
  Binary first = compiled("first", producer), second = compiled("second", text);
  uint64_t before = 0, after = 0;
  std::vector<float> apart = run(first, second, before);
  EXPECT_EQ(before, GetParam().conversions);

  // Both are compiled again with the file of the run; the consumer keeps what
  // its source says, and the producer gives that.
  Binary told = compiled("first", producer, hints), again = compiled("second", text, hints);
  EXPECT_EQ(told.program("forward").interfaceHash(), first.program("forward").interfaceHash());
  EXPECT_EQ(told.program("forward").output(0).desc().layout, second.program("forward").input(0).desc().layout);
  EXPECT_EQ(again.program("forward").signatureHash(), second.program("forward").signatureHash());
  std::vector<float> stitched = run(told, again, after);
  EXPECT_EQ(after, 0u);
  EXPECT_EQ(packed, GetParam().packs ? 3u : 0u) << "a conversion that moved is still told";
  EXPECT_EQ(stitched, apart);

  // Nothing was left to tell.
  std::stringstream left;
  left << std::ifstream(hints).rdbuf();
  EXPECT_TRUE(Json::parse(left.str()).at("edges").empty()) << left.str();
}

INSTANTIATE_TEST_SUITE_P(All, HintsTest,
                         testing::Values(HintsCase{"TransposedOnCpu", "cpu:threads=1", "strides = [1, 48]", 2},
                                         HintsCase{"TransposedOnSim", "sim:dram=64MiB", "strides = [1, 48]", 2},
                                         HintsCase{"PaddedOnCpu", "cpu:threads=1", "strides = [64, 1]", 3},
                                         HintsCase{"TiledOnCpu", "cpu:threads=1", "tile = [16, 16]", 3, true},
                                         HintsCase{"TiledOnSim", "sim:dram=64MiB", "tile = [32, 32]", 3, true},
                                         HintsCase{"AlignedOnCpu", "cpu:threads=1",
                                                   "strides = [1, 48], alignment = 512", 3}),
                         [](const auto &info) { return std::string(info.param.name); });

//===----------------------------------------------------------------------===//
// Inputs in tiles and rows
//===----------------------------------------------------------------------===//

namespace {
class PackedInputTest : public testing::TestWithParam<const char *> {};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, PackedInputTest, testing::Values("cpu:threads=1", "sim:dram=64MiB"),
                         [](const auto &info) { return std::string(info.param).substr(0, 3); });

/// y = x w, x [20, 24] in `layout` and, where wanted, y too.
static std::string product(const std::string &layout, const std::string &result = "space = device_dram") {
  return R"(
func.func @forward(%x: tensor<20x24xf32> {segue.name = "x", segue.role = #segue.role<input>,
                                         segue.layout = #segue.layout<)" +
         layout + R"(>},
                   %w: tensor<24x8xf32> {segue.name = "w", segue.role = #segue.role<frozen>})
    -> (tensor<20x8xf32> {segue.name = "y", segue.role = #segue.role<output>,
                          segue.layout = #segue.layout<)" +
         result + R"(>}) {
  %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0]
      : tensor<20x24xf32>, tensor<24x8xf32> -> tensor<20x8xf32>
  return %y : tensor<20x8xf32>
})";
}

/// The product by three loops.
static std::vector<float> productOf(const std::vector<float> &x, const std::vector<float> &w) {
  std::vector<float> y(20 * 8);
  for (size_t i = 0; i < 20; ++i)
    for (size_t j = 0; j < 8; ++j) {
      double sum = 0;
      for (size_t k = 0; k < 24; ++k)
        sum += double(x[i * 24 + k]) * double(w[k * 8 + j]);
      y[i * 8 + j] = float(sum);
    }
  return y;
}

static void expectNear(const std::vector<float> &given, const std::vector<float> &wanted, double tolerance) {
  ASSERT_EQ(given.size(), wanted.size());
  for (size_t i = 0; i < given.size(); ++i)
    ASSERT_NEAR(given[i], wanted[i], tolerance) << "element " << i;
}

TEST_P(PackedInputTest, TilesAreUnpackedAndPacked) {
  DeviceRef device = Device::open(GetParam());
  Tensor x = randomTensor(device, {20, 24}, 3), w = randomTensor(device, {24, 8}, 4);
  Binary dense = compiled("dense", product("space = device_dram"));
  Binary tiled = compiled("tiled", product("tile = [8, 16]", "tile = [4, 8]"));
  EXPECT_EQ(tiled.program("forward").input(0).desc().layout.tile, (std::vector<uint32_t>{8, 16}));
  std::vector<float> expected = values(submit(device, dense.program("forward"), {x, w})[0]);
  expectNear(expected, productOf(values(x), values(w)), 1e-5);
  std::vector<Tensor> outputs = submit(device, tiled.program("forward"), {x, w});
  EXPECT_EQ(outputs[0].desc().layout.tile, (std::vector<uint32_t>{4, 8}));
  EXPECT_EQ(values(outputs[0]), expected);
}

// The link carries bytes; the program multiplies what they stand for.
TEST_P(PackedInputTest, RowsAreDequantised) {
  DeviceRef device = Device::open(GetParam());
  Tensor x = randomTensor(device, {20, 24}, 5), w = randomTensor(device, {24, 8}, 6);
  Binary rows = compiled("rows", product("storage = int8_row"));
  const Program &program = rows.program("forward");
  // Quantising loses something, so that it has to be asked for.
  Tensor stored = toLayout(device, x, program.input(0).desc());
  EXPECT_EQ(stored.desc().spanBytes(), 20u * 24 + 32 + 20 * 4); // to a multiple of 64
  std::vector<float> xs = values(x), back = values(stored);
  expectNear(back, xs, 1.0 / 254 + 1e-6);
  EXPECT_NE(back, xs);
  expectNear(values(submit(device, program, {stored, w})[0]), productOf(back, values(w)), 1e-5);
  EXPECT_EQ(Executor(device, program).counters().inputsElided + Executor(device, program).counters().inputsConverted,
            2u);
}

//===----------------------------------------------------------------------===//
// Alternatives
//===----------------------------------------------------------------------===//

static uint64_t copiesOf(const Program &program) {
  for (const CommandCount &count : program.commandCounts())
    if (count.kind == "to_layout")
      return count.count;
  return 0;
}

/// `text` with LAYOUT replaced.
static std::string withLayout(std::string text, const std::string &layout) {
  return text.replace(text.find("LAYOUT"), 6, layout);
}

namespace {
struct AlternativesCase {
  const char *name;
  const char *text;
  /// Strides of the alternatives in device_dram that must be there.
  std::vector<std::vector<int64_t>> wanted;
};
class AlternativesTest : public testing::TestWithParam<AlternativesCase> {};
} // namespace

INSTANTIATE_TEST_SUITE_P(All, AlternativesTest,
                         testing::Values(AlternativesCase{"Matmul",
                                                          R"(
func.func @forward(%x: tensor<2x5x24xf32>, %w: tensor<24x12xf32>)
    -> (tensor<2x5x12xf32> {segue.layout = #segue.layout<LAYOUT>}) {
  %y = segue.dot_general %x, %w batch [] x [] contract [2] x [0]
      : tensor<2x5x24xf32>, tensor<24x12xf32> -> tensor<2x5x12xf32>
  return %y : tensor<2x5x12xf32>
})",
                                                          {{80, 16, 1}, {5, 1, 10}}},
                                         // Heads are joined after attention; batch and rows may swap.
                                         AlternativesCase{"Attention",
                                                          R"(
func.func @forward(%q: tensor<2x3x5x8xf32>, %k: tensor<2x3x7x8xf32>)
    -> (tensor<2x5x24xf32> {segue.layout = #segue.layout<LAYOUT>}) {
  %o, %l = segue.attention %q, %k, %k scale 0.25
      : tensor<2x3x5x8xf32>, tensor<2x3x7x8xf32> -> tensor<2x3x5xf32>
  %t = segue.transpose %o [0, 2, 1, 3] : tensor<2x3x5x8xf32> -> tensor<2x5x3x8xf32>
  %y = segue.reshape %t : tensor<2x5x3x8xf32> -> tensor<2x5x24xf32>
  return %y : tensor<2x5x24xf32>
})",
                                                          {{160, 32, 1}, {24, 48, 1}}},
                                         AlternativesCase{"Slice",
                                                          R"(
func.func @forward(%x: tensor<6x24xf32>, %w: tensor<24x12xf32>)
    -> (tensor<6x12xf32> {segue.layout = #segue.layout<LAYOUT>}) {
  %y = segue.slice %x [0, 4] to [6, 16] by [1, 1] : tensor<6x24xf32> -> tensor<6x12xf32>
  return %y : tensor<6x12xf32>
})",
                                                          {{16, 1}, {1, 6}}}),
                         [](const auto &info) { return std::string(info.param.name); });

// An alternative costs nothing: a program compiled for it has no more copies,
// and gives the same values, up to the order of sums in a turned product.
TEST_P(AlternativesTest, CostNothing) {
  DeviceRef device = Device::open("cpu:threads=1");
  Binary declared = compiled("declared", withLayout(GetParam().text, "space = device_dram"));
  const Program &program = declared.program("forward");
  std::vector<Tensor> inputs;
  for (const Value &value : program.inputs())
    inputs.push_back(randomTensor(device, value.desc().shape, uint32_t(inputs.size()) + 11));
  std::vector<float> expected = values(submit(device, program, inputs)[0]);

  std::vector<std::vector<int64_t>> listed;
  bool inL1 = false;
  for (const auto &alternative : program.output(0).alternatives) {
    if (alternative->layout.space == Space::DeviceL1) {
      inL1 = true;
      continue;
    }
    std::vector<int64_t> strides = alternative->strides();
    listed.push_back(strides);
    std::string text;
    for (int64_t stride : strides)
      text += (text.empty() ? "" : ", ") + std::to_string(stride);
    SCOPED_TRACE(text);
    Binary other = compiled("other", withLayout(GetParam().text, "strides = [" + text + "]"));
    EXPECT_EQ(copiesOf(other.program("forward")), copiesOf(program));
    std::vector<Tensor> outputs = submit(device, other.program("forward"), inputs);
    EXPECT_EQ(outputs[0].desc().strides(), strides);
    expectNear(values(outputs[0]), expected, 1e-5);
  }
  EXPECT_EQ(listed, GetParam().wanted);
  EXPECT_TRUE(inL1);
}
