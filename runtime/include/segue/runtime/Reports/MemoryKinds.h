//===- MemoryKinds.h - what memory is held for ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The books of a device name owners by role; people ask how much of each memory is
// weights, optimizer, gradients, activations, inputs and outputs, temporaries or other.
//
// Part of the library SegueReports.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_REPORTS_MEMORYKINDS_H
#define SEGUE_RUNTIME_REPORTS_MEMORYKINDS_H

#include "segue/runtime/Memory/DeviceMemory.h"
#include <map>
#include <span>
#include <string>

namespace segue::inline runtime {

/// Returns the role of an owner; buffers without a role go by their name, such as "(arena)".
std::string roleOf(const MemoryOwner &owner);

/// Returns the kind that a role belongs to, such as "weights".
std::string kindOfRole(const std::string &role);

/// Returns the live bytes of holders by role. Roles without bytes are left out. Any thread may call.
std::map<std::string, uint64_t> liveByRole(std::span<const MemoryHolder> holders);

/// Returns the live bytes of `space` by kind. Any thread may call.
std::map<std::string, uint64_t> liveByKind(const DeviceMemory &memory, Space space);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_REPORTS_MEMORYKINDS_H
