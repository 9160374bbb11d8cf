//===- MemoryKinds.cpp - what memory is held for --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Reports/MemoryKinds.h"

namespace segue::inline runtime {

std::string roleOf(const MemoryOwner &owner) {
  if (!owner.role.empty())
    return owner.role;
  return owner.value.empty() ? "unnamed" : owner.value;
}

std::string kindOfRole(const std::string &role) {
  static const std::map<std::string, std::string> known = {
      {"parameter", "weights"},         {"frozen", "weights"},      {"saved", "activations"},
      {"gradient", "gradients"},        {"state", "optimizer"},     {"input", "inputs and outputs"},
      {"output", "inputs and outputs"}, {"(arena)", "temporaries"}, {"(staging)", "temporaries"},
      {"(weights)", "weights"},         {"hyper", "temporaries"},   {"(pinned pool)", "activations"}};
  auto found = known.find(role);
  return found == known.end() ? "other" : found->second;
}

std::map<std::string, uint64_t> liveByRole(std::span<const MemoryHolder> holders) {
  std::map<std::string, uint64_t> bytes;
  for (const MemoryHolder &holder : holders)
    if (holder.liveBytes)
      bytes[roleOf(holder.owner)] += holder.liveBytes;
  return bytes;
}

std::map<std::string, uint64_t> liveByKind(const DeviceMemory &memory, Space space) {
  std::map<std::string, uint64_t> bytes;
  for (const auto &[role, live] : liveByRole(memory.holders(space)))
    bytes[kindOfRole(role)] += live;
  return bytes;
}

} // namespace segue::inline runtime
