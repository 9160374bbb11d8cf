//===- HostWords.h - words that kernels write to ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Words of page-locked memory. A kernel tells by them what seldom happens, a fault or a NaN:
// the host reads them when the entry has ended, and no copy is needed for the many
// launches that have nothing to tell.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_HOSTWORDS_H
#define SEGUE_LIB_CUDA_HOSTWORDS_H

#include "Streams.h"
#include <functional>
#include <vector>

namespace segue::inline runtime::cuda {

/// The words of a device, all bits set while nobody has them. Any thread.
class HostWords {
public:
  explicit HostWords(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
  ~HostWords();
  HostWords(const HostWords &) = delete;
  HostWords &operator=(const HostWords &) = delete;

  /// Returns two words that follow each other.
  uint64_t *take();
  void give(uint64_t *words);

private:
  std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  std::vector<void *> pages_;
  std::vector<uint64_t *> free_;
};

/// Two words of a launch, until the stream has come there. A lost device is never heard of
/// again, nor writes to what it was given.
class WordsOfLaunch final : public Given {
public:
  /// `settle` looks at the words when the work is done, and throws what they tell.
  using Settle = std::function<void(const volatile uint64_t *words)>;
  WordsOfLaunch(HostWords &all, Settle settle) : words(all.take()), all_(all), settle_(std::move(settle)) {}
  ~WordsOfLaunch() override { all_.give(words); }
  void settle() override { settle_(words); }

  /// Keeps `launched` until its work is done: that is now, outside of a body.
  static void finish(Streams &streams, std::unique_ptr<WordsOfLaunch> launched);

  uint64_t *const words;

private:
  HostWords &all_;
  Settle settle_;
};

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_HOSTWORDS_H
