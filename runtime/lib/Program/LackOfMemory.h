//===- LackOfMemory.h - the first of several lacks of memory ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A device that lacks memory for one command or program is to hear of the others, too:
// Device::bytesForPrograms knows of all of them then.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_LACKOFMEMORY_H
#define SEGUE_LIB_PROGRAM_LACKOFMEMORY_H

#include "segue/runtime/Error.h"
#include <optional>

namespace segue::inline runtime {

class LackOfMemory {
public:
  /// Calls `prepare`. Keeps an error of DeviceOom for throwIfAny; any other is thrown.
  template <typename Prepare> void attempt(Prepare prepare) {
    try {
      prepare();
    } catch (const Error &error) {
      if (error.code() != ErrorCode::DeviceOom)
        throw;
      if (!first_)
        first_ = error;
    }
  }
  /// Throws the first that was kept.
  void throwIfAny() const {
    if (first_)
      throw *first_;
  }

private:
  std::optional<Error> first_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_LACKOFMEMORY_H
