//===- JsonlWriter.h - appends records to a telemetry file ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One JSON object per line, each written whole by one system call, so that a
// reader may follow the file and a killed run leaves complete lines.
//
//   JsonlWriter telemetry("conductor_telemetry.jsonl");
//   telemetry.write({{"step_id", 10}, {"vram_allocated_mb", 18000.0}});
//
// Telemetry never stops a run: what cannot be written gives one warning, and
// from then on the writer is off. One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TELEMETRY_JSONLWRITER_H
#define SEGUE_RUNTIME_TELEMETRY_JSONLWRITER_H

#include "segue/runtime/Json.h"
#include <filesystem>
#include <functional>
#include <string>

namespace segue::inline runtime {

class JsonlWriter {
public:
  using Warn = std::function<void(const std::string &)>;

  /// Remembers the path; the file is opened at the first record, and made if
  /// need be. `warn` gets the one warning; by default it goes to stderr.
  explicit JsonlWriter(std::filesystem::path path, Warn warn = {});
  ~JsonlWriter();
  JsonlWriter(JsonlWriter &&other) noexcept;
  JsonlWriter &operator=(JsonlWriter &&other) noexcept;

  /// Appends one line. Never throws. Numbers that are NaN or infinite become
  /// null. A line that an earlier run left half written is closed first.
  void write(const Json &record) noexcept;

  /// Returns false once a write has failed.
  bool isOn() const { return on_; }
  const std::filesystem::path &path() const { return path_; }

private:
  bool open();
  void turnOff(const char *what) noexcept;

  std::filesystem::path path_;
  Warn warn_;
  int descriptor_ = -1;
  bool on_ = true;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TELEMETRY_JSONLWRITER_H
