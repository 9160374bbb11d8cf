//===- TrainingText.cpp - the bytes of a text, where they lie -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TrainingText.h"
#include "Binaries.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace segue::tool {

TrainingText::TrainingText(std::string path) : path_(std::move(path)) {
  // A pipe is opened once, by who reads it to its end: its writer would not live through a second reader.
  // Files of /proc have bytes and no size.
  bool isFile = path_ != "-" && ::stat(path_.c_str(), &opened_) == 0 && S_ISREG(opened_.st_mode) && opened_.st_size > 0;
  if (!isFile) {
    kept_ = readAll(path_);
    size_ = kept_.size();
    return;
  }
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0 || ::fstat(descriptor_, &opened_) != 0)
    throw Error(ErrorCode::IoFailed, path_ + ": cannot be read: " + std::strerror(errno));
  size_ = uint64_t(opened_.st_size);
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM); // windows lie anywhere
}

TrainingText::~TrainingText() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

void TrainingText::read(uint64_t offset, std::span<char> bytes) const {
  if (descriptor_ < 0) {
    std::ranges::copy(std::string_view(kept_).substr(offset, bytes.size()), bytes.begin());
    return;
  }
  while (!bytes.empty()) {
    ssize_t count = ::pread(descriptor_, bytes.data(), bytes.size(), off_t(offset));
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      throw Error(ErrorCode::IoFailed, path_ + ": cannot be read: " + std::strerror(errno));
    if (count == 0) // it was cut, which its size tells
      break;
    bytes = bytes.subspan(size_t(count));
    offset += uint64_t(count);
  }
  checkUnchanged();
}

void TrainingText::checkUnchanged() const {
  struct stat now;
  auto timeOf = [](const struct stat &status) { return std::pair(status.st_mtim.tv_sec, status.st_mtim.tv_nsec); };
  if (::fstat(descriptor_, &now) != 0 || now.st_size != opened_.st_size || timeOf(now) != timeOf(opened_))
    throw Error(ErrorCode::SourceChanged, path_ + ": was written to while a run learns from it, so that no run could be "
                                                  "resumed to the same losses; replace the file by renaming another, or "
                                                  "let the run read a copy");
}

} // namespace segue::tool
