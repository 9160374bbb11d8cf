//===- Wiring.cpp - which output feeds which input ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/Wiring.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/NearestName.h"
#include <algorithm>

namespace segue::inline runtime {

static std::string inQuotes(std::string_view text) { return "\"" + std::string(text) + "\""; }

bool isLoss(const Value &output) {
  return output.name == "loss" && output.desc().shape.empty() && isFloat(output.desc().element);
}

static std::vector<std::string_view> namesOf(std::span<const Value> values) {
  std::vector<std::string_view> names;
  for (const Value &value : values)
    names.push_back(value.name);
  return names;
}

/// Returns the index of the value called `name`; throws NameUnknown, calling it `what`.
static size_t indexOf(std::string_view name, std::span<const Value> values, const std::string &what) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i].name == name)
      return i;
  throw Error(ErrorCode::NameUnknown,
              what + " " + inQuotes(name) + " does not exist" + nearestHint(name, namesOf(values)));
}

static size_t moduleIndex(std::string_view name, std::span<const ModulePorts> modules) {
  std::vector<std::string_view> known;
  for (size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].name == name)
      return i;
    known.push_back(modules[i].name);
  }
  throw Error(ErrorCode::NameUnknown, "wiring: module " + inQuotes(name) + " does not exist" + nearestHint(name, known));
}

/// Returns what the caller is to do about a tensor that does not fit.
static std::string wayOut(const TensorDesc &given, const TensorDesc &declared) {
  if (given.shape == declared.shape)
    return "convert it to " + std::string(name(declared.element));
  if (std::ranges::count(given.shape, 0) > std::ranges::count(declared.shape, 0))
    return "it has no elements; leave such a batch out";
  return "compile the module for this shape";
}

/// Throws unless shape and element type are the same; the error says who wants and who gives.
static void checkFits(const TensorDesc &given, std::string_view from, const Value &input, std::string_view module) {
  if (given.shape != input.desc().shape || given.element != input.desc().element)
    throw Error(ErrorCode::LayoutMismatch, "module " + inQuotes(module) + ", input " + inQuotes(input.name) + ": " +
                                               given.str() + " given by " + std::string(from) + ", " +
                                               input.desc().str() + " declared; " + wayOut(given, input.desc()));
}

static std::string outputText(const ModulePorts &module, const Value &output) {
  return "output " + inQuotes(output.name) + " of module " + inQuotes(module.name);
}

/// Returns wires as indices, by module and input; everything but shapes is checked.
static Wiring resolveWires(std::span<const ModulePorts> modules, std::span<const Wire> wires) {
  Wiring wiring(modules.size());
  for (size_t m = 0; m < modules.size(); ++m)
    wiring[m].resize(modules[m].inputs.size());
  for (const Wire &wire : wires) {
    size_t to = moduleIndex(wire.module, modules), from = moduleIndex(wire.fromModule, modules);
    size_t input = indexOf(wire.input, modules[to].inputs, "wiring: module " + inQuotes(wire.module) + ", input");
    size_t output =
        indexOf(wire.output, modules[from].outputs, "wiring: module " + inQuotes(wire.fromModule) + ", output");
    if (from >= to)
      throw Error(ErrorCode::InvalidArgument, "wiring: input " + inQuotes(wire.input) + " of module " +
                                                  inQuotes(wire.module) + " cannot come from " + "module " +
                                                  inQuotes(wire.fromModule) + ", which does not run before it");
    if (wiring[to][input])
      throw Error(ErrorCode::InvalidArgument,
                  "wiring: input " + inQuotes(wire.input) + " of module " + inQuotes(wire.module) + " has two wires");
    wiring[to][input] = OutputRef{from, output};
  }
  return wiring;
}

void checkWires(std::span<const ModulePorts> modules, std::span<const Wire> wires) {
  Wiring wiring = resolveWires(modules, wires);
  for (size_t m = 0; m < modules.size(); ++m)
    for (size_t i = 0; i < wiring[m].size(); ++i)
      if (const auto &ref = wiring[m][i]) {
        const Value &output = modules[ref->module].outputs[ref->output];
        checkFits(output.desc(), outputText(modules[ref->module], output), modules[m].inputs[i], modules[m].name);
      }
}

