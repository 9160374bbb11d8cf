//===- HostWords.cpp - words that kernels write to ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "HostWords.h"
#include <cstring>

namespace segue::inline runtime::cuda {

static constexpr size_t pageBytes = 32 << 10, wordsTogether = 2;

HostWords::~HostWords() {
  context_->use();
  for (void *page : pages_)
    (void)context_->succeeded(context_->api().hostFree(page), "cuMemFreeHost");
}

uint64_t *HostWords::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    void *page = nullptr;
    context_->check(context_->api().hostAlloc(&page, pageBytes, 0), "cuMemHostAlloc", ErrorCode::DeviceOom);
    pages_.push_back(page);
    std::memset(page, 0xff, pageBytes);
    for (size_t i = pageBytes / sizeof(uint64_t); i >= wordsTogether; i -= wordsTogether)
      free_.push_back(static_cast<uint64_t *>(page) + i - wordsTogether);
  }
  uint64_t *words = free_.back();
  free_.pop_back();
  return words;
}

void HostWords::give(uint64_t *words) {
  std::lock_guard lock(mutex_);
  std::memset(words, 0xff, wordsTogether * sizeof(uint64_t));
  free_.push_back(words);
}

void WordsOfLaunch::finish(Streams &streams, std::unique_ptr<WordsOfLaunch> launched) {
  if (streams.inBody())
    streams.keep(std::move(launched));
  else
    launched->settle();
}

} // namespace segue::inline runtime::cuda
