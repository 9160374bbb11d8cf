//===- ReadFile.cpp - all bytes of a file ---------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/ReadFile.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace segue::inline runtime {

[[noreturn]] static void failToRead(const std::string &name) {
  throw Error(ErrorCode::IoFailed, name + ": cannot be read: " + std::strerror(errno));
}

std::string readFile(int descriptor, const std::string &name) {
  struct stat status;
  bool hasSize = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  std::string bytes;
  // One more than a file has shows that it ends there. Files of /proc say 0, and pipes nothing.
  for (size_t room = hasSize ? size_t(status.st_size) + 1 : 0, size = 0;;) {
    bytes.resize(std::max({room, size + size / 2, size_t(4096)}));
    ssize_t count = ::read(descriptor, bytes.data() + size, bytes.size() - size);
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      failToRead(name);
    size += size_t(count);
    if (count == 0) {
      bytes.resize(size);
      return bytes;
    }
  }
}

std::string readFile(const std::filesystem::path &path) {
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    failToRead(path.string());
  struct Closing {
    int descriptor;
    ~Closing() { ::close(descriptor); }
  } closing{descriptor};
  return readFile(descriptor, path.string());
}

} // namespace segue::inline runtime
