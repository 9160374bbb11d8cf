//===- SpillFolder.cpp - a file without a name, with all of its room ------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SpillFolder.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

namespace segue::inline runtime {

std::string spillSize(uint64_t bytes) {
  static constexpr const char *units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024)
    return std::to_string(bytes) + " bytes";
  double size = double(bytes) / 1024;
  int unit = 0;
  for (; size >= 1024 && unit < 5; ++unit)
    size /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", size, units[unit]);
  return text;
}

[[noreturn]] static void fail(const std::filesystem::path &folder, const std::string &what, int cause = 0) {
  std::string why = cause ? std::string(": ") + std::strerror(cause) : std::string();
  throw Error(ErrorCode::IoFailed, folder.string() + ": " + what + why);
}

//===----------------------------------------------------------------------===//
// The folder
//===----------------------------------------------------------------------===//

/// The name of what keeps the folder's files in memory; empty if nothing does.
static std::string memoryBehind(const std::filesystem::path &folder, const struct stat &status) {
  struct statfs system;
  if (::statfs(folder.c_str(), &system) == 0) {
    if (system.f_type == TMPFS_MAGIC)
      return "tmpfs";
    if (system.f_type == RAMFS_MAGIC)
      return "ramfs";
    if (system.f_type == HUGETLBFS_MAGIC)
      return "hugetlbfs";
  }
  // A file system on a disk of memory, whose name the kernel tells.
  char link[64], target[512];
  std::snprintf(link, sizeof link, "/sys/dev/block/%u:%u", major(status.st_dev), minor(status.st_dev));
  ssize_t size = ::readlink(link, target, sizeof target);
  std::string disk = std::filesystem::path(std::string(target, size_t(std::max<ssize_t>(size, 0)))).filename().string();
  return disk.starts_with("zram") || disk.starts_with("ram") ? disk : std::string();
}

void checkSpillFolder(const std::filesystem::path &folder) {
  struct stat status;
  if (::stat(folder.c_str(), &status) != 0)
    errno == ENOENT ? fail(folder, "there is no such folder for a spill file; make it, or name another")
                    : fail(folder, "cannot be looked at", errno);
  if (!S_ISDIR(status.st_mode))
    fail(folder, "is no folder; name the folder that a spill file is to lie in");
  if (std::string memory = memoryBehind(folder, status); !memory.empty())
    throw Error(ErrorCode::InvalidArgument, folder.string() + ": lies in memory (" + memory +
                                                "), so that what is put there frees none; name a folder on a disk");
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    fail(folder, "no spill file can be made here", errno);
}

int openUnnamedFile(const std::filesystem::path &folder, const SpillSeam &seam) {
  int descriptor = -1;
  if (seam.hasUnnamedFiles)
    descriptor = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  // File systems without it say EOPNOTSUPP, and some EISDIR, EINVAL or ENOENT.
  bool hasNone = descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT);
  if (!seam.hasUnnamedFiles || hasNone) {
    std::string path = (folder / ".segue-spill-XXXXXX").string();
    descriptor = ::mkostemp(path.data(), O_CLOEXEC);
    if (descriptor >= 0)
      ::unlink(path.c_str());
  }
  if (descriptor < 0)
    fail(folder, "no spill file can be made here", errno);
  // A file system that copies on write would need new room for each write: this file asks it
  // to write in place. Others do not know the flag, and do so anyway.
  struct statfs system;
  int flags = 0;
  if (::fstatfs(descriptor, &system) == 0 && system.f_type == BTRFS_SUPER_MAGIC &&
      ::ioctl(descriptor, FS_IOC_GETFLAGS, &flags) == 0) {
    flags |= FS_NOCOW_FL;
    ::ioctl(descriptor, FS_IOC_SETFLAGS, &flags);
  }
  return descriptor;
}

void nameFile(int descriptor, const std::filesystem::path &folder, const std::string &name) {
  std::string source = "/proc/self/fd/" + std::to_string(descriptor), target = (folder / name).string();
  // Another user's file of that name is never taken for this one: a name is new, or this fails.
  if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, target.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    if (errno == ENOENT || errno == EXDEV || errno == EPERM || errno == EOPNOTSUPP) // it once had one, and lost it
      throw Error(ErrorCode::Unsupported, folder.string() + ": its file system cannot give a name to a file without "
                                                            "one, so that nothing can be sealed there");
    fail(folder, "the spill file cannot get the name " + name, errno);
  }
  int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) { // not every file system can sync one
    ::fsync(directory);
    ::close(directory);
  }
}

