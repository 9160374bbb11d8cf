//===- BinaryImage.h - the bytes and tables of a .segue file ----*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Binary, Program and Executor share a BinaryImage: the bytes, the verified
// FlatBuffer over them, signatures in the runtime's own types, and, once asked
// for, prepared programs.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_BINARYIMAGE_H
#define SEGUE_LIB_PROGRAM_BINARYIMAGE_H

#include "binary_generated.h"
#include "segue/runtime/Device/Kernel.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Binary.h"
#include <map>
#include <mutex>

namespace segue::inline runtime {

class PreparedProgram;

/// A read-only run of bytes in memory of its own: what was verified stays as it
/// is, whatever becomes of the file.
class FileBytes {
public:
  /// Reads a file. Throws IoFailed, SourceChanged if the file ends while it is read.
  static FileBytes read(const std::filesystem::path &path);
  static FileBytes copy(std::span<const std::byte> bytes);
  FileBytes(FileBytes &&other) noexcept;
  FileBytes(const FileBytes &) = delete;
  FileBytes &operator=(const FileBytes &) = delete;
  ~FileBytes();

  std::span<const std::byte> span() const { return {data_, size_}; }

private:
  FileBytes() = default;

  std::byte *data_ = nullptr;
  size_t size_ = 0;
};

/// A program in the runtime's own types, beside its verified table.
struct ProgramInfo {
  std::string name;
  std::vector<Value> inputs, outputs;
  std::vector<Alias> aliases;
  std::vector<SavePoint> savePoints;
  std::vector<Phase> phases;
  /// True if its first command enters phases[0].
  bool beginsWithPhase = false;
  uint64_t interfaceHash = 0;
  const schema::Program *table = nullptr;
};

class BinaryImage {
public:
  /// Verifies everything; throws as Binary::load does.
  BinaryImage(FileBytes bytes, std::string name, const LoadOptions &options);
  ~BinaryImage();

  const std::string &name() const { return name_; }
  const schema::Binary &root() const { return *root_; }
  const std::vector<ProgramInfo> &programs() const { return programs_; }
  std::span<const std::byte> bytes() const { return bytes_.span(); }
  std::span<const std::byte> segment(uint32_t index) const;

  /// Returns "model.py:12:3 (h.0.attn)" for an index into the locations, or an empty text.
  std::string location(int32_t index) const;

  /// Returns whether machine code may run, and why. Any thread may call.
  const NativeCodeLeave &nativeCodeLeave() const;
  /// Lets its machine code run if that of `other`, of which it was made, may. Called before anyone else has the image.
  void takeLeaveOf(const BinaryImage &other);

  /// Returns a kernel with its code. Throws NativeCodeRefused.
  KernelSource kernelSource(uint32_t kernel) const;

  /// Returns the prepared form of a program on a device, made at the first call.
  std::shared_ptr<PreparedProgram> prepared(const DeviceRef &device, size_t program) const;
  /// Drops the prepared forms of all programs on `device`. Any thread may call.
  void forget(const Device &device) const;

private:
  FileBytes bytes_;
  std::string name_;
  LoadOptions options_;
  const schema::Binary *root_ = nullptr;
  std::vector<ProgramInfo> programs_;

  mutable std::once_flag leaveOnce_;
  mutable NativeCodeLeave leave_;
  mutable std::mutex mutex_; // guards prepared_
  struct PreparedEntry {
    /// The device, which the program keeps alive.
    const Device *device;
    std::shared_ptr<PreparedProgram> program;
    uint64_t lastAsked;
  };
  mutable std::multimap<size_t, PreparedEntry> prepared_;
  mutable uint64_t asked_ = 0;
};

/// The error of verification. `line` is that of the check, by which BinaryRulesTest.cpp
/// knows whether each check has a file that breaks it.
struct BrokenRule : Error {
  BrokenRule(ErrorCode code, const std::string &what, int line = __builtin_LINE()) : Error(code, what), line(line) {}
  int line;
};

class EventSink;
/// Tells `events` of a phase that a command of `program` enters; errors name the program.
void enterPhase(const ProgramInfo &program, Phase phase, EventSink &events);

struct BlockUses;
/// Returns blockUses(program) for a program that has no handle yet.
BlockUses blockUses(const BinaryImage &image, const ProgramInfo &program);

/// Checks trailer, FlatBuffer and versions and returns the root. Throws.
const schema::Binary *verifyFile(std::span<const std::byte> file, const std::string &name);

/// Checks every number in the tables against the file. Throws FileCorrupt,
/// naming the program and the command.
void verifyTables(const schema::Binary &root, std::span<const std::byte> file, const std::string &name);

/// Checks names and roles across programs, after verifyTables. Throws FileCorrupt,
/// naming the program and the value.
void verifyNames(const schema::Binary &root, const std::string &name);

/// Returns the layout in the runtime's own type, not checked.
Layout readLayout(const schema::Layout &table);

/// Returns the description in the runtime's own type. Throws InvalidArgument.
TensorDesc readTensorDesc(const schema::TensorDesc &table);

/// Thrown by `numbers` while a file is verified; never after that. FlatBuffers
/// verifies where the count of a vector lies, but not where its numbers do.
struct Misaligned {};

/// Returns the vector, or an empty span where the field is absent.
template <typename T> std::span<const T> numbers(const flatbuffers::Vector<T> *vector) {
  if (!vector)
    return {};
  if (reinterpret_cast<uintptr_t>(vector->data()) % alignof(T) != 0)
    throw Misaligned();
  return {vector->data(), vector->size()};
}

/// Returns the size of a vector of tables that may be absent.
template <typename T> uint32_t countOf(const flatbuffers::Vector<T> *vector) { return vector ? vector->size() : 0; }

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_BINARYIMAGE_H
