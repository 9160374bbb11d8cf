//===- Run.cpp - segue-run run --------------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "NpyFile.h"
#include "TensorText.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <chrono>
#include <cmath>
#include <cstdio>
#include <list>
#include <nlohmann/json.hpp>

namespace segue::tool {

/// Sorts `[name=]text` arguments to the values of a program: by name, or the
/// next value that no argument names. Empty where nothing was given.
static std::vector<std::string> assign(const std::vector<std::string> &arguments, const std::vector<Value> &values,
                                       const char *what) {
  std::vector<std::string> texts(values.size());
  std::vector<std::string> unnamed;
  for (const std::string &argument : arguments) {
    NamedText named = splitName(argument);
    if (named.name.empty()) {
      unnamed.push_back(std::move(named.text));
      continue;
    }
    size_t index = 0;
    while (index < values.size() && values[index].name != named.name)
      ++index;
    if (index == values.size())
      throw Error(ErrorCode::NameUnknown,
                  std::string("the program has no ") + what + " \"" + named.name + "\"; segue-run inspect lists them");
    if (!texts[index].empty())
      throw Error(ErrorCode::InvalidArgument, std::string(what) + " \"" + named.name + "\" is given twice");
    texts[index] = std::move(named.text);
  }
  size_t next = 0;
  for (std::string &text : unnamed) {
    while (next < texts.size() && !texts[next].empty())
      ++next;
    if (next == texts.size())
      throw Error(ErrorCode::InvalidArgument,
                  std::string("the program has ") + std::to_string(values.size()) + " " + what + "s, more are given");
    texts[next] = std::move(text);
  }
  return texts;
}

static std::vector<Tensor> readInputs(const DeviceRef &device, const Program &program, const RunOptions &options) {
  std::vector<std::string> texts = assign(options.inputs, program.inputs(), "input");
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
  return inputs;
}

/// Compares as numpy.allclose does, NaN equal to NaN. Says where it differs.
static bool matches(const std::string &name, const Tensor &given, const Tensor &expected, double tolerance) {
  if (given.shape() != expected.shape() || given.element() != expected.element()) {
    std::fprintf(stderr, "output \"%s\" is %s, expected %s\n", name.c_str(), given.desc().str().c_str(),
                 expected.desc().str().c_str());
    return false;
  }
  Tensor a = toHost(given), b = toHost(expected);
  uint64_t differing = 0, first = 0;
  for (uint64_t i = a.elementCount(); i-- > 0;) {
    double x = elementAt(a, i), y = elementAt(b, i);
    bool same = x == y || (std::isnan(x) && std::isnan(y)) ||
                std::fabs(x - y) <= tolerance * (1 + std::fabs(y)); // false for NaN
    if (!same)
      ++differing, first = i;
  }
  if (differing)
    std::fprintf(stderr, "output \"%s\" differs in %llu of %llu elements; the first is %llu: %.9g, expected %.9g\n",
                 name.c_str(), (unsigned long long)differing, (unsigned long long)a.elementCount(),
                 (unsigned long long)first, elementAt(a, first), elementAt(b, first));
  return !differing;
}

/// Files are written first and put in place together at the end: if one cannot
/// be written, none appears.
static void printOutputs(const Program &program, const std::vector<Tensor> &outputs,
                         const std::vector<std::string> &files, bool json) {
  std::list<OutputFile> written;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!files[i].empty())
      writeNpy(written.emplace_back(files[i].substr(1)), outputs[i]);
  for (OutputFile &file : written)
    file.commit();

  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Value &value = program.outputs()[i];
    if (!files[i].empty())
      continue;
    if (json)
      object[value.name] = formatTensor(outputs[i]);
    else
      std::printf("%s: %s\n", value.name.c_str(), formatTensor(outputs[i]).c_str());
  }
  if (json)
    std::printf("%s\n", object.dump(2).c_str());
}

int run(const RunOptions &options) {
  DeviceRef device = Device::open(options.device);
  Binary binary = loadBinary(options.file, options);
  const Program &program = binary.program(options.program);
  std::vector<std::string> files = assign(options.outputs, program.outputs(), "output");
  for (const std::string &file : files)
    if (!file.empty() && !file.starts_with('@'))
      throw Error(ErrorCode::InvalidArgument, "--output " + file + ": write @file.npy or name=@file.npy");
  std::vector<std::string> texts = assign(options.expected, program.outputs(), "output");
  std::vector<Tensor> expected;
  for (const std::string &text : texts)
    expected.push_back(text.empty() ? Tensor() : parseTensor(device, text));

  std::vector<Tensor> inputs = readInputs(device, program, options);
  Executor executor(device, program);
  std::vector<Tensor> outputs;
  for (int64_t i = 0; i < options.repeat; ++i) {
    // The first run plans and warms up: it is timed and profiled only alone.
    executor.setProfiling(options.profile && (options.repeat == 1 || i > 0));
    auto begin = std::chrono::steady_clock::now();
    outputs = executor.run(inputs);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (options.repeat > 1)
      std::fprintf(stderr, "run %lld: %.3f ms\n", (long long)i, seconds.count() * 1e3);
  }
  if (options.profile)
    printProfile(program.name(), executor.profile());
  bool same = true;
  for (size_t i = 0; i < expected.size(); ++i)
    if (expected[i])
      same &= matches(program.outputs()[i].name, outputs[i], expected[i], options.tolerance);
  printOutputs(program, outputs, files, options.json);
  return same ? Done : Unexpected;
}

} // namespace segue::tool
