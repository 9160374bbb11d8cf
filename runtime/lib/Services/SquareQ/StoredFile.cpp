//===- StoredFile.cpp - a safetensors file that must not change -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "StoredFile.h"
#include "../../FileMapping.h"
#include "Digest.h"
#include "segue/runtime/Error.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace segue::inline runtime {

StoredFile::StoredFile(const std::filesystem::path &path) : header_(SafetensorsFile::open(path)) {}

StoredFile::StoredFile(SafetensorsFile opened) : header_(std::move(opened)) { checkUnchanged(); }

const struct stat &StoredFile::status() const { return header_.mapping().status(); }

void StoredFile::read(const SafetensorsEntry &entry, uint64_t from, std::span<std::byte> bytes) const {
  if (!rangeFits(from, bytes.size(), entry.bytes))
    throw Error(ErrorCode::InvalidArgument, header_.path().string() + ": tensor \"" + entry.name + "\" has " +
                                                std::to_string(entry.bytes) + " bytes; a read passes its end");
  uint64_t offset = entry.offset + from;
  while (!bytes.empty()) {
    ssize_t count = ::pread(header_.mapping().descriptor(), bytes.data(), bytes.size(), off_t(offset));
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      throw Error(ErrorCode::IoFailed,
                  header_.path().string() + ": tensor \"" + entry.name + "\" cannot be read: " + std::strerror(errno));
    if (count == 0) {
      checkUnchanged();
      throw Error(ErrorCode::SourceChanged,
                  header_.path().string() + ": ends inside tensor \"" + entry.name + "\"; it was cut while in use");
    }
    bytes = bytes.subspan(size_t(count));
    offset += uint64_t(count);
  }
}

void StoredFile::checkUnchanged() const {
  std::string changed;
  auto note = [&](bool differs, const char *what) {
    if (differs)
      changed += (changed.empty() ? "" : ", ") + std::string(what);
  };
  const struct stat &opened = status();
  struct stat now;
  if (::stat(header_.path().c_str(), &now) != 0) {
    changed = std::string("is gone (") + std::strerror(errno) + ")";
  } else {
    note(now.st_size != opened.st_size, "size");
    note(now.st_mtim.tv_sec != opened.st_mtim.tv_sec || now.st_mtim.tv_nsec != opened.st_mtim.tv_nsec,
         "modification time");
    note(now.st_ino != opened.st_ino || now.st_dev != opened.st_dev, "inode");
    if (changed.empty())
      return;
    changed = "another " + changed + " than when it was opened";
  }
  throw Error(ErrorCode::SourceChanged,
              header_.path().string() + ": " + changed + "; it must stay as it is while a run reads it: start again");
}

std::string StoredFile::sha256(const std::atomic<bool> &stop) const {
  Sha256 digest;
  std::vector<std::byte> piece(size_t(1) << 20);
  for (off_t from = 0; from < status().st_size && !stop;) {
    ssize_t count = ::pread(header_.mapping().descriptor(), piece.data(), piece.size(), from);
    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0) {
      int cause = errno;
      checkUnchanged();
      throw Error(ErrorCode::IoFailed, header_.path().string() + ": cannot be read: " + std::strerror(cause));
    }
    digest.add(std::span(piece).first(size_t(count)));
    from += count;
  }
  return stop ? "stopped" : digest.hex();
}

void StoredFile::readAhead(const SafetensorsEntry &entry) const {
  ::posix_fadvise(header_.mapping().descriptor(), off_t(entry.offset), off_t(entry.bytes), POSIX_FADV_WILLNEED);
}

} // namespace segue::inline runtime
