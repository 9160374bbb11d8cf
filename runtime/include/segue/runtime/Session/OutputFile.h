//===- OutputFile.h - a file that appears whole or not at all ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What a run leaves behind is written beside its place, synced and renamed:
//
//   OutputFile file("checkpoint.safetensors");
//   file.write(header);
//   file.write(data);
//   file.commit();          // without it, nothing has happened
//
// The file beside is `<path>.partial`, locked while it is written. A process
// that is killed may leave it there; the next OutputFile of the same path
// takes it over: empty, or with what was written so far for work that can go
// on where it stopped (Existing::Keep). One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_OUTPUTFILE_H
#define SEGUE_RUNTIME_SESSION_OUTPUTFILE_H

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace segue::inline runtime {

class OutputFile {
public:
  /// What to do with a partial file of an earlier process, and with one's own
  /// that is not committed.
  enum class Existing { Discard, Keep };

  /// Opens `<path>.partial`. Throws IoFailed, also while another process is
  /// writing the same path.
  explicit OutputFile(std::filesystem::path path, Existing existing = Existing::Discard);
  /// Removes what was written, unless it was committed or is to be kept.
  ~OutputFile();
  OutputFile(const OutputFile &) = delete;
  OutputFile &operator=(const OutputFile &) = delete;

  /// Appends. Throws IoFailed (disk full).
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  /// Bytes of the partial file.
  uint64_t size() const;
  /// Makes it `bytes` long and takes the room on the disk now, so that a full
  /// disk is met before the work and not after it. Throws IoFailed.
  void resize(uint64_t bytes);
  /// Overwrites, or reads back, from a place inside of it. Throws IoFailed.
  void writeAt(uint64_t offset, std::span<const std::byte> bytes);
  void readAt(uint64_t offset, std::span<std::byte> bytes) const;
  /// Removes the partial file, whatever was to be kept. Nothing can follow.
  void discard();

  /// Makes the bytes durable and puts the file at its path, replacing what is
  /// there. Throws IoFailed, after which the old file is as it was.
  void commit();

private:
  [[noreturn]] void fail(const char *what) const;

  std::filesystem::path path_, partial_;
  Existing existing_;
  int descriptor_ = -1;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_OUTPUTFILE_H
