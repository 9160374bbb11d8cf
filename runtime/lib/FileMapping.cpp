//===- FileMapping.cpp - a file that is read where it lies ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "FileMapping.h"
#include "segue/runtime/Error.h"
#include <atomic>
#include <chrono>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace segue::inline runtime {

/// A range whose faults are ours. Never freed: a handler may be reading the list.
struct FileMapping::Watch {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<bool> wasCut{false};
  bool isTaken = true;
  Watch *next = nullptr;

  static Watch *take(uintptr_t begin, uintptr_t end);
  static void give(Watch *watch);
  static void install();
  static void handle(int number, siginfo_t *info, void *context);

  static std::atomic<Watch *> first;
  static std::mutex mutex;
  static struct sigaction before;
};

std::atomic<FileMapping::Watch *> FileMapping::Watch::first{nullptr};
std::mutex FileMapping::Watch::mutex;
struct sigaction FileMapping::Watch::before;

/// Puts zeros in the place of the page and of all behind it: the file ends there.
void FileMapping::Watch::handle(int number, siginfo_t *info, void *context) {
  int error = errno;
  uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Watch *watch = info->si_code > 0 ? first.load() : nullptr; watch; watch = watch->next) {
    if (address < watch->begin || address >= watch->end)
      continue;
    uintptr_t page = address & ~uintptr_t(sysconf(_SC_PAGESIZE) - 1);
    void *zeros = mmap(reinterpret_cast<void *>(page), watch->end - page, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED)
      break;
    watch->wasCut = true;
    errno = error;
    return;
  }
  if (before.sa_flags & SA_SIGINFO)
    return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    return before.sa_handler(number);
  if (before.sa_handler == SIG_IGN && info->si_code <= 0)
    return;
  // All goes as without us: the fault comes again and ends the process; what was sent is sent again.
  signal(number, SIG_DFL);
  if (info->si_code <= 0)
    raise(number);
}

void FileMapping::Watch::install() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, nullptr, &before); // before a fault can ask for it
    sigaction(SIGBUS, &action, nullptr);
  });
}

FileMapping::Watch *FileMapping::Watch::take(uintptr_t begin, uintptr_t end) {
  install();
  std::lock_guard lock(mutex);
  Watch *watch = first;
  while (watch && watch->isTaken)
    watch = watch->next;
  if (!watch) {
    watch = new Watch;
    watch->next = first;
    first = watch;
  }
  watch->isTaken = true;
  watch->wasCut = false;
  watch->end = end;
  watch->begin = begin;
  return watch;
}

void FileMapping::Watch::give(Watch *watch) {
  std::lock_guard lock(mutex);
  watch->end = 0;
  watch->begin = 0;
  watch->isTaken = false;
}

FileMapping::FileMapping(std::filesystem::path path) : path_(std::move(path)) {
  auto fail = [&](const char *what, int cause) {
    if (descriptor_ >= 0)
      ::close(descriptor_);
    return Error(ErrorCode::IoFailed, path_.string() + ": " + what + ": " + std::strerror(cause));
  };
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw fail("cannot be opened", errno);
  if (::fstat(descriptor_, &status_) != 0)
    throw fail("cannot be read", errno);
  if (!S_ISREG(status_.st_mode))
    throw fail("cannot be read", S_ISDIR(status_.st_mode) ? EISDIR : ESPIPE);
  if (status_.st_size == 0)
    return;
  void *data = ::mmap(nullptr, size_t(status_.st_size), PROT_READ, MAP_PRIVATE, descriptor_, 0);
  if (data == MAP_FAILED)
    throw fail("cannot be mapped", errno);
  data_ = static_cast<const std::byte *>(data);
  uintptr_t begin = reinterpret_cast<uintptr_t>(data), page = uintptr_t(sysconf(_SC_PAGESIZE));
  watch_ = Watch::take(begin, (begin + uintptr_t(status_.st_size) + page - 1) / page * page);
}

FileMapping::~FileMapping() {
  if (watch_)
    Watch::give(watch_);
  if (data_)
    ::munmap(const_cast<std::byte *>(data_), size_t(status_.st_size));
  ::close(descriptor_);
}

void FileMapping::drop(std::span<const std::byte> bytes) const noexcept {
  uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  ::madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED); // advice alone
}

FileMapping::Parts::Parts(const FileMapping &file, std::span<const Part> parts) {
  for (const Part &part : parts)
    bytes_ += part.bytes;
  void *data = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  data_ = data == MAP_FAILED ? nullptr : static_cast<std::byte *>(data);
  std::byte *at = data_;
  for (const Part &part : parts) {
    if (!data_ || ::mmap(at, part.bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, file.descriptor(), off_t(part.offset)) ==
                      MAP_FAILED) {
      int cause = errno;
      if (data_)
        ::munmap(data_, bytes_);
      throw Error(ErrorCode::IoFailed, file.path().string() + ": cannot be mapped: " + std::strerror(cause));
    }
    at += part.bytes;
  }
  watch_ = Watch::take(reinterpret_cast<uintptr_t>(data_), reinterpret_cast<uintptr_t>(data_) + bytes_);
}

FileMapping::Parts::~Parts() {
  Watch::give(watch_);
  ::munmap(data_, bytes_);
}

void FileMapping::settle() const {
  constexpr int mostMilliseconds = 20; // a time that lies ahead never comes
  for (int i = 0; i < mostMilliseconds; ++i) {
    timespec now;
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now); // what files are stamped by
    if (std::pair(now.tv_sec, now.tv_nsec) > std::pair(status_.st_mtim.tv_sec, status_.st_mtim.tv_nsec))
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  checkUnchanged();
}

void FileMapping::checkUnchanged() const {
  struct stat now;
  bool isThere = ::fstat(descriptor_, &now) == 0;
  const char *what = watch_ && watch_->wasCut                                     ? "was cut short"
                     : !isThere || now.st_size != status_.st_size                 ? "has another size"
                     : now.st_mtim.tv_sec != status_.st_mtim.tv_sec ||
                             now.st_mtim.tv_nsec != status_.st_mtim.tv_nsec ? "was written to"
                                                                            : nullptr;
  if (what)
    throw Error(ErrorCode::SourceChanged, path_.string() + ": " + what +
                                              " while it was read, so that what was read is of no one file; replace "
                                              "files by renaming others, and read it again");
}

} // namespace segue::inline runtime
