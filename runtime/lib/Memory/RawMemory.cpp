//===- RawMemory.cpp - who has the bytes of a device ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Memory/RawMemory.h"
#include <algorithm>

namespace segue::inline runtime {

bool RawMemory::hasSpace(Space space) const {
  return std::ranges::any_of(spaces(), [&](const SpaceInfo &info) { return info.space == space; });
}

} // namespace segue::inline runtime
