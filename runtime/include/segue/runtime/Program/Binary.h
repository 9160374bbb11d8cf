//===- Binary.h - a verified .segue file ------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A Binary is a .segue file that has been checked to the last number: trailer,
// FlatBuffer, versions, segments, and for every program each index, offset,
// size, shape, alias and kernel reference. What is reached through it can be
// executed without looking again. Native code is not even mapped before the
// first Executor asks for a kernel.
//
//   Binary binary = Binary::load("gpt.segue");
//   for (const Program &program : binary.programs())
//     std::cout << program.name() << '\n';
//
// Binary and Program are handles over one shared image: cheap to copy, usable
// from any thread, alive as long as one of them is.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_BINARY_H
#define SEGUE_RUNTIME_PROGRAM_BINARY_H

#include "segue/runtime/Program/Program.h"
#include <filesystem>
#include <functional>

namespace segue::inline runtime {

/// NativeCode says whose kernels run. They are machine code with all rights of this process.
enum class NativeCode {
  /// Kernels run if this user has signed their file (Signatures.h), by compiling
  /// it or by `segue-run trust`. With SEGUE_ALLOW_NATIVE=1 in the environment,
  /// for embedders and builds that sign nothing, those of any file run.
  IfTrusted,
  /// The caller trusts the file: it has just compiled it, say.
  Allow,
  Refuse
};

struct LoadOptions {
  /// A file whose kernels may not run loads all the same, can be inspected, and
  /// is planned on devices without bytes; where a device would map its machine
  /// code, NATIVE_CODE_REFUSED says what to do. There is no slower code in place
  /// of a kernel: programs of library calls and copies alone run.
  NativeCode nativeCode = NativeCode::IfTrusted;
};

/// A NativeCodeLeave says whether the kernels of a file may run, and why.
struct NativeCodeLeave {
  bool isGiven = false;
  /// The reason, as a part of a sentence: "it is signed with the key of this user".
  std::string reason;
};

/// One compiled kernel of a binary, for inspection.
struct KernelInfo {
  std::string name;
  uint32_t arguments = 0, outputs = 0;
  /// The instruction sets of its variants: "x86-64-v3", "x86-64-v4", "ptx", "cubin sm_90".
  std::vector<std::string> isas;
  uint64_t hash = 0;
};

struct SegmentInfo {
  /// The kind of the segment: "elf", "constants", "ptx", "cubin".
  std::string kind;
  uint64_t offset = 0, bytes = 0, hash = 0;
  /// The compute capability that a cubin is for, times ten; 0 for other segments.
  uint32_t capability = 0;
};

class Binary {
public:
  // A Binary that was moved from is what it was.
  Binary(const Binary &) = default;
  Binary &operator=(const Binary &) = default;

  /// The newest version that this runtime reads. The major number must match;
  /// older minor numbers and vocabularies load, newer ones are refused.
  static constexpr uint32_t versionMajor = 0, versionMinor = 3, layoutVocabulary = 3;

  /// Maps the file read-only and checks it. The file must not be changed while
  /// it is loaded (replace it by rename instead). Throws IoFailed,
  /// FileCorrupt or VersionUnsupported, each naming the file.
  static Binary load(const std::filesystem::path &path, const LoadOptions &options = {});

  /// Loads a binary from bytes, which are copied.
  /// `name` stands for the file in messages.
  static Binary fromMemory(std::span<const std::byte> bytes, const LoadOptions &options = {},
                           std::string name = "memory");

  /// Returns the programs, in the order of the file.
  const std::vector<Program> &programs() const & { return programs_; }
  std::vector<Program> programs() && { return programs_; }
  bool hasProgram(std::string_view name) const;
  /// Throws NameUnknown listing the programs there are.
  const Program &program(std::string_view name) const &;
  Program program(std::string_view name) && { return program(name); }

  /// Returns a binary in memory whose program `program` has no outputs but those that `isKept` chooses, and neither
  /// commands nor inputs that these do not need; all else is as here, and its kernels run where these do. Throws
  /// NameUnknown, InvalidArgument for an empty `isKept`, and Unsupported where an output cannot be left out: one command makes it with others, or the program
  /// saves values for another one.
  Binary slice(std::string_view program, const std::function<bool(const Value &)> &isKept) const;

  /// Returns, for each output of a program, the first of those that slices have all or none of: one command makes several
  /// of them. Throws NameUnknown.
  std::vector<size_t> outputsMadeTogether(std::string_view program) const;

  /// Returns the path of the file, or the name given to fromMemory.
  const std::string &name() const &;
  std::string name() && { return name(); }
  /// Returns the tool that wrote the file; options() returns those it was given.
  std::string producer() const;
  std::vector<std::pair<std::string, std::string>> options() const;
  std::vector<KernelInfo> kernels() const;
  std::vector<SegmentInfo> segments() const;
  /// Returns whether the kernels may run, and why. The first call reads
  /// the whole file where a signature decides; the answer is kept.
  const NativeCodeLeave &nativeCodeLeave() const &;
  NativeCodeLeave nativeCodeLeave() && { return nativeCodeLeave(); }
  /// Returns the size of the whole file in bytes.
  uint64_t bytes() const;

private:
  explicit Binary(std::shared_ptr<const BinaryImage> image);

  std::shared_ptr<const BinaryImage> image_;
  std::vector<Program> programs_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_BINARY_H
