//===- Inspect.cpp - segue-run inspect ------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a binary holds, on one screen: parts of the file, then per program its
// signature by role, memory and work. `--all` and `--json` leave nothing out.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "segue/runtime/Program/BlockUses.h"
#include "segue/runtime/Program/ProgramCosts.h"
#include "segue/runtime/Program/Recomputation.h"
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace segue::tool {

using Json = nlohmann::ordered_json;

static std::string hex(uint64_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", (unsigned long long)number);
  return text;
}

static std::string byteText(uint64_t bytes) {
  char text[32];
  if (bytes < 10240)
    std::snprintf(text, sizeof text, "%llu B", (unsigned long long)bytes);
  else if (bytes < 10240 * 1024)
    std::snprintf(text, sizeof text, "%.1f KiB", double(bytes) / 1024);
  else
    std::snprintf(text, sizeof text, "%.1f MiB", double(bytes) / (1024 * 1024));
  return text;
}

static Json layoutJson(const Layout &layout) {
  Json json{{"space", name(layout.space)}, {"storage", name(layout.storage)}, {"alignment", layout.alignment}};
  if (!layout.strides.empty())
    json["strides"] = layout.strides;
  if (!layout.tile.empty())
    json["tile"] = layout.tile;
  return json;
}

static Json valueJson(const Value &value) {
  Json json{{"name", value.name},
            {"role", name(value.role)},
            {"type", value.desc().str()},
            {"shape", value.desc().shape},
            {"element", name(value.desc().element)},
            {"bytes", value.desc().spanBytes()},
            {"layout", layoutJson(value.desc().layout)}};
  if (!value.of.empty())
    json["of"] = value.of;
  if (!value.location.empty())
    json["location"] = value.location;
  if (!value.alternatives.empty())
    json["alternatives"] = Json::array();
  for (const auto &other : value.alternatives)
    json["alternatives"].push_back(other->str());
  return json;
}

/// Returns the names of what a saved value is computed again from.
static std::vector<std::string> sourceNames(const Recomputation &again) {
  std::vector<std::string> names;
  for (const Value &input : again.program.inputs())
    names.push_back(input.name);
  return names;
}

static Json programJson(const Program &program) {
  Json json{{"name", program.name()},
            {"signature_hash", hex(program.signatureHash())},
            {"interface_hash", hex(program.interfaceHash())},
            {"inputs", Json::array()},
            {"outputs", Json::array()}};
  for (const Value &value : program.inputs())
    json["inputs"].push_back(valueJson(value));
  for (const Value &value : program.outputs())
    json["outputs"].push_back(valueJson(value));
  json["aliases"] = Json::array();
  for (const Alias &alias : program.aliases())
    json["aliases"].push_back({{"input", alias.input}, {"output", alias.output}, {"required", alias.required}});
  BlockUses uses = blockUses(program);
  json["phases"] = Json::array();
  for (Phase phase : program.phases())
    json["phases"].push_back(name(phase));
  json["blocks"] = Json::array();
  for (const BlockUse &block : uses.blocks)
    json["blocks"].push_back(block.name);
  json["arena_bytes"] = program.arenaBytes();
  json["arena_lower_bound"] = program.arenaLowerBound();
  json["commands"] = Json::object();
  for (const CommandCount &command : program.commandCounts())
    json["commands"][command.kind] = command.count;
  json["matmul_flops"] = program.matmulFlops();
  uint64_t flops = 0, bytes = 0;
  for (const CommandCost &cost : commandCosts(program)) {
    flops += cost.flops;
    bytes += cost.bytes;
  }
  json["flops"] = flops;
  json["bytes"] = bytes;
  json["save_points"] = Json::array();
  std::vector<RecomputeCost> costs = recomputeCosts(program);
  std::vector<std::optional<Recomputation>> again = recomputations(program);
  for (size_t i = 0; i < costs.size(); ++i) {
    const SavePoint &point = program.savePoints()[i];
    json["save_points"].push_back({{"value", point.value},
                                   {"aliases_input", point.aliasesInput},
                                   {"backward_input", point.backwardInput},
                                   {"backward_order", point.backwardOrder},
                                   {"bytes", point.bytes},
                                   {"recompute_flops", costs[i].flops},
                                   {"recompute_bytes", costs[i].bytes},
                                   {"block", point.block}});
    if (again[i])
      json["save_points"].back()["recompute"] = {{"program", again[i]->program.name()},
                                                 {"output", again[i]->output},
                                                 {"flops", again[i]->flops},
                                                 {"bytes", again[i]->bytes},
                                                 {"from", sourceNames(*again[i])}};
  }
  return json;
}

static Json binaryJson(const Binary &binary) {
  Json json{{"file", binary.name()}, {"bytes", binary.bytes()}, {"producer", binary.producer()}};
  json["options"] = Json::object();
  for (const auto &[key, value] : binary.options())
    json["options"][key] = value;
  json["segments"] = Json::array();
  for (const SegmentInfo &segment : binary.segments()) {
    json["segments"].push_back(
        {{"kind", segment.kind}, {"offset", segment.offset}, {"bytes", segment.bytes}, {"hash", hex(segment.hash)}});
    if (segment.capability)
      json["segments"].back()["capability"] = segment.capability;
  }
  json["kernels"] = Json::array();
  for (const KernelInfo &kernel : binary.kernels())
    json["kernels"].push_back({{"name", kernel.name},
                               {"arguments", kernel.arguments},
                               {"outputs", kernel.outputs},
                               {"isas", kernel.isas},
                               {"hash", hex(kernel.hash)}});
  if (!binary.kernels().empty())
    json["machine_code"] = {{"may_run", binary.nativeCodeLeave().isGiven}, {"reason", binary.nativeCodeLeave().reason}};
  json["programs"] = Json::array();
  for (const Program &program : binary.programs())
    json["programs"].push_back(programJson(program));
  return json;
}

/// Prints values of the caller one by one; the others as a count with their bytes.
static void printValues(const char *title, const std::vector<Value> &values, bool all) {
  std::map<std::string_view, std::pair<size_t, uint64_t>> counted;
  for (const Value &value : values) {
    if (all || value.role == Role::Input || value.role == Role::Output || value.role == Role::Hyper) {
      std::printf("    %-7s %-10s %-32s %s%s%s\n", title, std::string(name(value.role)).c_str(), value.name.c_str(),
                  value.desc().str().c_str(), value.location.empty() ? "" : "  from ", value.location.c_str());
      for (const auto &other : value.alternatives)
        std::printf("    %-7s %-10s %-32s %s\n", "", "", "  or", other->str().c_str());
      continue;
    }
    auto &[count, bytes] = counted[name(value.role)];
    ++count;
    bytes += value.desc().spanBytes();
  }
  for (const auto &[role, sum] : counted)
    std::printf("    %-7s %-10s %zu values, %s\n", title, std::string(role).c_str(), sum.first,
                byteText(sum.second).c_str());
}

/// Returns phases and blocks, the names of many blocks from both ends.
static std::string courseText(const Program &program, bool all) {
  BlockUses uses = blockUses(program);
  std::string text;
  for (Phase phase : program.phases())
    text += (text.empty() ? "phase " : ", ") + std::string(name(phase));
  size_t count = uses.blocks.size();
  if (count)
    text += (text.empty() ? "" : "; ") + std::to_string(count) + (count == 1 ? " block:" : " blocks:");
  for (size_t i = 0; i < count; ++i) {
    bool isShown = all || count <= 8 || i < 3 || i + 3 >= count;
    if (isShown)
      text += (i ? ", " : " ") + uses.blocks[i].name;
    else if (i == 3)
      text += ", ...";
  }
  return text;
}

/// Prints what forward saves, and what of it can be computed again while backward runs.
static void printSaved(const Program &program, bool all) {
  std::vector<std::optional<Recomputation>> again = recomputations(program);
  uint64_t bytes = 0, againBytes = 0, values = 0;
  std::map<size_t, double> gflops; // by program: one run may give several values
  for (size_t i = 0; i < again.size(); ++i) {
    const SavePoint &point = program.savePoints()[i];
    bytes += point.bytes;
    if (again[i]) {
      againBytes += point.bytes;
      ++values;
      gflops[again[i]->program.index()] = double(again[i]->flops) / 1e9;
    }
    if (!all)
      continue;
    std::printf("    save %-3u %s, needed %u, recompute %llu flop, block \"%s\"%s", point.value,
                byteText(point.bytes).c_str(), point.backwardOrder, (unsigned long long)point.recomputeFlops,
                point.block.c_str(), point.aliasesInput ? ", an input by reference" : "");
    if (again[i]) {
      std::printf("; %s: %llu flop, %s, from", again[i]->program.name().c_str(), (unsigned long long)again[i]->flops,
                  byteText(again[i]->bytes).c_str());
      for (const std::string &source : sourceNames(*again[i]))
        std::printf(" %s", source.c_str());
    }
    std::printf("\n");
  }
  double total = 0;
  for (const auto &[index, each] : gflops)
    total += each;
  if (!again.empty())
    std::printf("    saved %zu values, %s; %llu of %s can be computed again by %zu programs, %.3f GFLOP\n",
                again.size(), byteText(bytes).c_str(), (unsigned long long)values, byteText(againBytes).c_str(),
                gflops.size(), total);
}

static void printProgram(const Program &program, bool all) {
  std::printf("  program %s\n", program.name().c_str());
  if (std::string course = courseText(program, all); !course.empty())
    std::printf("    %s\n", course.c_str());
  printValues("input", program.inputs(), all);
  printValues("output", program.outputs(), all);
  if (!program.aliases().empty())
    std::printf("    in place: %zu outputs\n",
                size_t(std::count_if(program.aliases().begin(), program.aliases().end(),
                                     [](const Alias &alias) { return alias.required; })));
  std::printf("    arena %s", byteText(program.arenaBytes()).c_str());
  if (program.arenaLowerBound())
    std::printf(" (%.3f of the lower bound)", double(program.arenaBytes()) / double(program.arenaLowerBound()));
  std::printf("; commands:");
  for (const CommandCount &command : program.commandCounts())
    std::printf(" %llu %s", (unsigned long long)command.count, command.kind.c_str());
  if (program.matmulFlops())
    std::printf("; matmul %.3f GFLOP", double(program.matmulFlops()) / 1e9);
  std::printf("\n");
  printSaved(program, all);
}

static void printBinary(const Binary &binary, bool all) {
  std::printf("%s: %s, by %s\n", binary.name().c_str(), byteText(binary.bytes()).c_str(), binary.producer().c_str());
  for (const auto &[key, value] : binary.options())
    std::printf("  option %s = %s\n", key.c_str(), value.c_str());
  for (const SegmentInfo &segment : binary.segments())
    std::printf("  segment %s%s: %s\n", segment.kind.c_str(),
                segment.capability ? (" sm_" + std::to_string(segment.capability)).c_str() : "",
                byteText(segment.bytes).c_str());
  std::set<std::string> isas;
  for (const KernelInfo &kernel : binary.kernels())
    isas.insert(kernel.isas.begin(), kernel.isas.end());
  std::string isaText;
  for (const std::string &isa : isas)
    isaText += (isaText.empty() ? " for " : ", ") + isa;
  std::printf("  %zu kernels%s\n", binary.kernels().size(), isaText.c_str());
  if (!binary.kernels().empty())
    std::printf("  machine code %s: %s\n", binary.nativeCodeLeave().isGiven ? "is trusted" : "does not run",
                binary.nativeCodeLeave().reason.c_str());
  if (all)
    for (const KernelInfo &kernel : binary.kernels())
      std::printf("    kernel %s: %u arguments, %u outputs, %s\n", kernel.name.c_str(), kernel.arguments,
                  kernel.outputs, hex(kernel.hash).c_str());
  for (const Program &program : binary.programs())
    if (all || !program.name().starts_with("recompute."))
      printProgram(program, all);
}

int inspect(const InspectOptions &options) {
  Json json = Json::array();
  for (const std::string &file : options.files) {
    Binary binary = loadBinary(file, options);
    if (options.json)
      json.push_back(binaryJson(binary));
    else
      printBinary(binary, options.all);
  }
  if (options.json)
    std::printf("%s\n", json.dump(2).c_str());
  return Done;
}

} // namespace segue::tool
