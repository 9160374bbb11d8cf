//===- BuildJournal.cpp - what a build has done so far --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "BuildJournal.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace segue::inline runtime {

BuildJournal::BuildJournal(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    fail("cannot be opened for writing");
  std::string text;
  char piece[1 << 16];
  for (ssize_t count; (count = ::read(descriptor_, piece, sizeof piece)) != 0;) {
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0) {
      int cause = errno;
      ::close(descriptor_);
      errno = cause;
      fail("cannot be read");
    }
    text.append(piece, size_t(count));
  }
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Json line;
    if (readJson(std::string_view(text).substr(begin, end - begin), line) || !line.is_object())
      break;
    lines_.push_back(std::move(line));
    ends_.push_back(end + 1);
  }
}

BuildJournal::~BuildJournal() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

void BuildJournal::fail(const char *what) const {
  throw Error(ErrorCode::IoFailed, path_.string() + ": " + what + ": " + std::strerror(errno));
}

void BuildJournal::keep(size_t count) {
  if (::ftruncate(descriptor_, count ? off_t(ends_[count - 1]) : 0) != 0)
    fail("cannot be shortened");
  lines_.resize(count);
  ends_.resize(count);
}

void BuildJournal::append(const nlohmann::ordered_json &line) {
  std::string text = line.dump() + "\n";
  ssize_t written = ::write(descriptor_, text.data(), text.size());
  if (written >= 0 && size_t(written) != text.size())
    errno = ENOSPC; // what is written of it counts as torn
  if (written < 0 || size_t(written) != text.size())
    fail("cannot be written");
  uint64_t before = ends_.empty() ? 0 : ends_.back();
  ends_.push_back(before + text.size());
  lines_.push_back(line);
}

void BuildJournal::remove() { ::unlink(path_.c_str()); }

} // namespace segue::inline runtime
