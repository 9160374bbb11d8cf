//===- OnDemandTest.cpp - every layout that the compiler lists ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The compiler lists layouts that the last command of an output can write at no
// cost. For each that it lists there is a reader here, compiled apart, that
// wants just that: after two conversions the producer writes it, nothing is
// converted any more, and the reader sees the same bits as before. What is listed
// for an input is read where it is given.
//
//===----------------------------------------------------------------------===//

#include "CompiledModule.h"
#include "segue/runtime/Transfer/TransferEngine.h"

using namespace segue;

static const std::string product = R"(
func.func @forward(%a: tensor<48x32xf32> {segue.name = "a", segue.role = #segue.role<input>},
                   %b: tensor<32x40xf32> {segue.name = "b", segue.role = #segue.role<frozen>})
    -> (tensor<48x40xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.dot_general %a, %b batch [] x [] contract [1] x [0]
      : tensor<48x32xf32>, tensor<32x40xf32> -> tensor<48x40xf32>
  return %y : tensor<48x40xf32>
})";

static const std::string attention = R"(
func.func @forward(%q: tensor<2x4x16x8xf32> {segue.name = "q", segue.role = #segue.role<input>},
                   %k: tensor<2x4x16x8xf32> {segue.name = "k", segue.role = #segue.role<input>})
    -> (tensor<2x4x16x8xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y, %lse = segue.attention %q, %k, %k causal scale 0.125
      : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
  return %y : tensor<2x4x16x8xf32>
})";

static const std::string copy = R"(
func.func @forward(%x: tensor<24x36xf32> {segue.name = "x", segue.role = #segue.role<input>})
    -> (tensor<36x24xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.transpose %x [1, 0] : tensor<24x36xf32> -> tensor<36x24xf32>
  return %y : tensor<36x24xf32>
})";

/// Returns what stands in IR: "2x3xf32", "space = device_dram, strides = [3, 1]".
static std::string typeOf(const TensorDesc &desc) {
  std::string text;
  for (int64_t extent : desc.shape)
    text += std::to_string(extent) + "x";
  return text + std::string(name(desc.element));
}

static std::string layoutOf(const Layout &layout) {
  std::string text = "space = " + std::string(name(layout.space));
  if (!layout.strides.empty()) {
    text += ", strides = [";
    for (const char *comma = ""; int64_t stride : layout.strides)
      text += std::exchange(comma, ", ") + std::to_string(stride);
    text += "]";
  }
  return text;
}

/// Doubles what it is given in `wanted`.
static std::string readerOf(const TensorDesc &wanted) {
  std::string type = "tensor<" + typeOf(wanted) + ">";
  return "func.func @forward(%y: " + type +
         " {segue.name = \"y\", segue.role = #segue.role<input>, segue.layout = #segue.layout<" +
         layoutOf(wanted.layout) + ">}) -> (" + type +
         " {segue.name = \"z\", segue.role = #segue.role<output>}) {\n  %z = segue.add %y, %y : " + type +
         "\n  return %z : " + type + "\n}";
}

namespace {
struct Case {
  const char *name;
  const std::string *producer;
};
class OnDemandTest : public testing::TestWithParam<std::tuple<Case, const char *>> {};
} // namespace

TEST_P(OnDemandTest, EveryListedLayoutIsWritten) {
  const auto &[test, spec] = GetParam();
  Binary listed = compiled("producer", *test.producer);
  const std::vector<std::shared_ptr<const TensorDesc>> alternatives = listed.program("forward").output(0).alternatives;
  ASSERT_FALSE(alternatives.empty()) << "the compiler lists none";
  for (const auto &wanted : alternatives) {
    DeviceRef device = Device::open(spec);
    if (!device->hasSpace(wanted->layout.space))
      continue;
    // Of its own, which nobody has asked for anything.
    Binary producer = compiled("producer", *test.producer), reader = compiled("reader", readerOf(*wanted));
    std::vector<Tensor> inputs;
    for (const Value &input : producer.program("forward").inputs())
      inputs.push_back(copyTo(device, randomTensor(device, input.desc().shape, uint32_t(inputs.size())), input.desc()));
    std::vector<float> first;
    for (int step = 0; step < 5; ++step) {
      std::vector<Tensor> made = submit(device, producer.program("forward"), inputs);
      bool isWritten = hasLayout(made[0], reader.program("forward").input(0).desc().layout);
      EXPECT_EQ(isWritten, step >= 2) << "step " << step << ", " << wanted->str();
      std::vector<float> read = values(submit(device, reader.program("forward"), made)[0]);
      if (step == 0)
        first = read;
      EXPECT_EQ(read, first) << "step " << step << ", " << wanted->str();
    }
    EXPECT_EQ(Executor(device, reader.program("forward")).counters().inputsConverted, 2u) << wanted->str();
  }
}

// Inputs are listed for device_l1 too: given there they are read there.
TEST_P(OnDemandTest, InputsAreReadInL1) {
  const auto &[test, spec] = GetParam();
  DeviceRef device = Device::open(spec);
  if (!device->hasSpace(Space::DeviceL1))
    GTEST_SKIP() << "no L1";
  Binary binary = compiled("reader", *test.producer);
  const Program &program = binary.program("forward");
  std::vector<Tensor> inDram, inL1;
  for (const Value &input : program.inputs()) {
    ASSERT_EQ(input.alternatives.size(), 1u);
    Tensor host = randomTensor(device, input.desc().shape, uint32_t(inDram.size()));
    inDram.push_back(copyTo(device, host, input.desc()));
    inL1.push_back(copyTo(device, host, *input.alternatives[0]));
  }
  std::vector<float> expected = values(submit(device, program, inDram)[0]);
  EXPECT_EQ(values(submit(device, program, inL1)[0]), expected);
  EXPECT_EQ(Executor(device, program).counters().inputsConverted, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, OnDemandTest,
                         testing::Combine(testing::Values(Case{"Product", &product}, Case{"Attention", &attention},
                                                          Case{"Copy", &copy}),
                                          testing::Values("cpu:threads=1", "sim:latency=0s,dram=64MiB,l1=1MiB",
                                                          "sim:latency=0s,dram=64MiB,l1=1MiB,adversarial=5",
                                         "sim:streams,latency=0s,dram=64MiB,l1=1MiB",
                                         "sim:streams,latency=0s,dram=64MiB,l1=1MiB,adversarial=5")),
                         [](const auto &info) {
                           std::string device = std::get<1>(info.param);
                           bool adversary = device.find("adversarial") != std::string::npos;
                           bool streams = device.find("streams") != std::string::npos;
                           return std::string(std::get<0>(info.param).name) + "On" + (streams ? "Streams" : "") +
                                  (adversary                   ? "Adversary"
                                   : device.starts_with("cpu") ? "Cpu"
                                                               : "Sim");
                         });
