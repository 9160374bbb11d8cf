//===- OpenLibrary.h - libraries that are opened at run time ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// cuBLASLt and NCCL come with a toolkit, as packages of a system or as wheels of Python,
// and a machine may have none of them.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_OPENLIBRARY_H
#define SEGUE_LIB_CUDA_OPENLIBRARY_H

#include "segue/runtime/Error.h"
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace segue::inline runtime::cuda {

/// Where a library is looked for.
struct LibraryPlaces {
  /// The name that people know it by.
  const char *name;
  /// The variable of the environment that names a file of it.
  const char *variable;
  /// Returns the files that are tried, in this order, where the variable is not set.
  std::vector<std::string> (*files)();
};

/// Returns the functions of the library whose table is an `Api`, opened once for each name in its variable. `load(api,
/// handle, file)` fills the table, and returns why the file is of no use or an empty text. Throws Unsupported with
/// `refusal(reason)` where there is none. Any thread may call.
template <typename Api, typename Load, typename Refusal>
const Api &openLibrary(const LibraryPlaces &places, Load load, Refusal refusal) {
  static std::mutex mutex;
  static std::map<std::string, Api> opened;
  const char *other = std::getenv(places.variable);
  std::string named = other ? other : "", reason;
  std::lock_guard lock(mutex);
  if (auto known = opened.find(named); known != opened.end())
    return known->second;
  for (const std::string &file : named.empty() ? places.files() : std::vector{named}) {
    void *handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL); // stays for the life of the process
    if (!handle) {
      const char *why = dlerror();
      if (reason.empty())
        reason = "there is no " + std::string(places.name) + ": " + (why ? why : file);
      continue;
    }
    Api api;
    if (reason = load(api, handle, file); reason.empty())
      return opened.emplace(named, api).first->second;
    break;
  }
  throw Error(ErrorCode::Unsupported, refusal(reason));
}

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_OPENLIBRARY_H