//===----------------------------------------------------------------------===//
// Its room
//===----------------------------------------------------------------------===//

/// Returns the bytes that this process may still take.
static uint64_t freeBytes(int descriptor) {
  struct statfs system;
  return ::fstatfs(descriptor, &system) == 0 ? uint64_t(system.f_bavail) * uint64_t(system.f_bsize) : 0;
}

void throwNoRoom(int descriptor, const std::filesystem::path &folder, uint64_t bytes, int cause) {
  [[maybe_unused]] int ignored = ::ftruncate(descriptor, 0); // what is free without this file
  std::string what = "no room for a spill file of " + spillSize(bytes) + ": ";
  if (cause == ENOSPC)
    fail(folder, what + spillSize(freeBytes(descriptor)) +
                     " are free there; free more, name a folder on another disk, or ask for a smaller capacity");
  if (cause == EDQUOT)
    fail(folder, what + "a quota forbids it; name a folder on another disk, or ask for a smaller capacity");
  fail(folder, what + std::strerror(cause));
}

bool reserveRoom(int descriptor, const std::filesystem::path &folder, uint64_t bytes, const SpillSeam &seam) {
  // Beyond this limit the system does not say no but sends SIGXFSZ.
  struct rlimit most;
  if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && bytes > most.rlim_cur)
    fail(folder, "no room for a spill file of " + spillSize(bytes) + ": this process may write files of " +
                     spillSize(most.rlim_cur) +
                     " (ulimit -f, RLIMIT_FSIZE); raise that limit, or ask for a smaller capacity");
  // A disk that is filled to find that it is too small troubles everybody.
  if (struct statfs system; ::fstatfs(descriptor, &system) == 0 && system.f_blocks != 0 &&
                            bytes > uint64_t(system.f_bfree) * uint64_t(system.f_bsize))
    throwNoRoom(descriptor, folder, bytes, ENOSPC);
  // The file is written in pieces, which a signal may interrupt and a slow disk finish one by one.
  constexpr uint64_t piece = 256 << 20;
  for (uint64_t begin = 0; begin < bytes && seam.hasReservation;) {
    uint64_t size = std::min(piece, bytes - begin);
    if (::fallocate(descriptor, 0, off_t(begin), off_t(size)) == 0) {
      begin += size;
      if (begin == bytes)
        return true;
      continue;
    }
    if (errno == EINTR)
      continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS)
      break;
    throwNoRoom(descriptor, folder, bytes, errno);
  }
  if (::ftruncate(descriptor, off_t(bytes)) != 0)
    throwNoRoom(descriptor, folder, bytes, errno);
  return false;
}

//===----------------------------------------------------------------------===//
// Past the page cache
//===----------------------------------------------------------------------===//

int openDirect(int descriptor, const std::filesystem::path &folder, uint64_t &addressAlignment) {
  addressAlignment = SpillFile::block;
  // Edges go through the page cache, so a block may not end within a page.
  if (SpillFile::block % uint64_t(::sysconf(_SC_PAGESIZE)) != 0)
    return -1;
#ifdef STATX_DIOALIGN // Linux 6.1
  struct statx status;
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN)) {
    if (status.stx_dio_offset_align == 0 || SpillFile::block % status.stx_dio_offset_align != 0)
      return -1;
    addressAlignment = std::max<uint64_t>(status.stx_dio_mem_align, 1);
  }
#endif
  std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  int direct = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (direct < 0)
    return -1;
  // Some take the flag and refuse the first transfer.
  alignas(SpillFile::block) static const std::byte zeros[SpillFile::block] = {};
  alignas(SpillFile::block) std::byte back[SpillFile::block];
  errno = EINVAL; // a short one refuses, too
  bool isWritten = ::pwrite(direct, zeros, sizeof zeros, 0) == ssize_t(sizeof zeros);
  if (isWritten && ::pread(direct, back, sizeof back, 0) == ssize_t(sizeof back))
    return direct;
  int cause = errno;
  ::close(direct);
  if (cause != EINVAL && cause != EOPNOTSUPP)
    fail(folder, isWritten ? "cannot be read" : "cannot be written", cause);
  return -1;
}

} // namespace segue::inline runtime
