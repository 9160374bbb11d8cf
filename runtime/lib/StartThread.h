//===- StartThread.h - a thread, or an error that helps ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_STARTTHREAD_H
#define SEGUE_RUNTIME_LIB_STARTTHREAD_H

#include "segue/runtime/Error.h"
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace segue::inline runtime {

/// Starts a thread to do what `purpose` says. Throws IoFailed where the system has none left: std::thread would say
/// neither for what it is missing nor which limit that is. Whoever has started others before ends them then.
template <typename Work> std::thread startThread(const std::string &purpose, Work &&work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error &error) {
    throw Error(ErrorCode::IoFailed, "no thread can be started to " + purpose + ": " +
                                         std::generic_category().message(error.code().value()) +
                                         "; let this user and this container have more of them (ulimit -u, pids.max)");
  }
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_STARTTHREAD_H
