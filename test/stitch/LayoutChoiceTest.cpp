//===- LayoutChoiceTest.cpp - what the choice of layouts is worth ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Layouts that the source leaves open are chosen by cost, or are dense rows: the
// same bits come out, by no more copies, and where the compiler says that nothing
// is moved nothing is.
//
//   SEGUE_LAYOUTS=1000 SegueRandomGraphTests --gtest_filter='LayoutChoice*'
//
//===----------------------------------------------------------------------===//

#include "CompiledModule.h"
#include "RandomModel.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <algorithm>
#include <numeric>

using namespace segue;
using namespace segue::test;

/// The diagnostics say what the compiler chose.
static CompiledModule compileEither(const std::string &text, bool chooses, bool training) {
  CompileOptions options;
  options.name = "layouts";
  options.training = training;
  options.optimizer = training ? "sgd" : "none";
  options.chooseLayouts = chooses;
  options.explainLayouts = true;
  options.v4 = false;
  options.threads = 1;
  CompiledModule module(text, options);
  if (!module.binary)
    throw std::runtime_error(module.diagnostics);
  return module;
}

/// Copies that the programs of a binary make.
static uint64_t copiesOf(const Binary &binary) {
  uint64_t copies = 0;
  for (const Program &program : binary.programs())
    for (const CommandCount &command : program.commandCounts())
      copies += command.kind == "ToLayout" ? command.count : 0;
  return copies;
}

static std::string bytesOf(const DeviceRef &device, const Tensor &tensor) {
  Tensor host = copyTo(device, tensor, TensorDesc(tensor.shape(), tensor.element(), {.space = Space::Host}));
  wait(host);
  return std::string(reinterpret_cast<const char *>(host.bytes()), host.desc().spanBytes());
}

