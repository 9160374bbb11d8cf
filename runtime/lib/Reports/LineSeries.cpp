//===- LineSeries.cpp - lines of a run as columns of a chart --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/LineSeries.h"
#include "Buckets.h"
#include <algorithm>
#include <utility>

namespace segue::inline runtime {

/// Collects the numbers of a line by key; keys of an object within are joined by a point.
static void flatten(const Json &line, const std::string &prefix, std::map<std::string, double> &numbers) {
  for (const auto &[key, value] : line.items()) {
    if (value.is_number() || value.is_boolean())
      numbers[prefix + key] = value.is_boolean() ? double(value.get<bool>()) : value.get<double>();
    else if (value.is_object() && key != "block_details")
      flatten(value, prefix + key + ".", numbers);
  }
}

/// Returns the form of each block, by its name.
static Json storedForms(const Json &line) {
  Json forms = Json::object();
  auto details = line.find("block_details");
  if (details != line.end() && details->is_object())
    for (const auto &[block, detail] : details->items())
      forms[block] = detail.is_object() ? detail.value("precision", Json()) : Json();
  return forms;
}

static Json orNull(double value) { return std::isfinite(value) ? Json(value) : Json(); }

void LineSeries::Cell::add(const Cell &other) {
  sum += other.sum;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
  count += other.count;
}

/// Puts two neighbours into one bucket each.
void LineSeries::halve() {
  size_t count = begins_.size() / 2;
  for (auto &[key, cells] : columns_) {
    for (size_t i = 0; 2 * i < cells.size(); ++i) {
      Cell both = cells[2 * i];
      if (2 * i + 1 < cells.size())
        both.add(cells[2 * i + 1]);
      cells[i] = both;
    }
    cells.resize((cells.size() + 1) / 2);
  }
  for (size_t i = 0; i < count; ++i) {
    begins_[i] = begins_[2 * i];
    ends_[i] = std::move(ends_[2 * i + 1]);
  }
  begins_.resize(count);
  ends_.resize(count);
  linesPerBucket_ *= 2;
}

void LineSeries::add(const Json &line) {
  std::map<std::string, double> numbers;
  flatten(line, "", numbers);
  auto step = numbers.find(stepKey_);
  lastStep_ = step == numbers.end() ? NAN : step->second;
  if (lines_ % linesPerBucket_ == 0) {
    if (begins_.size() == mostBuckets)
      halve();
    begins_.push_back(lastStep_);
    ends_.emplace_back();
  }
  ++lines_;
  ends_.back() = {lastStep_, storedForms(line)};
  for (const auto &[key, value] : numbers) {
    if (key == stepKey_)
      continue;
    std::vector<Cell> &cells = columns_[key];
    cells.resize(begins_.size());
    if (std::isfinite(value))
      cells.back().add({value, value, value, 1});
  }
}

Json LineSeries::columns(size_t points) const {
  auto rows = bucketsOf(begins_.size(), points);
  bool isBucketed = rows.size() < lines_;
  Json json{{"lines", lines_}, {"bucketed", isBucketed}, {"step", Json::array()}, {"columns", Json::object()}};
  for (auto [begin, end] : rows)
    json["step"].push_back(orNull(begins_[begin]));
  if (lines_)
    json["last_step"] = orNull(lastStep_);
  for (const auto &[key, cells] : columns_) {
    Json means = Json::array(), least = Json::array(), most = Json::array();
    for (auto [begin, end] : rows) {
      Cell all;
      for (size_t i = begin; i < std::min(end, cells.size()); ++i)
        all.add(cells[i]);
      // One line alone shows its own figure, to the last bit.
      means.push_back(all.count == 0 ? Json() : all.count == 1 ? Json(all.least) : Json(all.sum / double(all.count)));
      least.push_back(orNull(all.least));
      most.push_back(orNull(all.most));
    }
    Json column{{"mean", std::move(means)}};
    if (isBucketed) {
      column["min"] = std::move(least);
      column["max"] = std::move(most);
    }
    json["columns"][key] = std::move(column);
  }
  return json;
}

Json LineSeries::precision(size_t points) const {
  Json json{{"step", Json::array()}, {"blocks", Json::object()}};
  for (const End &end : ends_)
    for (const auto &[block, form] : end.blocks.items())
      json["blocks"][block] = Json::array();
  for (auto [begin, end] : bucketsOf(ends_.size(), points)) {
    const End &last = ends_[end - 1];
    json["step"].push_back(orNull(last.step));
    for (auto &[block, forms] : json["blocks"].items())
      forms.push_back(last.blocks.contains(block) ? last.blocks[block] : Json());
  }
  return json;
}

} // namespace segue::inline runtime
