//===- FileMapping.h - a file that is read where it lies --------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_FILEMAPPING_H
#define SEGUE_RUNTIME_LIB_FILEMAPPING_H

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <sys/stat.h>

namespace segue::inline runtime {

/// A mapped file: pages are read when they are touched, and cost no memory that the system
/// could not take back. If somebody cuts the file short while it is mapped, pages are gone:
/// the first FileMapping installs a handler of SIGBUS that puts zeros in their place, and
/// hands every other fault to the handler before it. So bytes that were read count only if
/// checkUnchanged() throws nothing after. Any thread may call.
class FileMapping {
public:
  /// Maps a regular file. Throws IoFailed.
  explicit FileMapping(std::filesystem::path path);
  ~FileMapping();
  FileMapping(const FileMapping &) = delete;
  FileMapping &operator=(const FileMapping &) = delete;

  const std::filesystem::path &path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_t(status_.st_size)}; }
  /// Returns the descriptor of the file that is mapped, whatever its path leads to by now.
  int descriptor() const { return descriptor_; }
  /// Returns the status that the file had when it was mapped.
  const struct stat &status() const { return status_; }

  /// Makes a write from here on show in the file's time. Times of files are those of a
  /// clock that ticks every few milliseconds: if the file was written to in this tick, this
  /// blocks until the next. Throws what checkUnchanged throws.
  void settle() const;

  /// Throws SourceChanged if the file that is mapped has another size or time of
  /// modification than when it was mapped. A file that was replaced by another, as by a
  /// rename, is what it was.
  void checkUnchanged() const;

  /// Gives up the memory that these bytes of the mapping take, in whole pages around them. Reading them
  /// again takes them from the file.
  void drop(std::span<const std::byte> bytes) const noexcept;

  /// Parts of a file, one behind the other in memory.
  class Parts;

private:
  struct Watch;

  std::filesystem::path path_;
  struct stat status_ = {};
  int descriptor_ = -1;
  const std::byte *data_ = nullptr;
  Watch *watch_ = nullptr;
};

class FileMapping::Parts {
public:
  struct Part {
    uint64_t offset = 0, bytes = 0;
  };
  /// Maps parts of `file`, whose offsets and sizes are of whole pages within the file. A cut of the file leaves them
  /// readable as it does `file` itself. Throws IoFailed.
  Parts(const FileMapping &file, std::span<const Part> parts);
  ~Parts();
  Parts(const Parts &) = delete;
  Parts &operator=(const Parts &) = delete;

  std::byte *data() const { return data_; }

private:
  uint64_t bytes_ = 0;
  std::byte *data_ = nullptr;
  Watch *watch_ = nullptr;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_FILEMAPPING_H
