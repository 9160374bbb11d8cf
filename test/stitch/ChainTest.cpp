//===- ChainTest.cpp - modules whose layouts agree copy nothing -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The bar of runtime-stitching: a chain of modules, each compiled alone, whose
// declared layouts agree converts no input, and gives the bits of the joined
// program. Plain layouts on every device, and everything in device_l1 where
// there is one.
//
//===----------------------------------------------------------------------===//

#include "CompilePieces.h"
#include "RandomModel.h"
#include "segue/runtime/Runtime.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cstring>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

static std::span<const std::byte> bytesOf(const std::string &text) { return std::as_bytes(std::span(text)); }

namespace {
class ChainTest : public testing::TestWithParam<const char *> {
protected:
  DeviceRef device = Device::open(GetParam()), cpu = Device::open("cpu:threads=1");

  static Tensor draw(const DeviceRef &device, const ModelValue &value, std::mt19937_64 &random) {
    bool isIndex = value.element == "i64";
    Tensor tensor = Tensor::onHost(device, value.shape, isIndex ? ElementType::i64 : ElementType::f32);
    for (int64_t i = 0; i < value.elements(); ++i)
      if (isIndex)
        tensor.data<int64_t>()[i] = int64_t(random() % uint64_t(value.bound));
      else
        tensor.data<float>()[i] = float(int64_t(random() % 4001) - 2000) / 2000;
    return tensor;
  }

  void play(uint64_t seed, const std::string &layout) {
    std::mt19937_64 random(seed);
    RandomModel model = RandomModel::make(random);
    std::vector<size_t> ends = model.cut(random, 6);
    std::map<size_t, std::string> layouts;
    for (size_t value = 0; !layout.empty() && value < model.values.size(); ++value)
      layouts[value] = layout;
    std::vector<std::string> texts, outputs;
    std::vector<Binary> binaries;
    for (size_t begin = 0; size_t end : ends) {
      ModelPiece piece(model, begin, end);
      std::map<size_t, std::string> declared;
      for (const auto *values : {&piece.arguments, &piece.results})
        for (size_t value : *values)
          if (layouts.contains(value))
            declared[value] = layouts[value];
      texts.push_back(piece.text(model, declared));
      binaries.push_back(Binary::fromMemory(bytesOf(compileModule(texts.back(), false))));
      begin = end;
    }
    for (size_t output : model.outputs)
      outputs.push_back(valueName(output));
    Binary joined = Binary::fromMemory(bytesOf(compileJoined(texts, outputs, false)));

    TransferCounters &counters = device->transfer().counters();
    for (int step = 0; step < 3; ++step) {
      // What enters, where each program wants it; a parameter serves all steps in life.
      std::map<std::string, Tensor> entering, values;
      for (size_t value = 0; value < model.values.size(); ++value)
        if (model.values[value].kind != ModelValue::Kind::Result)
          entering[valueName(value)] = draw(cpu, model.values[value], random);
      uint64_t converted = counters.inputsConverted, copies = 0;
      for (const Binary &binary : binaries) {
        const Program &program = binary.program("forward");
        std::vector<Tensor> inputs;
        for (const Value &input : program.inputs()) {
          if (auto found = entering.find(input.name); found != entering.end() && !values.contains(input.name)) {
            Tensor host = Tensor::onHost(device, found->second.shape(), found->second.element());
            std::memcpy(host.bytes(), found->second.bytes(), host.desc().spanBytes());
            values[input.name] = toLayout(device, host, input.desc());
          }
          inputs.push_back(values.at(input.name));
        }
        uint64_t before = counters.copies;
        std::vector<Tensor> results = submit(device, program, inputs);
        copies += counters.copies - before;
        for (size_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(results[i].desc().layout.space, layout.empty() ? Space::DeviceDram : Space::DeviceL1);
          values[program.output(i).name] = results[i];
        }
      }
      EXPECT_EQ(counters.inputsConverted, converted) << "seed " << seed << ", step " << step;
      EXPECT_EQ(copies, 0u) << "seed " << seed << ", step " << step;

      std::vector<Tensor> inputs;
      for (const Value &input : joined.program("forward").inputs())
        inputs.push_back(entering.at(input.name));
      std::vector<Tensor> expected = submit(cpu, joined.program("forward"), inputs);
      for (size_t i = 0; i < expected.size(); ++i) {
        Tensor found = toHost(values.at(joined.program("forward").output(i).name));
        ASSERT_EQ(std::memcmp(found.bytes(), expected[i].bytes(), expected[i].desc().spanBytes()), 0)
            << "seed " << seed << ", " << joined.program("forward").output(i).name;
      }
    }
  }
};
} // namespace

INSTANTIATE_TEST_SUITE_P(All, ChainTest,
                         testing::Values("cpu:threads=1", "sim:latency=0s,threads=1,l1=1MiB",
                                         "sim:latency=0s,threads=1,l1=1MiB,adversarial=11",
                                         "sim:streams,latency=0s,threads=1,l1=1MiB",
                                         "sim:streams,latency=0s,threads=1,l1=1MiB,adversarial=11"));

TEST_P(ChainTest, PlainLayoutsConvertNothing) {
  for (uint64_t seed = 2000; seed < 2004; ++seed)
    play(seed, "");
}

TEST_P(ChainTest, OutputsInL1AreReadThere) {
  if (!device->hasSpace(Space::DeviceL1))
    GTEST_SKIP() << "no L1";
  for (uint64_t seed = 2000; seed < 2004; ++seed)
    play(seed, "#segue.layout<space = device_l1>");
}
