//===- RandomGraphTest.cpp - values of random graphs ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Random graphs keep their values and gradients through every pass of the
// compiler, by the reference interpreter, and then as programs that the runtime
// plays: on the cpu, and on a simulated device that overwrites all memory that
// was freed or not yet written.
//
//   SEGUE_GRAPHS=100000 SegueRandomGraphTests            more of them
//   SEGUE_GRAPH=17 SegueRandomGraphTests                 this one
//
//===----------------------------------------------------------------------===//

#include "CompiledModule.h"
#include "GraphPasses.h"
#include "RandomGraph.h"
#include <cstring>

using namespace segue;
using namespace segue::test;

/// A kernel may differ by so much in f32, relative to the greatest magnitude of a
/// tensor: the graphs are a few dozen ops deep.
static constexpr double kTolerance = 2e-4;
/// A graph of more elements is interpreted at the ends of the pipelines alone.
static constexpr int64_t kElementsForEveryPass = 20000;

/// Returns what a run of @forward and @backward gives, by name.
static GraphTensors play(const DeviceRef &device, const Binary &binary, const GraphTensors &given) {
  std::map<std::string, Tensor> values;
  GraphTensors results;
  for (const char *name : {"forward", "backward"}) {
    if (!binary.hasProgram(name))
      continue;
    const Program &program = binary.program(name);
    std::vector<Tensor> inputs;
    for (const Value &input : program.inputs()) {
      auto known = values.find(input.name);
      if (known != values.end()) {
        inputs.push_back(known->second);
        continue;
      }
      Tensor host = Tensor::onHost(device, input.desc().shape, ElementType::f32);
      const std::vector<double> &elements = given.at(input.name);
      for (size_t i = 0; i < elements.size(); ++i)
        host.data<float>()[i] = float(elements[i]);
      inputs.push_back(host);
    }
    std::vector<Tensor> outputs = submit(device, program, inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const std::string &output = program.output(i).name;
      values[output] = outputs[i];
      if (!output.starts_with("saved.")) {
        std::vector<float> elements = segue::values(outputs[i]);
        results[output].assign(elements.begin(), elements.end());
      }
    }
  }
  return results;
}

static void checkGraph(uint64_t seed, int64_t &interpreted) {
  RandomGraph graph = drawGraph(seed);
  bool everyPass = graph.elements <= kElementsForEveryPass;
  GraphAnswers answers = checkPasses(graph.text, seed, everyPass);
  interpreted += answers.interpreted;
  if (!answers.failure.empty())
    FAIL() << answers.failure;
  CompileOptions options;
  options.name = "graph";
  options.optimizer = "none";
  options.v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && seed % 2;
  options.v3 = !options.v4;
  options.threads = 1;
  CompiledModule module(graph.text, options);
  if (!module.binary)
    FAIL() << module.diagnostics;
  std::string simulated = "sim:dram=64MiB,threads=1,adversarial=" + std::to_string(seed);
  if (seed & 4)
    simulated += ",streams";
  for (const std::string &spec : {std::string("cpu:threads=1"), simulated}) {
    GraphTensors actual = play(Device::open(spec), *module.binary, answers.given);
    EXPECT_EQ(actual.size(), answers.expected.size());
    for (auto &[name, expected] : answers.expected)
      EXPECT_EQ(differenceOf(actual[name], expected, kTolerance), "") << name << " on " << spec;
  }
}

namespace {
constexpr uint64_t shards = 4;
class RandomGraphTest : public testing::TestWithParam<uint64_t> {};
} // namespace

INSTANTIATE_TEST_SUITE_P(Shard, RandomGraphTest, testing::Range(uint64_t(0), shards));

TEST_P(RandomGraphTest, KeepsItsValuesAndGradients) {
  auto number = [](const char *name, uint64_t absent) {
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : absent;
  };
  uint64_t count = number("SEGUE_GRAPHS", 20), only = number("SEGUE_GRAPH", UINT64_MAX), graphs = 0;
  int64_t interpreted = 0;
  uint64_t end = only == UINT64_MAX ? count : only + 1;
  for (uint64_t seed = GetParam(); seed < end; seed += shards) {
    if (only != UINT64_MAX && seed != only)
      continue;
    ++graphs;
    try {
      checkGraph(seed, interpreted);
    } catch (const std::exception &error) {
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) {
      std::string text = drawGraph(seed).text;
      text.resize(std::min<size_t>(text.size(), 6000));
      FAIL() << "SEGUE_GRAPH=" << seed << "\n" << text;
    }
  }
  if (graphs)
    std::printf("%lu graphs, %ld modules interpreted\n", (unsigned long)graphs, (long)interpreted);
}
