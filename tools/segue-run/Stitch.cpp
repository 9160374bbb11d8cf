//===- Stitch.cpp - segue-run stitch --------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Runs programs that were compiled apart one after another, and says what the
// seams between them cost.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "ProgramValues.h"
#include "TensorText.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/StitchReport.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::tool {

namespace {
/// An output that the command line speaks of.
struct OutputText {
  size_t part = 0, output = 0;
  std::string text;
};
} // namespace

/// Returns "a,b,a" as indices; all parts once if it is empty.
static std::vector<size_t> parseSchedule(std::string_view text, const StitchParts &parts) {
  std::vector<size_t> schedule;
  if (text.empty())
    for (size_t i = 0; i < parts.parts().size(); ++i)
      schedule.push_back(i);
  while (!text.empty()) {
    size_t comma = text.find(',');
    schedule.push_back(parts.find(text.substr(0, comma)));
    text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
  }
  return schedule;
}

/// Parses `[part.][output=]text`; without a part, an output of the last one is meant.
static std::vector<OutputText> findOutputs(const std::vector<std::string> &arguments, const StitchParts &parts,
                                           size_t last) {
  std::vector<OutputText> found;
  std::vector<std::string> ofLast;
  for (const std::string &argument : arguments) {
    NamedText named = splitName(argument);
    std::optional<ParameterRef> qualified;
    if (parts.parts()[last].program().findOutput(named.name) < 0)
      qualified = splitModule(named.name, parts.names());
    if (!qualified) {
      ofLast.push_back(argument);
      continue;
    }
    size_t part = parts.find(qualified->module);
    int output = parts.parts()[part].program().findOutput(qualified->name);
    if (output < 0)
      throw Error(ErrorCode::NameUnknown, "part \"" + qualified->module + "\" has no output \"" + qualified->name +
                                              "\"; segue-run inspect lists them");
    found.push_back({part, size_t(output), named.text});
  }
  std::vector<std::string> texts = assignTexts(ofLast, parts.parts()[last].program().outputs(), "output");
  for (size_t i = 0; i < texts.size(); ++i)
    if (!texts[i].empty())
      found.push_back({last, i, texts[i]});
  return found;
}

/// Returns the outputs that are written to files, then the other outputs of the last part.
static std::vector<NamedOutput> chooseOutputs(const StitchParts &parts, size_t last,
                                              const std::vector<OutputText> &files) {
  std::vector<NamedOutput> outputs;
  const std::vector<Value> &values = parts.parts()[last].program().outputs();
  std::vector<bool> written(values.size());
  for (const OutputText &file : files) {
    const Part &part = parts.parts()[file.part];
    outputs.push_back({part.program().outputs()[file.output].name, part.outputs[file.output], npyPath(file.text)});
    if (file.part == last)
      written[file.output] = true;
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (!written[i] && values[i].role != Role::Saved)
      outputs.push_back({values[i].name, parts.parts()[last].outputs[i], {}});
  return outputs;
}

static bool matchesAll(const StitchParts &parts, const std::vector<OutputText> &expected,
                       const std::vector<Tensor> &tensors, double tolerance) {
  bool same = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Part &part = parts.parts()[expected[i].part];
    const Tensor &given = part.outputs[expected[i].output];
    if (!given)
      throw Error(ErrorCode::InvalidArgument, "part \"" + part.name + "\" has not been submitted; --expect needs it");
    same &= matches(part.program().outputs()[expected[i].output].name, given, tensors[i], tolerance);
  }
  return same;
}

int stitch(const StitchCommand &options) {
  DeviceRef device = openForValues(options.device);
  StitchParts parts(device, options);
  std::vector<size_t> schedule = parseSchedule(options.schedule, parts);
  size_t last = schedule.back();
  std::vector<OutputText> files = findOutputs(options.outputs, parts, last);
  for (const OutputText &file : files)
    npyPath(file.text); // before anything runs
  if (!options.hints.empty())
    OutputFile::check(options.hints);
  std::vector<OutputText> expected = findOutputs(options.expected, parts, last);
  std::vector<Tensor> tensors;
  for (const OutputText &output : expected)
    tensors.push_back(parseTensor(device, output.text));

  StitchReport &report = stitchReport(*device);
  Json steps = Json::array();
  device->transfer().record(0); // what preparing has cost is not the programs'
  for (int64_t step = 1; step <= options.repeat; ++step) {
    auto begin = std::chrono::steady_clock::now();
    for (size_t part : schedule)
      parts.submit(part);
    for (size_t part : schedule)
      for (const Tensor &output : parts.parts()[part].outputs)
        wait(output);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    report.endStep();
    StitchTelemetry line = device->transfer().record(step);
    if (options.json)
      steps.push_back(line.json());
    if (options.repeat > 1)
      std::fprintf(stderr, "step %lld: %.3f ms, %llu of %llu inputs converted\n", (long long)step,
                   seconds.count() * 1e3, (unsigned long long)line.inputs_converted, (unsigned long long)line.inputs);
  }

  parts.checkWeights();
  bool same = matchesAll(parts, expected, tensors, options.tolerance);
  std::vector<NamedOutput> outputs = chooseOutputs(parts, last, files);
  writeFiles(outputs);
  if (!options.hints.empty())
    report.writeHints(options.hints);
  if (options.json) {
    Json json{{"outputs", Json::object()}, {"steps", std::move(steps)}, {"report", report.toJson()}};
    for (const NamedOutput &output : outputs)
      if (output.file.empty())
        json["outputs"][output.name] = formatTensor(output.tensor);
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    printTensors(outputs);
    if (options.report)
      std::printf("%s", report.table().c_str());
  }
  return same ? Done : Unexpected;
}

} // namespace segue::tool
