//===- StoredFile.h - a safetensors file that must not change ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A file that weights are streamed from for the length of a run. Its header is
// mapped and checked once; the data is read by pread into memory of the caller,
// so that a file cut short under us is an error and not a SIGBUS, and so that
// no more of it lies in memory than was asked for. Any thread may read.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_STOREDFILE_H
#define SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_STOREDFILE_H

#include "segue/runtime/Files/Safetensors.h"
#include <atomic>
#include <sys/stat.h>

namespace segue::inline runtime {

class StoredFile {
public:
  /// Opens a file. Throws what SafetensorsFile::open throws.
  explicit StoredFile(const std::filesystem::path &path);
  /// Takes a file that somebody has opened. Throws SourceChanged if another is at its path.
  explicit StoredFile(SafetensorsFile opened);
  StoredFile(const StoredFile &) = delete;
  StoredFile &operator=(const StoredFile &) = delete;

  const SafetensorsFile &header() const { return header_; }

  /// Reads `bytes.size()` bytes of an entry from its byte `from` on. Throws
  /// SourceChanged if the file is not the one that was opened, IoFailed.
  void read(const SafetensorsEntry &entry, uint64_t from, std::span<std::byte> bytes) const;

  /// Throws SourceChanged if size, modification time or inode of the file at the path
  /// differ from when it was opened. Called after a read: bytes that were read before the
  /// change are whole.
  void checkUnchanged() const;

  /// Returns the status that the file had when it was opened.
  const struct stat &status() const;

  /// Returns the SHA-256 of the whole file; gives up, with a text that is no hash, once
  /// `stop` is true.
  std::string sha256(const std::atomic<bool> &stop) const;

  /// Asks the system to read an entry ahead; returns at once.
  void readAhead(const SafetensorsEntry &entry) const;

private:
  SafetensorsFile header_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_STOREDFILE_H
