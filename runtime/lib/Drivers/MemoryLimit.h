//===- MemoryLimit.h - what the system lets this process hold ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Containers and services run in control groups, whose limit of memory is below the
// machine's: a process that passes it is killed without a word. It is asked for before
// memory is promised.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_MEMORYLIMIT_H
#define SEGUE_LIB_DRIVERS_MEMORYLIMIT_H

#include <cstdint>
#include <filesystem>
#include <optional>

namespace segue::inline runtime {

struct MemoryLimit {
  uint64_t bytes = 0;
  /// The file that gives the limit.
  std::filesystem::path file;
};

/// Returns the smallest limit of the control groups (cgroup v2) that hold this process, from
/// its own up to the root; empty where none is set or the system has none. `proc` and `groups`
/// are other places in tests.
std::optional<MemoryLimit> memoryLimit(const std::filesystem::path &proc = "/proc/self/cgroup",
                                       const std::filesystem::path &groups = "/sys/fs/cgroup");

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_MEMORYLIMIT_H
