//===- Safetensors.h - tensors in files by name -----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The safetensors format: u64 length of a JSON header, the header, the bytes.
// Every number of the header is checked against the file before use: each
// entry's bytes fit its shape, and the entries cover the data without gap,
// overlap or rest.
//
//   SafetensorsFile file = SafetensorsFile::open("init.safetensors");
//   for (const SafetensorsEntry &entry : file.entries())
//     session.setParameter(entry.name, file.tensor(device, entry.name));
//
// A file is mapped, not read: replace it by rename, as saveSafetensors does,
// while a tensor of it lives. One that is changed in place ends nothing, but what
// was read of it is known by checkUnchanged() alone. Any thread may read.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_FILES_SAFETENSORS_H
#define SEGUE_RUNTIME_FILES_SAFETENSORS_H

#include "segue/runtime/HeldPointer.h"
#include "segue/runtime/Program/Module.h"
#include <filesystem>
#include <functional>

namespace segue::inline runtime {

using Metadata = std::map<std::string, std::string, std::less<>>;

class FileMapping;

struct SafetensorsEntry {
  std::string name;
  /// The type as the file spells it: "F32", "BF16", "U8", ...
  std::string dtype;
  /// The element type that stands for `dtype`; nothing for types that Segue lacks.
  std::optional<ElementType> element;
  Shape shape;
  /// The offset of its bytes from the start of the file, and their number.
  uint64_t offset = 0, bytes = 0;
};

class SafetensorsFile {
public:
  /// Maps and checks a file. Throws IoFailed, and FileCorrupt naming the file
  /// and the entry that is wrong.
  static SafetensorsFile open(const std::filesystem::path &path);

  // A temporary gives copies: a range over SafetensorsFile::open(path).entries() is one over what is there.

  const std::filesystem::path &path() const & { return path_; }
  const Metadata &metadata() const & { return metadata_; }
  /// Returns the tensors, sorted by name.
  const std::vector<SafetensorsEntry> &entries() const & { return entries_; }
  std::filesystem::path path() && { return path_; }
  Metadata metadata() && { return metadata_; }
  std::vector<SafetensorsEntry> entries() && { return entries_; }
  /// Returns the entry called `name`, or null if there is none.
  const SafetensorsEntry *find(std::string_view name) const &;
  const SafetensorsEntry *find(std::string_view name) && = delete;

  /// Returns the tensor called `name`: dense, read-only, in the mapped file (copied only
  /// where it is not aligned to its element). It keeps the mapping alive. Throws
  /// NameUnknown with the nearest name, Unsupported for an element type that Segue lacks.
  Tensor tensor(const DeviceRef &device, std::string_view name) const;
  /// Returns the tensor in memory of its own. Throws what tensor() throws, and SourceChanged.
  Tensor copyOf(const DeviceRef &device, std::string_view name) const;

  /// Call this when tensors or bytes were read: throws SourceChanged if the
  /// file was cut or written to since it was opened, so that what was read may be
  /// of the one or of the other, or zeros. One that was replaced by a rename is
  /// read as it was.
  void checkUnchanged() const;
  /// Call this before they are read if every write must be noticed: blocks for
  /// some milliseconds if the file has just been written, until a write gives it
  /// another time. Throws SourceChanged.
  void settle() const;

  /// Returns the stored bytes of an entry of this file, whatever their type and alignment,
  /// in the mapped file. They are valid while the file, or a tensor of it, lives.
  std::span<const std::byte> bytes(const SafetensorsEntry &entry) const &;
  std::span<const std::byte> bytes(const SafetensorsEntry &entry) && = delete;
  /// Returns all that stands before the bytes of tensors.
  std::span<const std::byte> header() const &;
  std::span<const std::byte> header() && = delete;
  /// Returns the file that is mapped.
  const FileMapping &mapping() const & { return *mapping_; }
  const FileMapping &mapping() && = delete;

private:
  SafetensorsFile() = default;

  std::filesystem::path path_;
  Metadata metadata_;
  std::vector<SafetensorsEntry> entries_;
  uint64_t headerBytes_ = 0;
  HeldPointer<std::shared_ptr<const FileMapping>, "SafetensorsFile"> mapping_;
};

/// Returns all tensors of a file; throws what open and tensor throw.
TensorMap loadSafetensors(const DeviceRef &device, const std::filesystem::path &path);

/// A tensor that takes no memory until somebody reads it. `read` makes it, and may be called again.
struct DeferredTensor {
  Shape shape;
  ElementType element = ElementType::f32;
  std::function<Tensor()> read;
};
using DeferredTensors = std::map<std::string, DeferredTensor, std::less<>>;
/// Returns a tensor that is there already as one that is read when its turn comes.
DeferredTensor deferred(const Tensor &tensor);

/// Writes the tensors, dense, through an OutputFile: a reader of `path` sees the old file
/// or the new one, whole. Of what lies elsewhere than in the host's memory a piece is there at a time (forEachPiece), of
/// what is not made yet one tensor. Throws IoFailed, Unsupported for a tensor of a device that holds no bytes, and what
/// `read` throws.
void saveDeferred(const std::filesystem::path &path, const DeferredTensors &tensors, const Metadata &metadata = {});
void saveSafetensors(const std::filesystem::path &path, const TensorMap &tensors, const Metadata &metadata = {});

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_FILES_SAFETENSORS_H
