//===- BuiltinKernels.cpp - kernels that are part of the runtime ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BuiltinKernels.h"
#include "BuiltinPtx.h"
#include <algorithm>
#include <iterator>

namespace segue::inline runtime::cuda {

namespace {
enum class File : uint8_t {
#define SEGUE_BUILTIN_FILE(file, flushes) file,
  SEGUE_BUILTIN_FILES(SEGUE_BUILTIN_FILE)
#undef SEGUE_BUILTIN_FILE
};

constexpr struct {
  File file;
  const char *name;
} kernels[] = {
#define SEGUE_BUILTIN_ENTRY(file, name, args, addresses) {File::file, #name},
    SEGUE_BUILTIN_KERNELS(SEGUE_BUILTIN_ENTRY)
#undef SEGUE_BUILTIN_ENTRY
};

const char *const texts[] = {
#define SEGUE_BUILTIN_TEXT(file, flushes) ptxOf##file,
    SEGUE_BUILTIN_FILES(SEGUE_BUILTIN_TEXT)
#undef SEGUE_BUILTIN_TEXT
};

constexpr unsigned blockThreads = 256;
/// A grid of so many blocks per multiprocessor fills the device, and its blocks go on to what is left.
constexpr int64_t blocksPerMultiprocessor = 32;
} // namespace

BuiltinKernels::BuiltinKernels(std::shared_ptr<const Context> context, Streams &streams, HostWords &words)
    : context_(std::move(context)), streams_(streams), words_(words),
      mostBlocks_(context_->attribute(attributeMultiprocessors) * blocksPerMultiprocessor), modules_(std::size(texts)),
      functions_(std::size(kernels)) {}

BuiltinKernels::~BuiltinKernels() {
  context_->use();
  for (CUmodule module : modules_)
    if (module)
      (void)context_->succeeded(context_->api().moduleUnload(module), "cuModuleUnload");
}

CUfunction BuiltinKernels::find(Builtin kernel) {
  std::lock_guard lock(mutex_);
  CUfunction &function = functions_[size_t(kernel)];
  if (function)
    return function;
  auto [file, name] = kernels[size_t(kernel)];
  CUmodule &module = modules_[size_t(file)];
  if (!module)
    context_->check(context_->api().moduleLoad(&module, texts[size_t(file)]), "cuModuleLoadData", ErrorCode::DeviceOom);
  context_->check(context_->api().moduleFunction(&function, module, name), "cuModuleGetFunction");
  return function;
}

void BuiltinKernels::launchBytes(Builtin kernel, const void *args, int64_t items, int64_t perBlock) {
  if (items <= 0)
    return;
  context_->throwIfLost();
  context_->use();
  CUfunction function = find(kernel);
  auto blocks = unsigned(std::min((items - 1) / perBlock + 1, mostBlocks_));
  void *parameters[] = {const_cast<void *>(args)};
  streams_.give([&](CUstream stream) {
    context_->check(
        context_->api().launch(function, blocks, 1, 1, blockThreads, 1, 1, 0, stream, parameters, nullptr),
        "cuLaunchKernel");
  });
}

} // namespace segue::inline runtime::cuda
