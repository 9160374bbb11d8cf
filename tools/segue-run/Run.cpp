//===- Run.cpp - segue-run run --------------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "ProgramValues.h"
#include "TensorText.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include "segue/runtime/Reports/Roofline.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::tool {

static std::vector<Tensor> readInputs(const DeviceRef &device, const Program &program, const RunOptions &options) {
  std::vector<std::string> texts = assignTexts(options.inputs, program.inputs(), "input");
  std::optional<SafetensorsFile> weights;
  if (!options.weights.empty())
    weights = SafetensorsFile::open(options.weights);
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Value &value = program.inputs()[i];
    if (!texts[i].empty())
      inputs.push_back(parseTensor(device, texts[i]));
    else if (weights && weights->find(value.name))
      inputs.push_back(weights->tensor(device, value.name));
    else
      throw Error(ErrorCode::MissingInput, "program \"" + program.name() + "\", input " + std::to_string(i) + " (\"" +
                                               value.name + "\", " + value.desc().str() +
                                               "): no tensor was given; use --input or --weights");
    // A file or literal is the caller's to shape; the program may write into
    // what it declares to be in place, so it gets a copy of its own.
    if (inputs.back().shape() == value.desc().shape && inputs.back().element() == value.desc().element)
      inputs.back() = copyTo(device, inputs.back(), value.desc());
  }
  for (const Tensor &input : inputs)
    wait(input);
  if (weights)
    weights->checkUnchanged();
  return inputs;
}

int run(const RunOptions &options) {
  DeviceRef device = openForValues(options.device);
  Binary binary = loadBinary(options.file, options);
  const Program &program = binary.program(options.program);
  std::vector<std::string> files = assignTexts(options.outputs, program.outputs(), "output");
  std::vector<NamedOutput> results;
  for (size_t i = 0; i < files.size(); ++i)
    results.push_back(
        {program.outputs()[i].name, Tensor(), files[i].empty() ? std::filesystem::path() : npyPath(files[i])});
  std::vector<std::string> texts = assignTexts(options.expected, program.outputs(), "output");
  std::vector<Tensor> expected;
  for (const std::string &text : texts)
    expected.push_back(text.empty() ? Tensor() : parseTensor(device, text));

  std::vector<Tensor> inputs = readInputs(device, program, options);
  Executor executor(device, program);
  std::vector<Tensor> outputs;
  std::optional<CommandTimer> timer;
  double profiled = 0;
  for (int64_t i = 0; i < options.repeat; ++i) {
    // The first run plans and warms up: it is timed and profiled only alone.
    if (options.profile && i == std::min<int64_t>(1, options.repeat - 1))
      timer.emplace(device);
    auto begin = std::chrono::steady_clock::now();
    outputs = executor.run(inputs);
    if (timer)
      device->drain();
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    profiled += timer ? seconds.count() : 0;
    if (options.repeat > 1)
      std::fprintf(stderr, "run %lld: %.3f ms\n", (long long)i, seconds.count() * 1e3);
  }
  if (timer) {
    timer->stop();
    uint64_t runs = uint64_t(std::max<int64_t>(1, options.repeat - 1));
    Roofline table({options.device, device->threads(), "run", runs, profiled}, timer->times(), speedOf(*device));
    std::fputs(table.text().c_str(), stderr);
  }
  bool same = true;
  for (size_t i = 0; i < expected.size(); ++i)
    if (expected[i])
      same &= matches(program.outputs()[i].name, outputs[i], expected[i], options.tolerance);
  for (size_t i = 0; i < results.size(); ++i)
    results[i].tensor = outputs[i];
  writeFiles(results);
  if (options.json) {
    Json object = Json::object();
    for (const NamedOutput &result : results)
      if (result.file.empty())
        object[result.name] = formatTensor(result.tensor);
    std::printf("%s\n", object.dump(2).c_str());
  } else {
    printTensors(results);
  }
  return same ? Done : Unexpected;
}

} // namespace segue::tool
