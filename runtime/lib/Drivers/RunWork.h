//===- RunWork.h - an entry of a queue, from begin to end -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_RUNWORK_H
#define SEGUE_LIB_DRIVERS_RUNWORK_H

#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {

/// Runs the body of `work`, unless it may not begin, and tells how it ended.
inline void runWork(const Work &work) noexcept {
  auto end = [&](const Error *error) {
    if (work.ended)
      work.ended(error);
  };
  try {
    if (work.run && (!work.mayBegin || work.mayBegin()))
      work.run();
    else if (!work.run && work.mayBegin)
      work.mayBegin();
  } catch (const Error &error) {
    return end(&error);
  } catch (const std::exception &exception) {
    Error error(ErrorCode::InvalidArgument, exception.what());
    return end(&error);
  }
  end(nullptr);
}

/// Makes one copy, as often as `tries` says.
template <typename Copy> void copyWithTries(CopyTries *tries, Copy copy) {
  for (uint32_t failures = 0;;) {
    if (tries)
      tries->trying();
    try {
      return copy();
    } catch (const Error &error) {
      if (!tries || !tries->triesAgain(error, ++failures))
        throw;
    }
  }
}

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_RUNWORK_H
