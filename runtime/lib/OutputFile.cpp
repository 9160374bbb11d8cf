//===- OutputFile.cpp - a file that appears whole or not at all -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Error.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>
#include <utility>

namespace segue::inline runtime {

//===----------------------------------------------------------------------===//
// Where a path leads
//===----------------------------------------------------------------------===//

namespace {
struct Target {
  std::filesystem::path path;
  /// A device, a pipe or a socket.
  bool isStream = false;
  /// A file that this process or its parent has opened, as /dev/stdout may be:
  /// what is there stays, and its name may be another one by now.
  bool isOpened = false;
};
} // namespace

[[noreturn]] static void failAt(const std::filesystem::path &path, const std::string &what) {
  throw Error(ErrorCode::IoFailed, path.string() + ": " + what);
}

static std::filesystem::path folderOf(const std::filesystem::path &path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Returns true for links that are no text: those of /proc/self/fd.
static bool isInProc(const std::filesystem::path &path) {
  struct statfs info;
  return ::statfs(folderOf(path).c_str(), &info) == 0 && info.f_type == PROC_SUPER_MAGIC;
}

/// Follows symbolic links to the last one, also where that leads to nothing yet.
static Target resolve(const std::filesystem::path &given) {
  constexpr int mostLinks = 40; // as the kernel allows
  Target target{.path = given};
  if (given.filename().empty())
    failAt(given, "names no file");
  for (int links = 0;; ++links) {
    struct stat status;
    if (::lstat(target.path.c_str(), &status) != 0) {
      if (errno == ENOENT) // the folder may be missing too: opening says so
        return target;
      failAt(given, std::string("cannot be written: ") + std::strerror(errno));
    }
    if (S_ISLNK(status.st_mode)) {
      if (isInProc(target.path)) {
        target.isStream = target.isOpened = true;
        if (::stat(target.path.c_str(), &status) != 0)
          failAt(given, std::string("cannot be written: ") + std::strerror(errno));
      } else {
        if (links == mostLinks)
          failAt(given, std::string("cannot be written: ") + std::strerror(ELOOP));
        std::error_code failed;
        std::filesystem::path next = std::filesystem::read_symlink(target.path, failed);
        if (failed)
          failAt(given, "cannot be written: " + failed.message());
        target.path = next.is_absolute() ? next : folderOf(target.path) / next;
        continue;
      }
    }
    if (S_ISDIR(status.st_mode))
      failAt(given, "is a directory; name a file in it");
    target.isStream |= !S_ISREG(status.st_mode);
    // A file that is to stay as it is was made read-only: that a folder allows to
    // replace it is no permission.
    if (::faccessat(AT_FDCWD, target.path.c_str(), W_OK, AT_EACCESS) != 0)
      failAt(given, std::string("cannot be written: ") + std::strerror(errno));
    return target;
  }
}

static std::filesystem::path besides(const std::filesystem::path &path) {
  std::filesystem::path partial = path;
  partial += ".partial";
  return partial;
}

/// Returns true if `path` still names the file behind `descriptor`: the process that held
/// the lock before may have renamed or removed it.
static bool stillThere(int descriptor, const std::filesystem::path &path) {
  struct stat opened, named;
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

//===----------------------------------------------------------------------===//
// The file
//===----------------------------------------------------------------------===//

OutputFile::OutputFile(std::filesystem::path path, Existing existing) : given_(std::move(path)), existing_(existing) {
  Target target = resolve(given_);
  path_ = std::move(target.path);
  if (target.isStream) {
    openStream(target.isOpened);
  } else {
    partial_ = besides(path_);
    openPartial();
  }
}

void OutputFile::openStream(bool isAppended) {
  if (existing_ == Existing::Keep)
    failAt(given_, "is a device or a pipe, where nothing can be written again; name a file");
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | (isAppended ? O_APPEND : 0));
  if (descriptor_ < 0)
    fail("cannot be opened for writing");
}

void OutputFile::openPartial() {
  while (true) {
    // The file is not truncated before the lock is held, since another process may be writing.
    descriptor_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0)
      fail("cannot be opened for writing");
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      ::close(descriptor_);
      failAt(given_, "another process is writing it; wait for it, or choose another path");
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
  if (existing_ == Existing::Discard && !partial_.empty())
    ::unlink(partial_.c_str());
  ::close(descriptor_);
}

void OutputFile::check(const std::filesystem::path &path) {
  if (resolve(path).isStream)
    return;
  // The file of an earlier process is not ours to empty.
  OutputFile probe(path, Existing::Keep);
  if (probe.size() == 0)
    probe.discard();
}

std::filesystem::path OutputFile::partialOf(const std::filesystem::path &path) {
  Target target = resolve(path);
  return target.isStream ? std::filesystem::path() : besides(target.path);
}

void OutputFile::discard() {
  if (!partial_.empty())
    ::unlink(partial_.c_str());
  ::close(std::exchange(descriptor_, -1));
}

void OutputFile::fail(const char *what) const { failAt(given_, std::string(what) + ": " + std::strerror(errno)); }

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
  // Not every file system can reserve room; a write may fail later on one that cannot.
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

/// A file that is replaced keeps its permissions, and its owner where we may say so.
void OutputFile::takePermissions() {
  struct stat old;
  if (::stat(path_.c_str(), &old) != 0)
    return;
  [[maybe_unused]] int ignored = ::fchown(descriptor_, old.st_uid, old.st_gid);
  ignored = ::fchmod(descriptor_, old.st_mode & 07777);
}

void OutputFile::commit() {
  if (partial_.empty()) {
    if (::close(std::exchange(descriptor_, -1)) != 0)
      fail("cannot be written");
    return;
  }
  takePermissions();
  if (::fsync(descriptor_) != 0)
    fail("cannot be made durable");
  if (::rename(partial_.c_str(), path_.c_str()) != 0)
    fail("cannot be replaced");
  ::close(std::exchange(descriptor_, -1));
  // The rename itself becomes durable with the folder. Not every file system
  // can sync one; the file is complete either way.
  int descriptor = ::open(folderOf(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) {
    ::fsync(descriptor);
    ::close(descriptor);
  }
}

} // namespace segue::inline runtime
