//===- Sample.h - a part of a long sweep ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SAMPLE_H
#define SEGUE_RUNTIME_TEST_SAMPLE_H

#include <cstdint>
#include <cstdlib>
#include <gtest/gtest.h>

namespace segue::test {

/// Returns the number that a check draws its samples with: SEGUE_SEED, which tools/check.py sets and prints. Null where
/// a test tries all.
inline const char *sampleSeed() { return std::getenv("SEGUE_SEED"); }

/// Where a sample begins: with each seed and in each test elsewhere. 0 where a test tries all.
inline uint64_t sampleStart() {
  if (!sampleSeed())
    return 0;
  uint64_t start = std::strtoull(sampleSeed(), nullptr, 10);
  for (const char *letter = testing::UnitTest::GetInstance()->current_test_info()->name(); *letter; ++letter)
    start += uint64_t(*letter);
  return start;
}

/// True for the cases of a sweep, numbered one after the other, that a test tries: all, or of a sample one in `of`. As
/// many seeds in a row try all.
inline bool isDrawn(uint64_t number, uint64_t of) { return !sampleSeed() || (number + sampleStart()) % of == 0; }

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_SAMPLE_H
