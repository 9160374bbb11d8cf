//===- TestFile.h - .segue files for tests ----------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Builds binaries with the object API of the schema, so that tests can also
// say what no compiler would.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_PROGRAM_TESTFILE_H
#define SEGUE_TEST_PROGRAM_TESTFILE_H

#include "binary_generated.h"
#include <cstddef>
#include <string>
#include <vector>

namespace segue::test {

using Bytes = std::vector<std::byte>;

/// A file in the making. Change `root` as you like before serialize().
struct TestFile {
  schema::BinaryT root;
  std::vector<Bytes> segments;
  /// False: the programs keep the hashes that they have.
  bool hashSignatures = true;

  TestFile();

  /// Adds a segment; returns its index.
  uint32_t addSegment(schema::SegmentKind kind, Bytes bytes);
  /// Adds a kernel of TestKernels.c with its sizes per argument.
  uint32_t addKernel(const std::string &symbol, uint32_t outputs, std::vector<uint64_t> fixedBytes,
                     std::vector<uint64_t> bytesPerUnit);
  schema::ProgramT &addProgram(const std::string &name);

  /// The file: FlatBuffer, segments, trailer.
  Bytes serialize();

private:
  uint32_t elf_ = UINT32_MAX;
};

/// Puts a right trailer on bytes whose old trailer is cut off or wrong.
/// `flatBufferBytes` is kept from the old one.
void reseal(Bytes &file);

/// The shared object of TestKernels.c.
Bytes testKernels();

// Parts of a program; each returns the index of what it adds.
uint32_t addInput(schema::ProgramT &program, const std::string &name, std::vector<int64_t> shape,
                  schema::ElementType element = schema::ElementType::f32, schema::Role role = schema::Role::input);
uint32_t addOutput(schema::ProgramT &program, const std::string &name, std::vector<int64_t> shape,
                   schema::ElementType element = schema::ElementType::f32, schema::Role role = schema::Role::output);
uint32_t addBuffer(schema::ProgramT &program, schema::BufferKind kind, uint32_t index, uint64_t offset, uint64_t bytes);
schema::LaunchT &addLaunch(schema::ProgramT &program, uint32_t kernel, std::vector<uint32_t> args, uint64_t range,
                           uint64_t grain = 1);
std::unique_ptr<schema::ViewT> view(uint32_t buffer, std::vector<int64_t> shape, std::vector<int64_t> strides,
                                    uint64_t offset = 0, schema::ElementType element = schema::ElementType::f32);
/// Adds a command that enters `phase`.
void addPhase(schema::ProgramT &program, schema::Phase phase);
template <typename Body> Body &addCommand(schema::ProgramT &program, Body body) {
  auto command = std::make_unique<schema::CommandT>();
  command->body.Set(std::move(body));
  program.commands.push_back(std::move(command));
  return *static_cast<Body *>(program.commands.back()->body.value);
}

/// "forward": doubled = 2 (x + y) over f32[n], with the sum in the arena.
TestFile makeAddFile(int64_t n);
/// "forward": out[i] = table[indices[i]], with a location.
TestFile makeGatherFile(int64_t n);

} // namespace segue::test

#endif // SEGUE_TEST_PROGRAM_TESTFILE_H
