//===- Roofline.cpp - commands beside what the device could do ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/Roofline.h"
#include "Formatted.h"
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

namespace segue::inline runtime {

/// Returns the name that the programs of a file go by: "front" for "out/front.segue".
static std::string stemOf(const std::string &file) {
  std::filesystem::path path(file);
  return path.extension() == ".segue" ? path.stem().string() : file;
}

/// True for what a library computes whose speed is that of products.
static bool isProduct(const std::string &kind) { return kind != "Launch" && kind != "ToLayout" && kind != "Fill"; }

void Roofline::Sum::add(const Sum &other) {
  calls += other.calls;
  bytes += other.bytes;
  flops += other.flops;
  seconds += other.seconds;
  limitSeconds += other.limitSeconds;
}

Roofline::Row Roofline::rowOf(std::string program, const CommandTime &command) const {
  Row row{.program = std::move(program), .label = command.label, .kind = command.kind, .location = command.location};
  row.sum = {command.calls, command.calls * command.bytes, command.calls * command.flops, command.seconds, 0};
  if (speed_) {
    double memory = double(row.sum.bytes) / speed_->bytesPerSecond, products = double(row.sum.flops) / speed_->flopsPerSecond;
    row.isBoundByProducts = products > memory;
    row.sum.limitSeconds = std::max(memory, products);
  }
  return row;
}

Roofline::Roofline(TimedRuns runs, const std::vector<ProgramTimes> &programs, std::optional<DeviceSpeed> speed)
    : runs_(std::move(runs)), speed_(std::move(speed)) {
  std::set<std::string> files;
  for (const ProgramTimes &program : programs)
    files.insert(program.file);
  // One program is prepared once per size of its batches, and a command anew where its output is laid otherwise.
  std::map<std::tuple<std::string, std::string, std::string>, size_t> known;
  std::map<std::string, size_t> kinds;
  for (const ProgramTimes &program : programs) {
    std::string name = files.size() > 1 ? stemOf(program.file) + "." + program.program : program.program;
    for (const CommandTime &command : program.commands) {
      Row row = rowOf(name, command);
      (isProduct(row.kind) ? products_ : others_).add(row.sum);
      auto [kind, isNew] = kinds.emplace(row.kind, kinds_.size());
      if (isNew)
        kinds_.push_back({.label = row.kind, .kind = row.kind});
      kinds_[kind->second].sum.add(row.sum);
      auto [at, isFirst] = known.emplace(std::tuple(row.program, row.label, row.location), commands_.size());
      if (isFirst)
        commands_.push_back(std::move(row));
      else
        commands_[at->second].sum.add(row.sum);
    }
  }
  auto isDearer = [](const Row &a, const Row &b) { return a.sum.seconds > b.sum.seconds; };
  std::ranges::stable_sort(commands_, isDearer);
  std::ranges::stable_sort(kinds_, isDearer);
}

/// Returns the time that no command has taken. Rounding would make it negative on a device whose clock is not the host's.
double Roofline::between() const { return std::max(0.0, runs_.seconds - products_.seconds - others_.seconds); }

//===----------------------------------------------------------------------===//
// For people
//===----------------------------------------------------------------------===//

std::string Roofline::line(const Row &row) const {
  const Sum &sum = row.sum;
  std::string text = formatted("  %5.1f%% %10.3f %7llu %9.4g %10.4g", share(sum.seconds) * 100, sum.seconds * 1e3,
                               (unsigned long long)sum.calls, double(sum.bytes) / 1e9, double(sum.flops) / 1e9);
  if (speed_ && sum.limitSeconds > 0 && sum.seconds > 0)
    text += formatted(" %10.3f  %-8s %7.0f%%", sum.limitSeconds * 1e3,
                      row.program.empty() ? "" : row.isBoundByProducts ? "products" : "memory",
                      sum.limitSeconds / sum.seconds * 100);
  else if (speed_)
    text += formatted(" %10s  %-8s %8s", "", "", "");
  text += "  " + (row.program.empty() ? "" : row.program + ": ") + row.label;
  return text + (row.location.empty() ? "" : " at " + row.location) + "\n";
}

/// Returns "matmul ... 81.2%, 93% of their limits".
std::string Roofline::said(const char *what, const Sum &sum) const {
  std::string text = formatted("%s %.1f%%", what, share(sum.seconds) * 100);
  return speed_ && sum.seconds > 0 ? text + formatted(" (%.0f%% of their limits reached)", sum.limitSeconds / sum.seconds * 100)
                                   : text;
}

std::string Roofline::text(size_t most) const {
  std::string text = runs_.device + formatted(", %d thread%s", runs_.threads, runs_.threads == 1 ? "" : "s");
  if (speed_)
    text += formatted(": products %.1f GFLOP/s, memory %.1f GB/s", speed_->flopsPerSecond / 1e9, speed_->bytesPerSecond / 1e9) +
            " (" + speed_->source + ")";
  double each = runs_.count ? runs_.seconds / double(runs_.count) * 1e3 : 0;
  text += formatted("\n%llu %s%s of %.3f ms, %zu commands\n", (unsigned long long)runs_.count, runs_.what.c_str(),
                    runs_.count == 1 ? "" : "s", each, commands_.size());
  std::string head = formatted("  %6s %10s %7s %9s %10s", "share", "ms", "calls", "GB", "GFLOP");
  if (speed_)
    head += formatted(" %10s  %-8s %8s", "limit ms", "bound by", "reached");
  text += head + "  command\n";
  for (size_t i = 0; i < std::min(commands_.size(), most); ++i)
    text += line(commands_[i]);
  if (commands_.size() > most)
    text += formatted("  and %zu more\n", commands_.size() - most);
  text += head + "  kind\n";
  for (const Row &kind : kinds_)
    text += line(kind);
  return text + said("matmul, attention and library calls", products_) + ", " + said("other commands", others_) +
         formatted(", between commands %.1f%%: %.3f ms per %s of the host, copies over links, sums of gradients\n",
                   share(between()) * 100, runs_.count ? between() / double(runs_.count) * 1e3 : 0, runs_.what.c_str());
}

//===----------------------------------------------------------------------===//
// For programs
//===----------------------------------------------------------------------===//

Json Roofline::json(const Sum &sum) const {
  Json json{{"calls", sum.calls},
            {"seconds", sum.seconds},
            {"share", share(sum.seconds)},
            {"bytes", sum.bytes},
            {"flops", sum.flops}};
  bool isBound = speed_ && sum.limitSeconds > 0;
  json["limit_seconds"] = isBound ? Json(sum.limitSeconds) : Json();
  json["reached"] = isBound && sum.seconds > 0 ? Json(sum.limitSeconds / sum.seconds) : Json();
  return json;
}

Json Roofline::json(const Row &row) const {
  Json json{{"program", row.program}, {"label", row.label}, {"kind", row.kind}, {"location", row.location}};
  json.update(this->json(row.sum));
  json["bound_by"] = json["limit_seconds"].is_null() ? Json() : Json(row.isBoundByProducts ? "products" : "memory");
  return json;
}

Json Roofline::json() const {
  Json json{{"device", runs_.device},
            {"threads", runs_.threads},
            {"what", runs_.what},
            {"runs", runs_.count},
            {"seconds", runs_.seconds},
            {"flops_per_second", speed_ ? Json(speed_->flopsPerSecond) : Json()},
            {"bytes_per_second", speed_ ? Json(speed_->bytesPerSecond) : Json()},
            {"speed_from", speed_ ? Json(speed_->source) : Json()},
            {"commands", Json::array()},
            {"kinds", Json::object()},
            {"products", this->json(products_)},
            {"others", this->json(others_)},
            {"between", {{"seconds", between()}, {"share", share(between())}}}};
  for (const Row &row : commands_)
    json["commands"].push_back(this->json(row));
  for (const Row &kind : kinds_)
    json["kinds"][kind.kind] = this->json(kind.sum);
  return json;
}

} // namespace segue::inline runtime
