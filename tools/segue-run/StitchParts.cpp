//===- StitchParts.cpp - programs that feed each other --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "StitchParts.h"
#include "TensorText.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <filesystem>
#include <set>

namespace segue::tool {

static std::string inQuotes(std::string_view text) { return "\"" + std::string(text) + "\""; }

/// Returns true for values that are found by name alone: what the part before gives is never meant.
static bool isKept(Role role) { return role == Role::Parameter || role == Role::Frozen || role == Role::State; }

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

/// Splits `file:program`; a file may have colons in its name.
static std::pair<std::string, std::string> splitProgram(const std::string &text) {
  size_t colon = text.rfind(':');
  if (colon == text.npos || text.find('/', colon) != text.npos || std::filesystem::exists(text))
    return {text, "forward"};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

void StitchParts::load(const std::vector<std::string> &programs, const CommonOptions &options) {
  std::map<std::string, Binary> binaries; // stdin can be read once
  std::map<std::string, int> stems;
  std::set<std::string> names;
  std::vector<std::pair<std::string, std::string>> split;
  for (const std::string &text : programs) {
    auto [path, program] = split.emplace_back(splitProgram(text));
    if (!binaries.contains(path))
      binaries.emplace(path, loadBinary(path, options));
    ++stems[moduleName(path)];
  }
  for (const auto &[path, program] : split) {
    std::string stem = moduleName(path);
    std::string name = stems[stem] == 1 || program == "forward" ? stem : stem + ":" + program;
    names.insert(name);
    parts_.push_back({name, Executor(device_, binaries.at(path).program(program)), {}, {}, {}, 0});
    parts_.back().sources.resize(parts_.back().program().inputs().size());
    parts_.back().inputs.resize(parts_.back().program().inputs().size());
    parts_.back().outputs.resize(parts_.back().program().outputs().size());
  }
  if (names.size() != parts_.size())
    for (size_t i = 0; i < parts_.size(); ++i)
      parts_[i].name = std::to_string(i);
}

std::vector<std::string> StitchParts::names() const {
  std::vector<std::string> names;
  for (const Part &part : parts_)
    names.push_back(part.name);
  return names;
}

size_t StitchParts::find(std::string_view name) const {
  std::vector<std::string_view> known;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].name == name)
      return i;
    known.push_back(parts_[i].name);
  }
  throw Error(ErrorCode::NameUnknown, "there is no part " + inQuotes(name) + nearestHint(name, known));
}

//===----------------------------------------------------------------------===//
// Given tensors
//===----------------------------------------------------------------------===//

void StitchParts::read(const StitchArguments &arguments) {
  for (const std::string &argument : arguments.inputs) {
    NamedText named = splitName(argument);
    if (named.name.empty())
      throw Error(ErrorCode::InvalidArgument, "--input " + argument + ": stitching binds by name; write name=tensor");
    bool fresh = false;
    std::vector<std::string_view> known;
    for (const Part &part : parts_)
      for (const Value &value : part.program().inputs())
        known.push_back(value.name);
    if (std::ranges::find(known, named.name) != known.end()) {
      fresh = byName_.try_emplace(named.name, GivenTensor{parseTensor(device_, named.text)}).second;
    } else {
      auto qualified = splitModule(named.name, names());
      size_t part = qualified ? find(qualified->module) : 0;
      if (!qualified || parts_[part].program().findInput(qualified->name) < 0)
        throw Error(ErrorCode::NameUnknown,
                    "no program has an input " + inQuotes(named.name) + nearestHint(named.name, known));
      fresh = byPart_.try_emplace({part, qualified->name}, GivenTensor{parseTensor(device_, named.text)}).second;
    }
    if (!fresh)
      throw Error(ErrorCode::InvalidArgument, "input " + inQuotes(named.name) + " is given twice");
  }
  if (arguments.weights.empty())
    return;
  weights_ = SafetensorsFile::open(arguments.weights);
  const SafetensorsFile &weights = *weights_;
  for (size_t part = 0; part < parts_.size(); ++part)
    for (const Value &value : parts_[part].program().inputs()) {
      std::string qualified = parts_[part].name + "." + value.name;
      if (weights.find(qualified))
        byPart_.try_emplace({part, value.name}, GivenTensor{weights.tensor(device_, qualified)});
      else if (weights.find(value.name))
        byName_.try_emplace(value.name, GivenTensor{weights.tensor(device_, value.name)});
    }
}

void StitchParts::checkWeights() const {
  if (weights_)
    weights_->checkUnchanged();
}

void StitchParts::bindGiven() {
  for (size_t part = 0; part < parts_.size(); ++part)
    for (size_t i = 0; i < parts_[part].sources.size(); ++i) {
      const std::string &name = parts_[part].program().inputs()[i].name;
      if (!parts_[part].sources[i].from.empty())
        continue;
      if (auto own = byPart_.find({part, name}); own != byPart_.end())
        parts_[part].sources[i].given = &own->second;
      else if (auto shared = byName_.find(name); shared != byName_.end())
        parts_[part].sources[i].given = &shared->second;
    }
}

