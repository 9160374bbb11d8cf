//===- SealedCheckpoint.h - checkpoints of what lies on a disk --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A sealed checkpoint is a safetensors file as other checkpoints are (Checkpoint.h), of
// version 3, whose metadata says where the rest lies:
//
//   segue.sealed.file           the spill file of the run, an absolute path
//   segue.sealed.bytes          its size
//   segue.sealed.tensor.<name>  {"element":"f32","shape":[2,3],"hash":"<XXH3 of the bytes>","extents":[[0,4096]]}
//
// All of it is hashed as other metadata is. The spill file is called
// segue-<hash of the checkpoint's path>-<random number>.sealed: so a run that has written
// a new checkpoint to a path knows the files of those that were written there before it, and
// no checkpoint can name a file of another kind. Their owner may have moved one of these
// elsewhere: the file that it names stays, and a warning names it.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_SEALEDCHECKPOINT_H
#define SEGUE_RUNTIME_LIB_SESSION_SEALEDCHECKPOINT_H

#include "../Drivers/DiskTier.h"
#include "segue/runtime/Session/Checkpoint.h"

namespace segue::inline runtime {

/// Writes a checkpoint of the tensors in memory, whose metadata says where the others are. Throws as saveCheckpoint.
void saveSealedCheckpoint(const std::filesystem::path &path, const Checkpoint &inMemory, const Metadata &sealed);

/// readSealed throws this where the run that sealed `file` may have sealed anew since that was opened: it is to be read
/// again. A run that ends, or is killed, while another waits for its spill file has written there until then.
struct SealedAnew {};

/// Adds the tensors that `file` says lie elsewhere; they are read-only views of that other file, whose bytes are
/// compared with their hashes first. Returns a function that throws SourceChanged if they were changed since. Throws
/// FileCorrupt for whatever is not as it was written, IoFailed where the file is not there or a run writes to it, SealedAnew.
std::function<void()> readSealed(const SafetensorsFile &file, const DeviceRef &device, Checkpoint &checkpoint);

/// Returns the spill file that the sealed checkpoint at `path` names; empty if there is none.
std::filesystem::path sealedFileOf(const std::filesystem::path &path);
/// Removes a file that lies in its folder itself, unless a process has locked it. Throws nothing.
void removeUnlocked(const std::filesystem::path &file) noexcept;

/// A ReplacedSeal is the spill file that the checkpoint at a path names, while that is written over. It is noted as named
/// by none, so that a later run removes it if this one is killed midway; and as named, if it stays.
class ReplacedSeal {
public:
  /// An empty path has none.
  explicit ReplacedSeal(std::filesystem::path path);
  ~ReplacedSeal();
  ReplacedSeal(const ReplacedSeal &) = delete;
  ReplacedSeal &operator=(const ReplacedSeal &) = delete;

  /// Removes it, as the checkpoint is written, unless a process uses it or it is of another checkpoint.
  void remove() noexcept;

private:
  std::filesystem::path path_, file_;
};

/// Returns true if what lies on the disk of such a device can be sealed, or of one whose twin it is.
bool canSealOn(const Device &device);
/// The error of who asks for seals on the device of this spec, on which nothing is sealed.
Error noDiskToSealOn(std::string_view spec);
/// Returns the bytes of the disk that a tensor takes which can be sealed where it lies; 0 for others.
uint64_t sealableBytes(const Tensor &tensor);
/// Returns the bytes of the disk that a dense copy of a tensor of this shape and type takes there.
uint64_t copyBytes(const TensorDesc &desc);

/// Seals the checkpoints of one session. Called on the thread that submits, between two steps.
class CheckpointSealer {
public:
  /// Throws Unsupported for a device without a disk, InvalidArgument for one that has sealed another checkpoint.
  CheckpointSealer(DeviceRef device, std::filesystem::path path);

  bool isAt(const std::filesystem::path &path) const;
  /// Takes as much of the disk as makes `room`. Throws as DiskTier::require does.
  void takeRoom(const SealRoom &room);
  /// Takes so many spare blocks that all that is sealed where it is in use may be written over at once.
  void requireSpareForAll() { disk_->require({.spareBytes = usedBytes_}); }

  /// Returns a sentence about how much of the disk seals take, for errors about missing room.
  std::string whatIsTaken() const;

  /// Returns the bytes that were written to the disk so far.
  uint64_t writtenBytes() const;
  /// Returns the bytes of the last checkpoint's file.
  uint64_t fileBytes() const { return fileBytes_; }

  /// A function that returns the hash of the bytes of a tensor on the disk, if somebody knows it.
  using HashOf = std::function<std::optional<uint64_t>(const Tensor &home)>;
  /// The parameters that no step changes, by session key. A number other than 0 stands for the bytes of one: it has the
  /// same as in another seal that had the number. Those of others are read to know it.
  using Frozen = std::map<std::string, uint64_t, std::less<>>;
  /// Makes `checkpoint`, whose tensors nobody writes meanwhile, the sealed one. What is frozen and lies elsewhere than
  /// on the disk is copied there, into the room for copies, unless a copy of the same bytes is there from before.
  /// Returns the bytes of the tensors that lie on the disk then. `warn` hears of files of earlier checkpoints at this
  /// path that nobody has written over. Throws as Session::seal.
  uint64_t seal(const Checkpoint &checkpoint, const Frozen &frozen, const HashOf &hashOf,
                const std::function<void(const std::string &)> &warn);
  /// Ends the seal.
  void unseal();

private:
  /// A tensor in the file: whole blocks at these offsets.
  struct Sealed {
    Shape shape;
    ElementType element = ElementType::f32;
    std::vector<SpillExtent> ranges;
    uint64_t hash = 0;
  };
  /// A copy of a frozen tensor, whose ranges are its own.
  struct Copy {
    Sealed sealed;
    /// The number that stood for the bytes; 0 if none did.
    uint64_t number = 0;
    bool isWhole = false;
  };
  using SealedTensors = std::map<std::string, Sealed>;

  Sealed inPlace(const std::string &name, const Tensor &tensor, const HashOf &hashOf) const;
  /// Returns the copy of a frozen parameter, or null if it has to be written into the checkpoint's file this time.
  const Sealed *copyOf(const std::string &key, const DeferredTensor &tensor, uint64_t number,
                       const std::function<void()> &checkSource);
  std::vector<SpillExtent> takeCopyRoom(uint64_t bytes);
  void write(const Tensor &tensor, std::vector<SpillExtent> to) const;
  bool hasSealed(const std::vector<SpillExtent> &ranges) const;
  Metadata describe(const SealedTensors &sealed) const;
  void removeFilesBefore(const std::function<void(const std::string &)> &warn) const;

  DeviceRef device_;
  DiskTier *disk_;
  std::filesystem::path path_;
  /// The name of the spill file.
  std::string name_;
  /// The tensors that are sealed now, by their name in the checkpoint, and the bytes of those that are no copies.
  SealedTensors sealed_;
  uint64_t usedBytes_ = 0, fileBytes_ = 0;
  /// Copies by session key, and the room that none has taken yet.
  std::map<std::string, Copy, std::less<>> copies_;
  std::vector<SpillExtent> copyRoom_;
  /// The number of those of DiskTier::copyRoom that were put there.
  size_t knownExtents_ = 0;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_SEALEDCHECKPOINT_H
