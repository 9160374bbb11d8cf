//===- KernelLibrary.cpp - the native kernels of a binary -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "KernelLibrary.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/KernelTarget.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace segue::inline runtime {

static bool cpuRuns(schema::Isa isa) {
  const char *limit = std::getenv("SEGUE_ISA");
  switch (isa) {
  case schema::Isa::x86_64_v3:
    return __builtin_cpu_supports("x86-64-v3");
  case schema::Isa::x86_64_v4:
    return __builtin_cpu_supports("x86-64-v4") && !(limit && std::string_view(limit) == "v3");
  case schema::Isa::ptx:
    return false;
  }
  return false;
}

std::string kernelTarget() {
  return cpuRuns(schema::Isa::x86_64_v4) ? "x86-64-v4" : "x86-64-v3";
}

KernelLibrary::KernelLibrary(const BinaryImage &image) : image_(image) {}

KernelLibrary::~KernelLibrary() {
  for (auto &[segment, handle] : handles_) {
    dlclose(handle.library);
    close(handle.file);
  }
}

void *KernelLibrary::open(uint32_t segment) {
  auto known = handles_.find(segment);
  if (known != handles_.end())
    return known->second.library;
  auto fail = [&](const std::string &what) {
    return Error(ErrorCode::FileCorrupt, image_.name() + ": segment " + std::to_string(segment) + ": " + what);
  };
  int file = memfd_create("segue-kernels", MFD_CLOEXEC);
  if (file < 0)
    throw fail(std::string("cannot make a file in memory: ") + std::strerror(errno));
  std::span<const std::byte> bytes = image_.segment(segment);
  while (!bytes.empty()) {
    ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0) {
      Error error = fail(std::string("cannot copy its code: ") + std::strerror(errno));
      close(file);
      throw error;
    }
    bytes = bytes.subspan(size_t(written));
  }
  std::string path = "/proc/self/fd/" + std::to_string(file);
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    Error error = fail(std::string("cannot be mapped: ") + dlerror());
    close(file);
    throw error;
  }
  handles_[segment] = {library, file};
  return library;
}

KernelFunction KernelLibrary::find(uint32_t index) {
  std::lock_guard lock(mutex_);
  const schema::Kernel &kernel = *image_.root().kernels()->Get(index);
  const schema::KernelVariant *best = nullptr;
  for (uint32_t i = 0; i < countOf(kernel.variants()); ++i) {
    const schema::KernelVariant *variant = kernel.variants()->Get(i);
    if (cpuRuns(variant->isa()) && (!best || variant->isa() > best->isa()))
      best = variant;
  }
  std::string which = image_.name() + ": kernel \"" + kernel.name()->str() + "\"";
  if (!best)
    throw Error(ErrorCode::Unsupported,
                which +
                    " has no code for this CPU; x86-64-v3 (AVX2, FMA) is the least, compile with it among the targets");
  void *symbol = dlsym(open(best->segment()), best->symbol()->c_str());
  if (!symbol)
    throw Error(ErrorCode::FileCorrupt, which + ": its segment has no symbol \"" + best->symbol()->str() + "\"");
  return reinterpret_cast<KernelFunction>(symbol);
}

} // namespace segue::inline runtime
