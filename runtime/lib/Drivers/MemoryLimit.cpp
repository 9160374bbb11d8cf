//===- MemoryLimit.cpp - what the system lets this process hold -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "MemoryLimit.h"
#include <charconv>
#include <fstream>
#include <string>

namespace segue::inline runtime {

/// The group's path in the hierarchy of version 2, whose line begins with "0::".
static std::optional<std::filesystem::path> groupOf(const std::filesystem::path &proc) {
  std::ifstream file(proc);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::/"))
      return std::filesystem::path(line.substr(4)).lexically_normal();
  return std::nullopt;
}

std::optional<MemoryLimit> memoryLimit(const std::filesystem::path &proc, const std::filesystem::path &groups) {
  std::optional<std::filesystem::path> group = groupOf(proc);
  if (!group)
    return std::nullopt;
  std::optional<MemoryLimit> least;
  std::filesystem::path folder = groups;
  auto look = [&] {
    std::ifstream file(folder / "memory.max");
    std::string text; // a number, or "max"
    uint64_t bytes = 0;
    if (!(file >> text) || std::from_chars(text.data(), text.data() + text.size(), bytes).ec != std::errc())
      return;
    if (!least || bytes < least->bytes)
      least = MemoryLimit{bytes, folder / "memory.max"};
  };
  look(); // within a container, the root that it sees is its own group
  for (const std::filesystem::path &part : *group) {
    if (part == "..") // a group outside of what the container sees
      break;
    folder /= part;
    look();
  }
  return least;
}

} // namespace segue::inline runtime
