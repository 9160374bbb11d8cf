//===- OutputFile.cpp - a file that appears whole or not at all -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/OutputFile.h"
#include "segue/runtime/Error.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace segue::inline runtime {

/// True if `path` still names the file behind `descriptor`: the process that
/// held the lock before may have renamed or removed it.
static bool stillThere(int descriptor, const std::filesystem::path &path) {
  struct stat opened, named;
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

OutputFile::OutputFile(std::filesystem::path path, Existing existing)
    : path_(std::move(path)), partial_(path_), existing_(existing) {
  partial_ += ".partial";
  while (true) {
    // Not truncated before the lock is held: another process may be writing.
    descriptor_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0)
      fail("cannot be opened for writing");
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      ::close(descriptor_);
      throw Error(ErrorCode::IoFailed,
                  path_.string() + ": another process is writing it; wait for it, or choose another path");
    }
    if (stillThere(descriptor_, partial_))
      break;
    ::close(descriptor_);
  }
  if (existing_ == Existing::Discard && ::ftruncate(descriptor_, 0) != 0) {
    int cause = errno;
    ::close(descriptor_);
    errno = cause;
    fail("cannot be written");
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0)
    return;
  if (existing_ == Existing::Discard)
    ::unlink(partial_.c_str());
  ::close(descriptor_);
}

void OutputFile::discard() {
  ::unlink(partial_.c_str());
  ::close(std::exchange(descriptor_, -1));
}

void OutputFile::fail(const char *what) const {
  throw Error(ErrorCode::IoFailed, path_.string() + ": " + what + ": " + std::strerror(errno));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      fail("cannot be written");
    bytes = bytes.subspan(size_t(written));
  }
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

uint64_t OutputFile::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0)
    fail("cannot be looked at");
  return uint64_t(status.st_size);
}

void OutputFile::resize(uint64_t bytes) {
  if (::ftruncate(descriptor_, off_t(bytes)) != 0)
    fail("cannot be made that long");
  // Not every file system can reserve room: there, a write may fail later.
  int failed = bytes ? ::fallocate(descriptor_, 0, 0, off_t(bytes)) : 0;
  if (failed != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
    fail("cannot be given its room on the disk");
}

void OutputFile::writeAt(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), off_t(offset));
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      fail("cannot be written");
    bytes = bytes.subspan(size_t(written));
    offset += uint64_t(written);
  }
}

void OutputFile::readAt(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    ssize_t count = ::pread(descriptor_, bytes.data(), bytes.size(), off_t(offset));
    if (count < 0 && errno == EINTR)
      continue;
    if (count == 0)
      errno = ENODATA;
    if (count <= 0)
      fail("cannot be read back");
    bytes = bytes.subspan(size_t(count));
    offset += uint64_t(count);
  }
}

void OutputFile::commit() {
  if (::fsync(descriptor_) != 0)
    fail("cannot be made durable");
  if (::rename(partial_.c_str(), path_.c_str()) != 0)
    fail("cannot be replaced");
  ::close(std::exchange(descriptor_, -1));
  // The rename itself becomes durable with the folder. Not every file system
  // can sync one; the file is complete either way.
  std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) {
    ::fsync(descriptor);
    ::close(descriptor);
  }
}

} // namespace segue::inline runtime