/// A tensor that a program keeps or writes in place becomes the tool's own, laid as
/// declared; the rest is handed over as it lies unless `all`. A tensor that does
/// not fit is left for the program to refuse.
void StitchParts::prepareGiven(bool all) {
  for (Part &part : parts_) {
    std::vector<bool> owned(part.sources.size());
    for (const Alias &alias : part.program().aliases())
      owned[alias.input] = owned[alias.input] || alias.required;
    for (size_t i = 0; i < part.sources.size(); ++i) {
      GivenTensor *given = part.sources[i].given;
      const Value &value = part.program().inputs()[i];
      bool fits =
          given && given->tensor.shape() == value.desc().shape && given->tensor.element() == value.desc().element;
      if (!fits || given->prepared || !(all || owned[i] || isKept(value.role)))
        continue;
      given->tensor = copyTo(device_, given->tensor, value.desc());
      given->prepared = true;
    }
  }
}

//===----------------------------------------------------------------------===//
// Values of other parts
//===----------------------------------------------------------------------===//

static bool areOfOneFile(const Program &a, const Program &b) {
  return a.image() == b.image() && a.index() != b.index();
}

void StitchParts::bindSameFile() {
  for (size_t part = 1; part < parts_.size(); ++part)
    for (size_t i = 0; i < parts_[part].sources.size(); ++i) {
      PartInput &source = parts_[part].sources[i];
      if (source.given || !source.from.empty())
        continue;
      const std::string &name = parts_[part].program().inputs()[i].name;
      for (size_t other = 0; other < part; ++other) {
        const Program &program = parts_[other].program();
        if (!areOfOneFile(program, parts_[part].program()))
          continue;
        if (int output = program.findOutput(name); output >= 0)
          source.from.push_back({other, true, size_t(output)});
        else if (int input = program.findInput(name); input >= 0)
          source.from.push_back({other, false, size_t(input)});
      }
    }
}

namespace {
/// The values that the wiring sees, and where they stand in the program.
struct OpenPorts {
  std::vector<Value> inputs, outputs;
  std::vector<size_t> inputIndex, outputIndex;
};
} // namespace

/// Binds wires, and outputs by position for what is still open.
void StitchParts::bindOutputs(const std::vector<std::string> &texts) {
  std::vector<Wire> wires;
  std::set<std::pair<std::string, std::string>> wiredOutputs, wiredInputs;
  for (const std::string &text : texts) {
    auto [left, right] = splitPair(text, "--wire");
    ParameterRef to = requireModule(left, names()), from = requireModule(right, names());
    wiredInputs.insert({to.module, to.name});
    wiredOutputs.insert({from.module, from.name});
    wires.push_back({to.module, to.name, from.module, from.name});
  }
  std::vector<OpenPorts> open(parts_.size());
  std::vector<ModulePorts> ports;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const Part &part = parts_[p];
    for (size_t i = 0; i < part.sources.size(); ++i) {
      const Value &value = part.program().inputs()[i];
      bool wired = wiredInputs.contains({part.name, value.name});
      if (!wired && (part.sources[i].given || !part.sources[i].from.empty()))
        continue;
      if (!wired && (isKept(value.role) || value.role == Role::Saved))
        throw Error(ErrorCode::MissingInput, "part " + inQuotes(part.name) + ", input " + inQuotes(value.name) + " (" +
                                                 std::string(name(value.role)) + " " + value.desc().str() +
                                                 "): nothing gives it; use --input, --weights or --wire");
      open[p].inputs.push_back(value);
      open[p].inputIndex.push_back(i);
    }
    for (size_t o = 0; o < part.program().outputs().size(); ++o) {
      const Value &value = part.program().outputs()[o];
      if (value.role == Role::Saved && !wiredOutputs.contains({part.name, value.name}))
        continue;
      open[p].outputs.push_back(value);
      open[p].outputIndex.push_back(o);
    }
    ports.push_back({part.name, open[p].inputs, open[p].outputs});
  }
  Wiring wiring = wireModules(ports, wires, {});
  for (size_t p = 0; p < parts_.size(); ++p)
    for (size_t i = 0; i < wiring[p].size(); ++i) {
      OutputRef from = *wiring[p][i];
      PartInput &source = parts_[p].sources[open[p].inputIndex[i]];
      source.given = nullptr;
      source.from = {{from.module, true, open[from.module].outputIndex[from.output]}};
    }
}

StitchParts::StitchParts(DeviceRef device, const StitchArguments &arguments) : device_(std::move(device)) {
  load(arguments.programs, arguments);
  read(arguments);
  bindGiven();
  bindSameFile();
  bindOutputs(arguments.wires);
  prepareGiven(arguments.prepare);
}

//===----------------------------------------------------------------------===//
// Submitting
//===----------------------------------------------------------------------===//

Tensor StitchParts::sourceOf(size_t part, size_t input) const {
  const PartInput &source = parts_[part].sources[input];
  if (source.given)
    return source.given->tensor;
  const PartValue *latest = nullptr;
  for (const PartValue &value : source.from)
    if (parts_[value.part].turn && (!latest || parts_[value.part].turn > parts_[latest->part].turn))
      latest = &value;
  if (!latest)
    throw Error(ErrorCode::MissingInput, "part " + inQuotes(parts_[part].name) + ", input " +
                                             inQuotes(parts_[part].program().inputs()[input].name) + ": part " +
                                             inQuotes(parts_[source.from.back().part].name) +
                                             " gives it and has not been submitted; put it first in --schedule");
  const Part &from = parts_[latest->part];
  return latest->isOutput ? from.outputs[latest->index] : from.inputs[latest->index];
}

void StitchParts::submit(size_t index) {
  Part &part = parts_[index];
  for (size_t i = 0; i < part.inputs.size(); ++i)
    part.inputs[i] = sourceOf(index, i);
  part.executor.run(std::span(part.inputs), std::span(part.outputs));
  part.turn = ++turns_;
}

} // namespace segue::tool