/// The programs of `binary` one after the other, each given what it has the names
/// of: first `values`, then what those before it made. All results by name.
static std::map<std::string, std::string> play(const DeviceRef &device, const Binary &binary,
                                               const std::vector<std::string> &programs,
                                               std::map<std::string, Tensor> values) {
  std::map<std::string, std::string> results;
  for (const std::string &name : programs) {
    const Program &program = binary.program(name);
    std::vector<Tensor> inputs;
    for (const Value &input : program.inputs())
      inputs.push_back(values.at(input.name));
    std::vector<Tensor> outputs = submit(device, program, inputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      values[program.output(i).name] = outputs[i];
    for (size_t i = 0; i < outputs.size(); ++i)
      if (program.output(i).role != Role::Saved)
        results[program.output(i).name] = bytesOf(device, outputs[i]);
  }
  return results;
}

// Each seam is free, or as the compiler says: what one program writes the next
// reads where it lies, in columns and in tiles. Dense rows are converted.
static const char *seams = R"(
func.func @forward(%x: tensor<24x16xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %u: tensor<32x24xf32> {segue.name = "u", segue.role = #segue.role<input>})
    -> (tensor<24x24xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.dot_general %x, %x batch [] x [] contract [1] x [1]
      : tensor<24x16xf32>, tensor<24x16xf32> -> tensor<24x24xf32>
  return %y : tensor<24x24xf32>
}
func.func @first(%x: tensor<24x16xf32> {segue.name = "x", segue.role = #segue.role<input>},
                 %u: tensor<32x24xf32> {segue.name = "u", segue.role = #segue.role<input>})
    -> (tensor<24x32xf32> {segue.name = "tiled", segue.role = #segue.role<output>},
        tensor<3x4x2x24xf32> {segue.name = "turned", segue.role = #segue.role<output>}) {
  %tiled = segue.transpose %u [1, 0] : tensor<32x24xf32> -> tensor<24x32xf32>
  %p = segue.dot_general %x, %x batch [] x [] contract [1] x [1]
      : tensor<24x16xf32>, tensor<24x16xf32> -> tensor<24x24xf32>
  %turned = segue.reshape %p : tensor<24x24xf32> -> tensor<3x4x2x24xf32>
  return %tiled, %turned : tensor<24x32xf32>, tensor<3x4x2x24xf32>
}
func.func @second(%tiled: tensor<24x32xf32> {segue.name = "tiled", segue.role = #segue.role<input>, segue.layout = #segue.layout<tile = [8, 8]>},
                  %turned: tensor<3x4x2x24xf32> {segue.name = "turned", segue.role = #segue.role<input>})
    -> (tensor<24x32xf32> {segue.name = "a", segue.role = #segue.role<output>},
        tensor<1x3x24x8xf32> {segue.name = "b", segue.role = #segue.role<output>}) {
  %a = segue.tanh %tiled : tensor<24x32xf32>
  %r = segue.reshape %turned : tensor<3x4x2x24xf32> -> tensor<1x3x8x24xf32>
  %q = segue.transpose %r [0, 1, 3, 2] : tensor<1x3x8x24xf32> -> tensor<1x3x24x8xf32>
  %b, %l = segue.attention %q, %q, %q scale 0.5 : tensor<1x3x24x8xf32>, tensor<1x3x24x8xf32> -> tensor<1x3x24xf32>
  return %a, %b : tensor<24x32xf32>, tensor<1x3x24x8xf32>
}
)";

TEST(LayoutChoice, SeamsConvertNothing) {
  CompiledModule chosen = compileEither(seams, true, false), rows = compileEither(seams, false, false);
  EXPECT_NE(chosen.diagnostics.find("value tiled of 'tensor<24x32xf32>' lies in #segue.layout<space = device_dram, tile "
                                    "= [8, 8]>, which moves 6144 bytes in a step; dense rows move 12288"),
            std::string::npos)
      << chosen.diagnostics;
  EXPECT_NE(chosen.diagnostics.find("value turned of"), std::string::npos) << chosen.diagnostics;
  EXPECT_LT(copiesOf(*chosen.binary), copiesOf(*rows.binary));
  for (const char *spec : {"cpu:threads=1", "sim:threads=1,latency=0s,adversarial=7"}) {
    DeviceRef device = Device::open(spec);
    std::map<std::string, Tensor> values;
    for (const Value &input : rows.binary->program("first").inputs())
      values[input.name] = copyTo(device, randomTensor(device, input.desc().shape, uint32_t(values.size())), input.desc());
    std::map<std::string, std::string> expected, actual;
    auto conversionsOf = [&](const Binary &binary, std::map<std::string, std::string> &results) {
      uint64_t before = device->transfer().counters().inputsConverted;
      for (int step = 0; step < 2; ++step)
        results = play(device, binary, {"first", "second"}, values);
      return device->transfer().counters().inputsConverted - before;
    };
    EXPECT_EQ(conversionsOf(*rows.binary, expected), 2u) << spec;
    EXPECT_EQ(conversionsOf(*chosen.binary, actual), 0u) << spec;
    EXPECT_EQ(actual, expected) << spec;
  }
}

// A product that attention reads turned, and another product as it is.
static const char *turned = R"(
func.func @forward(%x: tensor<24x16xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %v: tensor<24x5xf32> {segue.name = "v", segue.role = #segue.role<input>})
    -> (tensor<1x3x24x8xf32> {segue.name = "a", segue.role = #segue.role<output>},
        tensor<24x5xf32> {segue.name = "b", segue.role = #segue.role<output>}) {
  %y = segue.dot_general %x, %x batch [] x [] contract [1] x [1]
      : tensor<24x16xf32>, tensor<24x16xf32> -> tensor<24x24xf32>
  %r = segue.reshape %y : tensor<24x24xf32> -> tensor<1x3x8x24xf32>
  %q = segue.transpose %r [0, 1, 3, 2] : tensor<1x3x8x24xf32> -> tensor<1x3x24x8xf32>
  %a, %l = segue.attention %q, %q, %q scale 0.5 : tensor<1x3x24x8xf32>, tensor<1x3x24x8xf32> -> tensor<1x3x24xf32>
  %b = segue.dot_general %y, %v batch [] x [] contract [1] x [0]
      : tensor<24x24xf32>, tensor<24x5xf32> -> tensor<24x5xf32>
  return %a, %b : tensor<1x3x24x8xf32>, tensor<24x5xf32>
}
)";

TEST(LayoutChoice, TemporariesLieAsTheyAreRead) {
  CompiledModule chosen = compileEither(turned, true, false), rows = compileEither(turned, false, false);
  EXPECT_NE(chosen.diagnostics.find("@forward: a temporary of 'tensor<24x24xf32>' lies in strides [1, 24], which moves "
                                    "4320 bytes less than dense rows"),
            std::string::npos)
      << chosen.diagnostics;
  EXPECT_EQ(copiesOf(*chosen.binary), 0u);
  EXPECT_EQ(copiesOf(*rows.binary), 1u);
  DeviceRef device = Device::open("cpu:threads=1");
  std::map<std::string, Tensor> values{{"x", randomTensor(device, {24, 16}, 1)}, {"v", randomTensor(device, {24, 5}, 2)}};
  EXPECT_EQ(play(device, *chosen.binary, {"forward"}, values), play(device, *rows.binary, {"forward"}, values));
}

/// Draws a layout of a tensor of `shape`, as its encoding: rows, another order, or tiles.
static std::string drawLayout(std::mt19937_64 &random, const std::vector<int64_t> &shape) {
  if (shape.empty() || random() % 3 == 0)
    return "";
  if (random() % 4 == 0)
    return "#segue.layout<tile = [4]>";
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t dim : order) {
    strides[dim] = stride;
    stride *= shape[dim];
  }
  std::string text = "#segue.layout<strides = [";
  for (size_t i = 0; i < strides.size(); ++i)
    text += (i ? ", " : "") + std::to_string(strides[i]);
  return text + "]>";
}

/// A product, read by attention, by a kernel and by other products, through random
/// transposes. Inputs and outputs are declared in random layouts.
static std::string drawModule(std::mt19937_64 &random) {
  int64_t heads = 1 + int64_t(random() % 3), rows = 1 + int64_t(random() % 9), columns = 2 + int64_t(random() % 12);
  int64_t m = heads * rows, k = 1 + int64_t(random() % 20), n = columns;
  auto type = [](std::vector<int64_t> shape) { return tensorType(shape, "f32"); };
  std::string arguments, results, types, body, returned;
  auto attributes = [&](const std::string &name, const char *role, const std::vector<int64_t> &shape) {
    std::string layout = drawLayout(random, shape);
    return " {segue.name = \"" + name + "\", segue.role = #segue.role<" + role + ">" +
           (layout.empty() ? "" : ", segue.layout = " + layout) + "}";
  };
  auto take = [&](const std::string &name, const std::vector<int64_t> &shape) {
    arguments += (arguments.empty() ? "%" : ", %") + name + ": " + type(shape) + attributes(name, "input", shape);
  };
  auto give = [&](const std::string &name, const std::vector<int64_t> &shape) {
    const char *comma = results.empty() ? "" : ", ";
    results += comma + type(shape) + attributes(name, "output", shape);
    types += comma + type(shape);
    returned += comma + ("%" + name);
  };
  auto product = [&](const std::string &name, const std::string &left, std::vector<int64_t> l, const std::string &right,
                     std::vector<int64_t> r) {
    body += "  %" + name + " = segue.dot_general %" + left + ", %" + right + " batch [] x [] contract [1] x [0] : " +
            type(l) + ", " + type(r) + " -> " + type({l[0], r[1]}) + "\n";
  };
  auto change = [&](const std::string &op, const std::string &name, const std::string &from, std::vector<int64_t> before,
                    const std::string &how, std::vector<int64_t> after) {
    body += "  %" + name + " = segue." + op + " %" + from + how + " : " + type(before) + " -> " + type(after) + "\n";
  };
  take("x", {m, k});
  take("w", {k, n});
  product("y", "x", {m, k}, "w", {k, n});
  bool isTurned = random() % 2;
  std::vector<int64_t> seen = isTurned ? std::vector<int64_t>{1, heads, columns, rows}
                                       : std::vector<int64_t>{1, heads, rows, columns};
  change("reshape", "r", "y", {m, n}, "", {1, heads, rows, columns});
  change("transpose", "q", "r", {1, heads, rows, columns}, isTurned ? " [0, 1, 3, 2]" : " [0, 1, 2, 3]", seen);
  if (random() % 4) {
    body += "  %a, %l = segue.attention %q, %q, %q scale 0.5 : " + type(seen) + ", " + type(seen) + " -> " +
            type({1, heads, seen[2]}) + "\n";
    give("a", seen);
  }
  if (random() % 2) {
    take("v", {n, 3});
    product("b", "y", {m, n}, "v", {n, 3});
    give("b", {m, 3});
  }
  if (results.empty() || random() % 2) {
    take("u", {m, 2});
    change("transpose", "t", "y", {m, n}, " [1, 0]", {n, m});
    product("c", "t", {n, m}, "u", {m, 2});
    give("c", {n, 2});
  }
  return "func.func @forward(" + arguments + ")\n    -> (" + results + ") {\n" + body + "  return " + returned + " : " +
         types + "\n}\n";
}

TEST(LayoutChoice, RandomModulesKeepTheirBits) {
  const char *text = std::getenv("SEGUE_LAYOUTS");
  uint64_t count = text ? std::strtoull(text, nullptr, 10) : 24, chosenCopies = 0, rowCopies = 0, ordered = 0;
  DeviceRef device = Device::open("cpu:threads=1");
  for (uint64_t seed = 0; seed < count; ++seed) {
    std::mt19937_64 random(seed);
    std::string source = drawModule(random);
    CompiledModule chosen = compileEither(source, true, false), rows = compileEither(source, false, false);
    chosenCopies += copiesOf(*chosen.binary);
    rowCopies += copiesOf(*rows.binary);
    ordered += chosen.diagnostics.find("lies in strides") != std::string::npos;
    std::map<std::string, Tensor> values;
    for (const Value &input : rows.binary->program("forward").inputs())
      values[input.name] = randomTensor(device, input.desc().shape, uint32_t(values.size()));
    EXPECT_EQ(play(device, *chosen.binary, {"forward"}, values), play(device, *rows.binary, {"forward"}, values))
        << "seed " << seed << "\n"
        << source;
  }
  EXPECT_GT(ordered, 0u);
  EXPECT_LT(chosenCopies, rowCopies);
  std::printf("%lu modules, %lu with a temporary that is not in dense rows; %lu copies, %lu in dense rows\n",
              (unsigned long)count, (unsigned long)ordered, (unsigned long)chosenCopies, (unsigned long)rowCopies);
}
