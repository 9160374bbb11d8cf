//===- NcclApi.cpp - open NCCL --------------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "NcclApi.h"
#include "../OpenLibrary.h"
#include "ToolkitFiles.h"

namespace segue::inline runtime::cuda {

static constexpr int leastNccl = 21400;

/// Returns what may be the library: the name that the system looks up, then files of wheels.
static std::vector<std::string> placesOfNccl() {
  std::vector<std::string> files = {"libnccl.so.2"};
  for (std::string &file : schema::filesOfWheels(reinterpret_cast<const void *>(&placesOfNccl),
                                                 {"nvidia/nccl/lib/libnccl.so.2", "nvidia/cu13/lib/libnccl.so.2"}))
    files.push_back(std::move(file));
  return files;
}

/// Looks up the functions of `library`; the reason why it is of no use, or nothing.
static std::string loadNccl(NcclApi &api, void *handle, const std::string &library) {
#define SEGUE_NCCL_LOOK_UP(name, symbol, ...)                                                                          \
  api.name = reinterpret_cast<NcclApi::name##_t *>(dlsym(handle, #symbol));                                            \
  if (!api.name)                                                                                                       \
    return "the library " + library + " has no " #symbol "; it is too old, NCCL 2.14 is the least";
  SEGUE_NCCL_CALLS(SEGUE_NCCL_LOOK_UP)
#undef SEGUE_NCCL_LOOK_UP
  if (api.version(&api.versionCode) != ncclOk || api.versionCode < leastNccl)
    return "the library " + library + " is of version " + std::to_string(api.versionCode) +
           "; NCCL 2.14 (21400) is the least";
  return "";
}

const NcclApi &NcclApi::open() {
  return openLibrary<NcclApi>({"NCCL", "SEGUE_NCCL_LIBRARY", placesOfNccl}, loadNccl, [](const std::string &reason) {
    return reason + "; install it (pip install nvidia-nccl-cu13, which PyTorch for CUDA 13 brings, or libnccl2 of "
                    "NVIDIA's packages), and put the folder of libnccl.so.2 into LD_LIBRARY_PATH or name the file in "
                    "SEGUE_NCCL_LIBRARY";
  });
}

std::string NcclApi::describe(ncclResult_t result, ncclComm_t communicator) const {
  const char *text = errorText(result), *last = communicator ? lastError(communicator) : nullptr;
  return std::string(text ? text : "an error of NCCL") + " (" + std::to_string(result) + ")" +
         (last && *last ? ": " + std::string(last) : std::string());
}

} // namespace segue::inline runtime::cuda