/// The next output of `previous` for an input without name in the batch:
/// unused by this module, and not the loss.
static std::optional<size_t> nextOutput(const ModulePorts &previous, const std::vector<bool> &taken) {
  for (size_t o = 0; o < previous.outputs.size(); ++o)
    if (!taken[o] && !isLoss(previous.outputs[o]))
      return o;
  return std::nullopt;
}

static Error unbound(const ModulePorts &module, const Value &input, const ModulePorts *previous,
                     const BatchDescs &batch) {
  std::string given;
  for (const auto &[name, desc] : batch)
    given += (given.empty() ? "" : ", ") + inQuotes(name);
  std::string before = previous ? "module " + inQuotes(previous->name) + " before it has no output left"
                                : std::string("there is no module before it");
  return Error(ErrorCode::MissingInput, "module " + inQuotes(module.name) + ", input " + inQuotes(input.name) + " (" +
                                            input.desc().str() + "): nothing gives it; the batch has " +
                                            (given.empty() ? "no tensors" : given) + ", and " + before +
                                            "; put it in the batch or give a wire");
}

/// Notes the inputs of module `m` that take a tensor of the batch although an output of the
/// module before would fit and nobody takes it.
static void noteShadowed(std::span<const ModulePorts> modules, const Wiring &wiring, size_t m,
                         std::vector<std::string> &notes) {
  const ModulePorts &module = modules[m], &previous = modules[m - 1];
  for (size_t o = 0; o < previous.outputs.size(); ++o) {
    const Value &output = previous.outputs[o];
    bool taken = isLoss(output);
    for (const auto &inputs : wiring)
      taken |= std::ranges::find(inputs, OutputRef{m - 1, o}) != inputs.end();
    if (taken)
      continue;
    for (size_t i = 0; i < module.inputs.size(); ++i) {
      const Value &input = module.inputs[i];
      if (wiring[m][i] || input.desc().shape != output.desc().shape || input.desc().element != output.desc().element)
        continue;
      notes.push_back("module " + inQuotes(module.name) + ", input " + inQuotes(input.name) + " (" + input.desc().str() +
                      "): takes the batch's tensor of that name, and nothing takes " + outputText(previous, output) +
                      ", which fits too; if that was meant, rename the tensor or give a wire");
      break;
    }
  }
}

Wiring wireModules(std::span<const ModulePorts> modules, std::span<const Wire> wires, const BatchDescs &batch,
                   std::vector<std::string> *notes) {
  Wiring wiring = resolveWires(modules, wires);
  std::map<std::string_view, bool> used;
  for (size_t m = 0; m < modules.size(); ++m) {
    const ModulePorts &module = modules[m];
    const ModulePorts *previous = m ? &modules[m - 1] : nullptr;
    std::vector<bool> taken(previous ? previous->outputs.size() : 0);
    for (const auto &ref : wiring[m])
      if (ref && ref->module + 1 == m)
        taken[ref->output] = true;
    for (size_t i = 0; i < module.inputs.size(); ++i) {
      const Value &input = module.inputs[i];
      auto fromBatch = batch.find(input.name);
      if (!wiring[m][i] && fromBatch != batch.end()) {
        used[input.name] = true;
        checkFits(*fromBatch->second, "the batch", input, module.name);
        continue;
      }
      if (!wiring[m][i]) {
        std::optional<size_t> output = previous ? nextOutput(*previous, taken) : std::nullopt;
        if (!output)
          throw unbound(module, input, previous, batch);
        taken[*output] = true;
        wiring[m][i] = OutputRef{m - 1, *output};
      }
      const ModulePorts &source = modules[wiring[m][i]->module];
      const Value &output = source.outputs[wiring[m][i]->output];
      checkFits(output.desc(), outputText(source, output), input, module.name);
    }
  }
  for (size_t m = 1; notes && m < modules.size(); ++m)
    noteShadowed(modules, wiring, m, *notes);
  for (const auto &[name, desc] : batch)
    if (!used.contains(name)) {
      std::vector<std::string_view> known;
      for (const ModulePorts &module : modules)
        for (std::string_view input : namesOf(module.inputs))
          known.push_back(input);
      throw Error(ErrorCode::NameUnknown, "the batch has a tensor " + inQuotes(name) + " (" + desc->str() +
                                              ") that no module takes" + nearestHint(name, known));
    }
  return wiring;
}

} // namespace segue::inline runtime
