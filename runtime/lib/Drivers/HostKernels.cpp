//===- HostKernels.cpp - kernels of files on this processor ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "HostKernels.h"
#include "segue/runtime/Device/KernelTarget.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

namespace segue::inline runtime {

static bool cpuRuns(KernelIsa isa) {
  const char *limit = std::getenv("SEGUE_ISA");
  switch (isa) {
  case KernelIsa::X86_64_V3:
    return __builtin_cpu_supports("x86-64-v3");
  case KernelIsa::X86_64_V4:
    return __builtin_cpu_supports("x86-64-v4") && !(limit && std::string_view(limit) == "v3");
  case KernelIsa::Ptx:
  case KernelIsa::Cubin:
    return false;
  }
  return false;
}

std::string kernelTarget() { return cpuRuns(KernelIsa::X86_64_V4) ? "x86-64-v4" : "x86-64-v3"; }

namespace {
/// An object of a file in the memory of this process.
class MappedObject {
public:
  /// Throws FileCorrupt, naming the segment of `variant`.
  MappedObject(const KernelSource &source, const KernelSource::Variant &variant);
  MappedObject(const MappedObject &) = delete;
  MappedObject &operator=(const MappedObject &) = delete;
  ~MappedObject() {
    if (library_)
      dlclose(library_);
    close(file_);
  }

  void *find(const std::string &symbol) const { return dlsym(library_, symbol.c_str()); }

private:
  /// The descriptor of the file, which stays open: dlopen tells libraries apart by "/proc/self/fd/<number>".
  int file_;
  void *library_ = nullptr;
};
} // namespace

MappedObject::MappedObject(const KernelSource &source, const KernelSource::Variant &variant)
    : file_(memfd_create("segue-kernels", MFD_CLOEXEC)) {
  // The file is not at fault where the system lacks or forbids something.
  auto fail = [&](const std::string &what, int cause) {
    bool isSystems = cause == EMFILE || cause == ENFILE || cause == ENOMEM || cause == EACCES || cause == EPERM;
    std::string wayOut = cause == EMFILE ? "; let this process open more files (ulimit -n)" : "";
    Error error(isSystems ? ErrorCode::IoFailed : ErrorCode::FileCorrupt,
                source.file + ": segment " + std::to_string(variant.segment) + ": " + what + wayOut);
    if (file_ >= 0)
      close(file_);
    throw error;
  };
  if (file_ < 0)
    fail(std::string("cannot make a file in memory: ") + std::strerror(errno), errno);
  for (std::span<const std::byte> bytes = variant.object; !bytes.empty();) {
    ssize_t written = write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      fail(std::string("cannot copy its code: ") + std::strerror(errno), errno);
    bytes = bytes.subspan(size_t(written));
  }
  std::string path = "/proc/self/fd/" + std::to_string(file_);
  errno = 0;
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library_) {
    int cause = errno;
    fail(std::string("cannot be mapped: ") + dlerror(), cause);
  }
}

static std::shared_ptr<const MappedObject> mapObject(const KernelSource &source, const KernelSource::Variant &variant) {
  static std::mutex mutex;
  static std::map<const std::byte *, std::weak_ptr<const MappedObject>> mapped;
  std::lock_guard lock(mutex);
  std::erase_if(mapped, [](const auto &entry) { return entry.second.expired(); });
  if (auto known = mapped.find(variant.object.data()); known != mapped.end())
    if (auto object = known->second.lock())
      return object;
  auto object = std::make_shared<const MappedObject>(source, variant);
  mapped[variant.object.data()] = object;
  return object;
}

KernelRef makeHostKernel(const KernelSource &source) {
  const KernelSource::Variant *best = nullptr;
  for (const KernelSource::Variant &variant : source.variants)
    if (cpuRuns(variant.isa) && (!best || variant.isa > best->isa))
      best = &variant;
  std::string which = source.file + ": kernel \"" + source.kernel + "\"";
  if (!best)
    throw Error(ErrorCode::Unsupported,
                which +
                    " has no code for this CPU; x86-64-v3 (AVX2, FMA) is the least, compile with it among the targets");
  std::shared_ptr<const MappedObject> object = mapObject(source, *best);
  void *symbol = object->find(best->symbol);
  if (!symbol)
    throw Error(ErrorCode::FileCorrupt, which + ": its segment has no symbol \"" + best->symbol + "\"");
  return std::make_shared<const HostKernel>(reinterpret_cast<KernelFunction>(symbol), std::move(object));
}

} // namespace segue::inline runtime
