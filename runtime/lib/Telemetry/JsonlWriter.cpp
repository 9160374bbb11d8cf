//===- JsonlWriter.cpp - appends records to a telemetry file --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Telemetry/JsonlWriter.h"
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace segue::inline runtime {

JsonlWriter::JsonlWriter(std::filesystem::path path, Warn warn) : path_(std::move(path)), warn_(std::move(warn)) {
  if (!warn_)
    warn_ = [](const std::string &message) { std::fprintf(stderr, "segue: warning: %s\n", message.c_str()); };
}

JsonlWriter::~JsonlWriter() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

JsonlWriter::JsonlWriter(JsonlWriter &&other) noexcept
    : path_(std::move(other.path_)), warn_(std::move(other.warn_)), descriptor_(std::exchange(other.descriptor_, -1)),
      on_(std::exchange(other.on_, false)) {}

JsonlWriter &JsonlWriter::operator=(JsonlWriter &&other) noexcept {
  std::swap(path_, other.path_);
  std::swap(warn_, other.warn_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(on_, other.on_);
  return *this;
}

void JsonlWriter::turnOff(const char *what) noexcept {
  on_ = false;
  try {
    warn_("telemetry file \"" + path_.string() + "\" " + what + ": " + std::strerror(errno) +
          "; this telemetry is off from here on");
  } catch (...) {
    // A listener that throws does not stop the run either.
  }
  if (descriptor_ >= 0)
    ::close(std::exchange(descriptor_, -1));
}

/// Opens for appending, after the end of whatever line is last.
bool JsonlWriter::open() {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    return false;
  struct stat info;
  char last = '\n';
  if (::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0)
    (void)!::pread(descriptor_, &last, 1, info.st_size - 1);
  return last == '\n' || ::write(descriptor_, "\n", 1) == 1;
}

void JsonlWriter::write(const Json &record) noexcept {
  if (!on_)
    return;
  try {
    if (descriptor_ < 0 && !open())
      return turnOff("cannot be opened");
    std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
    ssize_t written;
    do
      written = ::write(descriptor_, line.data(), line.size());
    while (written < 0 && errno == EINTR);
    if (written == ssize_t(line.size()))
      return;
    if (written > 0) {
      // No half line stays: the part that the full disk took is cut off.
      errno = ENOSPC;
      struct stat info;
      if (::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode))
        (void)!::ftruncate(descriptor_, info.st_size - written);
      errno = ENOSPC;
    }
    turnOff("cannot be written");
  } catch (...) {
    errno = ENOMEM;
    turnOff("cannot be written");
  }
}

} // namespace segue::inline runtime
