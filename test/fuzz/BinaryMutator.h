//===- BinaryMutator.h - .segue files with one thing wrong ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Bytes that are changed blindly seldom get past the FlatBuffer and the hashes.
// Here a file is read as a tree of tables, some fields of it are changed, and it
// is written again with right hashes: what a person would do who wants to harm.
// Names and roles are taken from elsewhere in the file, so that programs go on
// fitting together almost.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_FUZZ_BINARYMUTATOR_H
#define SEGUE_TEST_FUZZ_BINARYMUTATOR_H

#include "Program/TestFile.h"
#include <optional>
#include <random>
#include <span>

namespace segue::test {

/// Whether all numbers of 8 bytes lie where they can be read: the verifier of FlatBuffers
/// looks at where the count of a vector lies, and not at its numbers.
bool areNumbersAligned(const schema::Binary &root);

/// The tables and segments of a file; nothing where its FlatBuffer, its numbers or the
/// places of its segments cannot be read.
std::optional<TestFile> readTables(std::span<const std::byte> file);

/// Changes one to four fields; returns the file, its hashes right.
Bytes mutate(TestFile file, std::mt19937_64 &random);

/// The file with `code` in the place of all code and a function of it, "nothing"
/// or, for kernels whose hash was changed to less than 16, "failing", in the place
/// of every kernel.
Bytes replaceKernels(TestFile file, const Bytes &code);

} // namespace segue::test

#endif // SEGUE_TEST_FUZZ_BINARYMUTATOR_H
