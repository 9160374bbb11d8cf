//===- OutputFile.h - a file that appears whole or not at all ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Whatever a run leaves behind is written through this class: beside its
// place, synced and renamed.
//
//   OutputFile::check("checkpoint.safetensors"); // before the long work
//   ...
//   OutputFile file("checkpoint.safetensors");
//   file.write(header);
//   file.write(data);
//   file.commit();          // without it, nothing has happened
//
// The file beside is `<path>.partial`, locked while it is written. A process
// that is killed may leave it there; the next OutputFile of the same path
// takes it over: empty, or with what was written so far for work that can go
// on where it stopped (Existing::Keep).
//
// Symbolic links are followed: the file that they lead to is replaced, in its
// own folder and with its permissions, and the links stay. (Another hard link to
// that file keeps the old bytes, since whoever reads it must not see half of the
// new.) A device, a pipe or /dev/stdout cannot be replaced: bytes go there as
// they are written, and commit only closes it. One thread.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_OUTPUTFILE_H
#define SEGUE_RUNTIME_OUTPUTFILE_H

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace segue::inline runtime {

class OutputFile {
public:
  /// Says what becomes of a partial file of an earlier process, and of one's own
  /// that is not committed.
  enum class Existing { Discard, Keep };

  /// Opens `<path>.partial`, or the device or pipe that `path` is (which for a
  /// pipe waits for its reader). Throws IoFailed for a directory, for a path
  /// that cannot be written, and while another process is writing the same
  /// path; with Keep also for a device or a pipe, which has no places to go back to.
  explicit OutputFile(std::filesystem::path path, Existing existing = Existing::Discard);
  /// Removes what was written, unless it was committed or is to be kept.
  ~OutputFile();
  OutputFile(const OutputFile &) = delete;
  OutputFile &operator=(const OutputFile &) = delete;

  /// Throws IoFailed where the constructor would, so that a long run can refuse
  /// at its start what it could not write at its end. Leaves everything as it is.
  static void check(const std::filesystem::path &path);
  /// Returns the path of the partial file, so that a process that is about to end at once
  /// can remove it; empty for a device or a pipe. Throws as `check` does.
  static std::filesystem::path partialOf(const std::filesystem::path &path);

  /// Appends bytes. Throws IoFailed (disk full).
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  /// Returns the bytes of the partial file.
  uint64_t size() const;
  /// Makes the partial file `bytes` long and takes the room on the disk now, so that a full
  /// disk is met before the work and not after it. Throws IoFailed.
  void resize(uint64_t bytes);
  /// Overwrites, or reads back, bytes at a place within the partial file. Throws IoFailed.
  void writeAt(uint64_t offset, std::span<const std::byte> bytes);
  void readAt(uint64_t offset, std::span<std::byte> bytes) const;
  /// Removes the partial file, even one that was to be kept. No other call may follow.
  void discard();

  /// Makes the bytes durable and puts the file at its path, replacing what is
  /// there. Throws IoFailed, after which the old file is as it was.
  void commit();

private:
  void openStream(bool isAppended);
  void openPartial();
  void takePermissions();
  [[noreturn]] void fail(const char *what) const;

  /// `given_` is the path that the user named and that errors name, `path_` the file that
  /// is replaced, and `partial_` the file beside it, which is empty for a device or a pipe.
  std::filesystem::path given_, path_, partial_;
  Existing existing_;
  int descriptor_ = -1;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_OUTPUTFILE_H
