//===- TrainingText.h - the bytes of a text, where they lie -----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A text is as large as it likes: a file stays on the disk, and what a batch needs
// is read when it needs it, so that a run within a budget of memory takes none for
// what it learns from. What comes through a pipe is kept.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_TRAININGTEXT_H
#define SEGUE_TOOLS_SEGUERUN_TRAININGTEXT_H

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <sys/stat.h>

namespace segue::tool {

class TrainingText {
public:
  /// Opens a file, or reads a pipe or what is no file to its end; "-" is stdin. Throws IoFailed.
  explicit TrainingText(std::string path);
  ~TrainingText();
  TrainingText(const TrainingText &) = delete;
  TrainingText &operator=(const TrainingText &) = delete;

  uint64_t size() const { return size_; }

  /// Copies the bytes that begin at `offset`, all of which lie within the text. Throws IoFailed for a disk that cannot
  /// read, SourceChanged if the file has not been what it is now since it was opened: a run that is resumed would learn
  /// from other bytes.
  void read(uint64_t offset, std::span<char> bytes) const;

private:
  void checkUnchanged() const;

  std::string path_;
  /// -1 where `kept_` has all of it.
  int descriptor_ = -1;
  struct stat opened_ = {};
  uint64_t size_ = 0;
  std::string kept_;
};

using TrainingTextRef = std::shared_ptr<const TrainingText>;

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_TRAININGTEXT_H
