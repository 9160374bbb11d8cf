//===- DriverApi.cpp - open the CUDA driver -------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DriverApi.h"
#include "segue/runtime/Error.h"
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <mutex>

namespace segue::inline runtime::cuda {

/// Opens `library`; the reason why it is of no use, or nothing.
static std::string load(Api &api, const std::string &library) {
  void *handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL); // stays for the life of the process
  if (!handle) {
    const char *reason = dlerror();
    return "there is no CUDA driver: " + std::string(reason ? reason : library);
  }
#define SEGUE_CUDA_LOOK_UP(name, symbol, ...)                                                                          \
  api.name = reinterpret_cast<Api::name##_t *>(dlsym(handle, #symbol));                                                \
  if (!api.name)                                                                                                       \
    return "the CUDA driver " + library + " has no " #symbol "; it is too old, CUDA 12 is the least";
  SEGUE_CUDA_CALLS(SEGUE_CUDA_LOOK_UP)
#undef SEGUE_CUDA_LOOK_UP
  if (CUresult result = api.init(0))
    return "the CUDA driver " + library + " does not start: cuInit gives " + api.describe(result);
  int version = 0;
  if (api.driverVersion(&version) || version < 12000)
    return "the CUDA driver " + library + " is of CUDA " + std::to_string(version / 1000) + "." +
           std::to_string(version % 1000 / 10) + "; 12.0 is the least";
  return "";
}

const Api &Api::open(const std::string &device) {
  static std::mutex mutex;
  static std::map<std::string, Api> opened;
  const char *other = std::getenv("SEGUE_CUDA_LIBRARY");
  std::string library = other && *other ? other : "libcuda.so.1";
  std::lock_guard lock(mutex);
  if (auto known = opened.find(library); known != opened.end())
    return known->second;
  Api api;
  if (std::string reason = load(api, library); !reason.empty())
    throw Error(ErrorCode::Unsupported, "device \"" + device + "\": " + reason);
  return opened.emplace(library, api).first->second;
}

std::string Api::describe(CUresult result) const {
  const char *name = nullptr, *text = nullptr;
  if (errorName(result, &name) || !name)
    name = "CUDA_ERROR";
  if (errorText(result, &text) || !text)
    text = "the driver has no text for it";
  return std::string(name) + " (" + std::to_string(result) + "): " + text;
}

} // namespace segue::inline runtime::cuda
