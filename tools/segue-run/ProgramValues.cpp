//===- ProgramValues.cpp - inputs and outputs by name ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ProgramValues.h"
#include "NpyFile.h"
#include "TensorText.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cmath>
#include <cstdio>
#include <cstring>
#include <list>

namespace segue::tool {

std::vector<std::string> assignTexts(std::span<const std::string> arguments, std::span<const Value> values,
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

/// Returns numbers between -0.5 and 0.5, the same in every run; integers are 0, which every
/// table has as an index.
static Tensor makeInput(const DeviceRef &device, const TensorDesc &desc) {
  Tensor host = Tensor::onHost(device, desc.shape, ElementType::f32);
  for (uint64_t i = 0; i < host.elementCount(); ++i)
    host.data<float>()[i] = float((i * 2654435761u >> 8 & 0xffff)) / 65536.0f - 0.5f;
  if (!isFloat(desc.element))
    std::memset(host.bytes(), 0, host.desc().spanBytes());
  return copyTo(device, host, desc);
}

DeviceRef openForValues(const std::string &spec) {
  DeviceRef device = Device::open(spec);
  if (!device->hasBytes())
    throw Error(ErrorCode::InvalidArgument, "device \"" + spec +
                                                "\" computes nothing: there are no values to give it, and nothing to measure; "
                                                "segue-run train rehearses steps on it, and fit and plan forecast them");
  return device;
}

std::vector<Tensor> makeInputs(const DeviceRef &device, const Program &program,
                               std::span<const std::string> arguments) {
  std::vector<std::string> texts = assignTexts(arguments, program.inputs(), "input");
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < texts.size(); ++i) {
    const TensorDesc &desc = program.inputs()[i].desc();
    Tensor given = texts[i].empty() ? Tensor() : parseTensor(device, texts[i]);
    bool fits = given && given.shape() == desc.shape && given.element() == desc.element;
    inputs.push_back(!given ? makeInput(device, desc) : fits ? copyTo(device, given, desc) : given);
  }
  return inputs;
}

std::filesystem::path npyPath(const std::string &text) {
  if (!text.starts_with('@') && !text.ends_with(".npy"))
    throw Error(ErrorCode::InvalidArgument, "--output " + text + ": write @file.npy or name=@file.npy");
  std::filesystem::path path = text.substr(text.starts_with('@'));
  OutputFile::check(path);
  return path;
}

bool matches(const std::string &name, const Tensor &given, const Tensor &expected, double tolerance) {
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

void writeFiles(std::span<const NamedOutput> outputs) {
  std::list<OutputFile> written;
  for (const NamedOutput &output : outputs)
    if (!output.file.empty())
      writeNpy(written.emplace_back(output.file), output.tensor);
  for (OutputFile &file : written)
    file.commit();
}

void printTensors(std::span<const NamedOutput> outputs) {
  for (const NamedOutput &output : outputs)
    if (output.file.empty())
      std::printf("%s: %s\n", output.name.c_str(), formatTensor(output.tensor).c_str());
}

std::vector<double> timeSubmits(const Executor &executor, std::vector<Tensor> &inputs, std::vector<Tensor> &outputs,
                                int64_t repeat, int64_t warmUps) {
  std::vector<double> seconds;
  for (int64_t i = -warmUps; i < repeat; ++i) {
    auto begin = std::chrono::steady_clock::now();
    executor.run(std::span(inputs), std::span(outputs));
    for (const Tensor &output : outputs)
      wait(output);
    std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (i >= 0)
      seconds.push_back(taken.count());
  }
  std::ranges::sort(seconds);
  return seconds;
}

} // namespace segue::tool
