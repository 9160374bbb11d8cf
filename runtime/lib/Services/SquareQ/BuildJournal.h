//===- BuildJournal.h - what a build has done so far ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// JSON lines in `<slab>.safetensors.building`: the first says of what build, each
// further one that a layer's bytes are in the partial file. A line counts if
// it is whole; a kill can only tear the last one. The lock of the partial file
// covers the journal too.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_BUILDJOURNAL_H
#define SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_BUILDJOURNAL_H

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace segue::inline runtime {

class BuildJournal {
public:
  /// Opens the file, making it if need be, and reads its lines. Throws
  /// IoFailed.
  explicit BuildJournal(std::filesystem::path path);
  ~BuildJournal();
  BuildJournal(const BuildJournal &) = delete;
  BuildJournal &operator=(const BuildJournal &) = delete;

  /// Returns the whole lines that were found; those behind a torn one do not count.
  const std::vector<nlohmann::ordered_json> &lines() const { return lines_; }

  /// Keeps the first `count` lines and forgets the others.
  void keep(size_t count);
  /// Adds a line by one write. Throws IoFailed.
  void append(const nlohmann::ordered_json &line);
  /// Removes the file.
  void remove();

private:
  [[noreturn]] void fail(const char *what) const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::vector<nlohmann::ordered_json> lines_;
  /// The offset at which each line ends.
  std::vector<uint64_t> ends_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_BUILDJOURNAL_H
