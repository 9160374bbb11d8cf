//===- LineSeries.h - lines of a run as columns of a chart ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A run may take millions of steps, each with a line of every service, and a chart
// shows some thousand points. A series keeps as many buckets of neighbouring lines
// and their figures, in place of the lines: what a run takes for its page does not
// grow with its steps.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_LINESERIES_H
#define SEGUE_RUNTIME_REPORTS_LINESERIES_H

#include "segue/runtime/Json.h"
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace segue::inline runtime {

class LineSeries {
public:
  /// The most buckets. Until there are as many lines each has a bucket of its own.
  static constexpr size_t mostBuckets = 4000;

  /// Makes a series of lines that have the number of their step under `stepKey`.
  explicit LineSeries(std::string stepKey = "step") : stepKey_(std::move(stepKey)) {}

  /// Takes the numbers and truth values of an object, those of objects within it by keys that points join.
  void add(const Json &line);
  /// Returns how many lines were added.
  uint64_t lines() const { return lines_; }

  /// Returns columns by key, at most `points` rows of them, with null where no line has the key. Rows that stand for
  /// several lines have the mean, the least and the most of these, and the step with which they begin.
  Json columns(size_t points) const;
  /// Returns as what each block was stored, by decision, from lines of Selective Precision; of several the last.
  Json precision(size_t points) const;

private:
  /// The finite values of one key in a bucket.
  struct Cell {
    double sum = 0, least = INFINITY, most = -INFINITY;
    uint64_t count = 0;

    void add(const Cell &other);
  };
  /// An End is the last line of a bucket.
  struct End {
    double step = NAN;
    Json blocks;
  };

  void halve();

  std::string stepKey_;
  uint64_t lines_ = 0, linesPerBucket_ = 1;
  double lastStep_ = NAN;
  /// The step with which each bucket begins.
  std::vector<double> begins_;
  std::vector<End> ends_;
  /// The columns by key. A column ends with the last bucket in which a line has the key.
  std::map<std::string, std::vector<Cell>> columns_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_LINESERIES_H
