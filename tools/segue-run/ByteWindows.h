//===- ByteWindows.h - batches of a byte-level language model ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A batch is some windows of a text: `tokens` are its bytes, `targets` the
// bytes one further on. In training, which windows is a function of seed and step
// alone, so that a resumed run sees what an unbroken one would have seen; in an
// evaluation they follow each other, so that each byte is looked at once.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_BYTEWINDOWS_H
#define SEGUE_TOOLS_SEGUERUN_BYTEWINDOWS_H

#include "TrainingText.h"
#include "segue/runtime/Session/Session.h"
#include <span>

namespace segue::tool {

class ByteWindows {
public:
  /// The inputs called `tokens` and `targets` of the session's modules say how
  /// many windows there are and how long: [batch, length] of i64 or i32.
  /// Throws NameUnknown if there is no such input, LayoutMismatch for other
  /// shapes, InvalidArgument if the text is shorter than a window.
  ByteWindows(const Session &session, TrainingTextRef text, std::string tokens, std::string targets);

  /// Sets both inputs of `batch` for micro-batch `part` of step `step`. Throws what TrainingText::read throws.
  void fill(TensorMap &batch, int64_t seed, int64_t step, int64_t part) const;

  /// Returns how many batches there are of windows that follow each other; what is left at the end is in none.
  int64_t batchesInOrder() const { return (int64_t(text_->size()) - 1) / tokensPerBatch(); }
  /// Sets both inputs of `batch` to those of batch `number`. Throws what TrainingText::read throws.
  void fillInOrder(TensorMap &batch, int64_t number) const;

  /// Returns the bytes that one batch learns from.
  int64_t tokensPerBatch() const { return batch_ * length_; }

private:
  /// Sets both inputs to the windows that begin at these bytes.
  void fillFrom(TensorMap &batch, std::span<const uint64_t> begins) const;

  DeviceRef device_;
  TrainingTextRef text_;
  std::string tokens_, targets_;
  ElementType tokensElement_, targetsElement_;
  int64_t batch_ = 0, length_ = 0;
};

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_BYTEWINDOWS_H
