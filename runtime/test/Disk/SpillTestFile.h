//===- SpillTestFile.h - folders, bytes and ways of spill files -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_DISK_SPILLTESTFILE_H
#define SEGUE_RUNTIME_TEST_DISK_SPILLTESTFILE_H

#include "../../lib/Disk/SpillEngine.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <new>
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace segue::inline runtime {

/// An empty folder on the disk of the build, removed at its end.
class DiskFolder {
public:
  DiskFolder() {
    std::string pattern = SEGUE_TEST_DISK "/segue-disk-test-XXXXXX";
    if (!::mkdtemp(pattern.data()))
      throw std::runtime_error("no folder in " SEGUE_TEST_DISK);
    path = pattern;
  }
  ~DiskFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  size_t fileCount() const { return size_t(std::distance(std::filesystem::directory_iterator(path), {})); }

  std::filesystem::path path;
};

/// Memory from `shift` bytes behind a multiple of 4096 on.
class ShiftedMemory {
public:
  explicit ShiftedMemory(size_t bytes, size_t shift = 0) : bytes_(bytes), shift_(shift) {
    memory_ = static_cast<std::byte *>(::operator new(bytes + shift + 1, std::align_val_t(4096)));
  }
  ~ShiftedMemory() { ::operator delete(memory_, std::align_val_t(4096)); }
  ShiftedMemory(const ShiftedMemory &) = delete;
  ShiftedMemory &operator=(const ShiftedMemory &) = delete;

  std::byte *data() const { return memory_ + shift_; }
  size_t size() const { return bytes_; }
  /// Other bytes for each seed.
  void fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (size_t at = 0; at < bytes_; at += 8) {
      uint64_t word = random();
      std::memcpy(data() + at, &word, std::min<size_t>(8, bytes_ - at));
    }
  }

private:
  std::byte *memory_;
  size_t bytes_, shift_;
};

/// The number of pages of a range of the file that lie in memory, for whomever.
inline size_t residentPages(const SpillFile &file, uint64_t offset, uint64_t bytes) {
  size_t page = size_t(::sysconf(_SC_PAGESIZE));
  uint64_t begin = offset / page * page;
  std::vector<unsigned char> isThere((offset + bytes - begin + page - 1) / page);
  if (::mincore(file.data() + begin, offset + bytes - begin, isThere.data()) != 0)
    throw std::runtime_error("mincore");
  return size_t(std::count_if(isThere.begin(), isThere.end(), [](unsigned char flags) { return flags & 1; }));
}

/// The descriptor of the one spill file of `folder` that this process has opened, which has no other way in.
inline int descriptorIn(const std::filesystem::path &folder) {
  for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (!gone && target.starts_with(folder.string() + "/"))
      return std::stoi(entry.path().filename().string());
  }
  throw std::runtime_error("no file in " + folder.string());
}

/// Runs `body` in a process of its own; returns how that ended, as waitpid says it.
template <typename Body> int inChild(Body &&body) {
  pid_t child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const std::exception &error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(status);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

/// One way to read and write: an engine, past the page cache or through it.
struct SpillWay {
  SpillOptions::Engine engine;
  bool mayBeDirect;

  friend std::ostream &operator<<(std::ostream &stream, const SpillWay &way) {
    return stream << (way.engine == SpillOptions::Engine::Ring ? "Ring" : "Threads")
                  << (way.mayBeDirect ? "Direct" : "Cached");
  }
};

/// The ways of this build on this kernel.
inline std::vector<SpillWay> spillWays() {
  std::vector<SpillWay> ways = {{SpillOptions::Engine::Threads, true}, {SpillOptions::Engine::Threads, false}};
  std::string refusal;
  SpillDescriptors none;
  none.cached = 0;
  if (makeRingEngine(none, 1, refusal))
    ways.insert(ways.end(), {{SpillOptions::Engine::Ring, true}, {SpillOptions::Engine::Ring, false}});
  return ways;
}

inline SpillOptions optionsOf(const SpillWay &way) {
  SpillOptions options;
  options.engine = way.engine;
  options.mayBeDirect = way.mayBeDirect;
  return options;
}

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_TEST_DISK_SPILLTESTFILE_H
