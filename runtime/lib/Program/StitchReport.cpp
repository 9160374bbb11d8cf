//===- StitchReport.cpp - what the seams between programs cost ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/StitchReport.h"
#include "../JsonFields.h"
#include "segue/runtime/OutputFile.h"
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Counting
//===----------------------------------------------------------------------===//

TensorOrigin &StitchReport::addOrigin(StitchEnd end, uint32_t output) {
  std::lock_guard lock(mutex_);
  return origins_.emplace_back(std::move(end), output);
}

const StitchEnd &StitchReport::addConsumer(StitchEnd end) {
  std::lock_guard lock(mutex_);
  return consumers_.emplace_back(std::move(end));
}

StitchReport::Counters &StitchReport::edge(const TensorOrigin *producer, const StitchEnd &consumer) {
  std::lock_guard lock(mutex_);
  Counters *&counters = byEnds_[{producer, &consumer}];
  if (!counters) {
    counters = &counters_.emplace_back();
    counters->producer = producer;
    counters->consumer = &consumer;
  }
  return *counters;
}

void StitchReport::noteConversion(Counters &edge, const TensorDesc &from, const TensorDesc &to) {
  std::lock_guard lock(mutex_);
  if (edge.from == from)
    return;
  edge.from = from;
  edge.to = to;
}

void StitchReport::reset() {
  std::lock_guard lock(mutex_);
  for (Counters &edge : counters_) {
    for (Sum *sum :
         {&edge.elided, &edge.converted, &edge.cacheHits, &edge.elidedBytes, &edge.convertedBytes, &edge.cacheHitBytes})
      sum->store(0, std::memory_order_relaxed);
    edge.from = edge.to = TensorDesc();
  }
  steps_.store(0, std::memory_order_relaxed);
}

//===----------------------------------------------------------------------===//
// Telling
//===----------------------------------------------------------------------===//

/// A program that was loaded twice is one in the report.
std::vector<StitchEdge> StitchReport::edges() const {
  std::map<std::pair<StitchEnd, StitchEnd>, StitchEdge> byName;
  {
    std::lock_guard lock(mutex_);
    for (const Counters &counters : counters_) {
      StitchEnd producer = counters.producer ? counters.producer->end : StitchEnd();
      StitchEdge &edge = byName[{producer, *counters.consumer}];
      edge.producer = std::move(producer);
      edge.consumer = *counters.consumer;
      edge.elided += counters.elided.load(std::memory_order_relaxed);
      edge.converted += counters.converted.load(std::memory_order_relaxed);
      edge.cacheHits += counters.cacheHits.load(std::memory_order_relaxed);
      edge.elidedBytes += counters.elidedBytes.load(std::memory_order_relaxed);
      edge.convertedBytes += counters.convertedBytes.load(std::memory_order_relaxed);
      edge.cacheHitBytes += counters.cacheHitBytes.load(std::memory_order_relaxed);
      if (counters.producer && counters.producer->isPacked) {
        edge.packed = edge.elided;
        edge.packedBytes = edge.elidedBytes;
      }
      if (counters.converted.load(std::memory_order_relaxed)) {
        edge.from = counters.from;
        edge.to = counters.to;
      }
    }
  }
  std::vector<StitchEdge> edges;
  for (auto &[ends, edge] : byName)
    if (edge.submits())
      edges.push_back(std::move(edge));
  std::ranges::stable_sort(edges, std::ranges::greater(), &StitchEdge::convertedBytes);
  return edges;
}

static std::string hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

static Json layoutJson(const TensorDesc &desc) {
  return jsonOf({{"space", name(desc.layout.space)},
                 {"strides", Json(desc.strides())},
                 {"tile", Json(desc.layout.tile)},
                 {"storage", name(desc.layout.storage)},
                 {"zero_points", desc.layout.zeroPoints},
                 {"alignment", desc.layout.alignment}});
}

