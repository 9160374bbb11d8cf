//===- BlasApi.cpp - open cuBLASLt ----------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BlasApi.h"
#include "OpenLibrary.h"
#include "ToolkitFiles.h"

namespace segue::inline runtime::cuda {

/// Returns what may be the library, in the order in which to try: names that the system
/// looks up, then files of wheels.
static std::vector<std::string> candidates() {
  std::vector<std::string> files = {"libcublasLt.so.13", "libcublasLt.so.12"};
  for (std::string &file :
       schema::filesOfWheels(reinterpret_cast<const void *>(&candidates),
                             {"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"}))
    files.push_back(std::move(file));
  return files;
}

/// Looks up the functions of `library`; the reason why it is of no use, or nothing.
static std::string load(BlasApi &api, void *handle, const std::string &library) {
#define SEGUE_CUBLASLT_LOOK_UP(name, symbol, ...)                                                                      \
  api.name = reinterpret_cast<BlasApi::name##_t *>(dlsym(handle, #symbol));                                            \
  if (!api.name)                                                                                                       \
    return "the library " + library + " has no " #symbol "; it is too old, cuBLAS 12 is the least";
  SEGUE_CUBLASLT_CALLS(SEGUE_CUBLASLT_LOOK_UP)
#undef SEGUE_CUBLASLT_LOOK_UP
  if (size_t version = api.version(); version < 120000)
    return "the library " + library + " is of version " + std::to_string(version) + "; cuBLAS 12 (120000) is the least";
  return "";
}

const BlasApi &BlasApi::open(const std::string &device) {
  return openLibrary<BlasApi>({"cuBLASLt", "SEGUE_CUBLASLT_LIBRARY", candidates}, load, [&](const std::string &reason) {
    return "device \"" + device + "\": products need cuBLASLt, and " + reason +
           "; install it (pip install nvidia-cublas==13.1.0.3, or a CUDA toolkit of 12 or 13), and put the folder of "
           "libcublasLt.so into LD_LIBRARY_PATH or name the file in SEGUE_CUBLASLT_LIBRARY";
  });
}

std::string BlasApi::describe(cublasStatus_t status) const {
  const char *name = statusName(status), *text = statusText(status);
  return std::string(name ? name : "CUBLAS_STATUS") + " (" + std::to_string(status) +
         "): " + (text ? text : "the library has no text for it");
}

} // namespace segue::inline runtime::cuda