static Json layoutsJson(const StitchEdge &edge) {
  return jsonOf({{"from", layoutJson(edge.from)}, {"to", layoutJson(edge.to)}});
}

/// Returns one end as JSON; `value` is "output" or "input".
static Json endJson(const StitchEnd &end, const char *value) {
  return jsonOf({{"signature", hex(end.interfaceHash)}, {"program", end.program}, {value, end.value}});
}

Json StitchReport::toJson() const {
  Json all = Json::array();
  for (const StitchEdge &edge : edges()) {
    auto endOf = [](const StitchEnd &end, const char *value) {
      Json json = endJson(end, value);
      json.update(jsonOf({{"binary", end.binary}, {"location", end.location}}));
      return json;
    };
    Json entry = jsonOf({{"producer", edge.producer.program.empty() ? Json() : endOf(edge.producer, "output")},
                         {"consumer", endOf(edge.consumer, "input")},
                         {"elided", edge.elided},
                         {"converted", edge.converted},
                         {"cache_hits", edge.cacheHits},
                         {"elided_bytes", edge.elidedBytes},
                         {"converted_bytes", edge.convertedBytes},
                         {"cache_hit_bytes", edge.cacheHitBytes},
                         {"packed", edge.packed},
                         {"packed_bytes", edge.packedBytes}});
    if (edge.converted)
      entry.update(layoutsJson(edge));
    all.push_back(std::move(entry));
  }
  return jsonOf({{"version", 1}, {"steps", steps()}, {"edges", all}});
}

static std::string endText(const StitchEnd &end) {
  return end.program.empty() ? "(outside)" : end.binary + ":" + end.program + "." + end.value;
}

std::string StitchReport::table() const {
  std::string text;
  uint64_t quiet = 0, quietBytes = 0;
  for (const StitchEdge &edge : edges()) {
    if (edge.packed)
      text += endText(edge.producer) + " -> " + endText(edge.consumer) + ": " + std::to_string(edge.packed) + " of " +
              std::to_string(edge.submits()) + " laid by a copy of the producer, " + std::to_string(edge.packedBytes) +
              " bytes\n";
    if (!edge.converted && edge.packed)
      continue;
    if (!edge.converted) {
      ++quiet;
      quietBytes += edge.elidedBytes + edge.cacheHitBytes;
      continue;
    }
    text += endText(edge.producer) + " -> " + endText(edge.consumer) + ": " + std::to_string(edge.converted) + " of " +
            std::to_string(edge.submits()) + " converted, " + std::to_string(edge.convertedBytes) + " bytes, " +
            edge.from.strWithAlignment() + " -> " + edge.to.strWithAlignment() +
            (edge.consumer.location.empty() ? "" : ", at " + edge.consumer.location) + "\n";
  }
  return text + std::to_string(quiet) + " other edges copied nothing (" + std::to_string(quietBytes) + " bytes)\n";
}

/// Writes the hints. Parameters and tensors from outside have no producer that a compiler
/// could change: for them, the consumer's declared layout is what can change.
void StitchReport::writeHints(const std::filesystem::path &path) const {
  Json all = Json::array();
  for (const StitchEdge &edge : edges()) {
    if (!edge.converted)
      continue;
    Json entry = Json::object();
    bool outside = edge.producer.program.empty();
    if (!outside)
      entry["producer"] = endJson(edge.producer, "output");
    // If no steps were counted, a submit of the consumer stands for one.
    uint64_t count = steps() ? steps() : edge.submits();
    entry.update(jsonOf({{"consumer", endJson(edge.consumer, "input")},
                         {"change", outside ? "consumer" : "producer"},
                         {"bytes_per_step", edge.convertedBytes / count}}));
    entry.update(layoutsJson(edge));
    all.push_back(std::move(entry));
  }
  OutputFile file(path);
  file.write(jsonOf({{"version", 1}, {"edges", all}}).dump(1) + "\n");
  file.commit();
}

} // namespace segue::inline runtime
