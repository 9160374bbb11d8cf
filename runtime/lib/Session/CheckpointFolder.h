//===- CheckpointFolder.h - checkpoints with a file of each rank -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A checkpoint in a folder is safetensors files, its parts, which ranks write at the same
// time, and a manifest, which is the index that Hugging Face has for weights in several files:
//
//   segue-<save>-00001-of-00002.safetensors    the part of rank 0, with hashes of its tensors
//   segue-<save>-00002-of-00002.safetensors
//   model.safetensors.index.json
//     {"metadata": {"total_size": <bytes of tensors>,
//                   "segue.checkpoint": "4", "segue.step": "7", ...   as in the metadata of a file
//                   "segue.save": "<16 digits>",
//                   "segue.parts": [{"bytes": <of the file>, "hash": "<of its header>"}, ...],
//                   "segue.hash": "<of all of this>"},
//      "weight_map": {"<tensor>": "<part>", ...}}
//
// The header of a part has the hashes of its tensors, so whoever needs some tensors
// knows that they are those of the manifest, and reads no others. Names of parts are
// those of one save: the checkpoint before is whole until the manifest is replaced.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTFOLDER_H
#define SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTFOLDER_H

#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Session/Checkpoint.h"
#include <span>

namespace segue::inline runtime {

/// A tensor of a checkpoint, by its name in files.
struct CheckpointTensor {
  std::string name;
  uint64_t bytes = 0;
  /// The rank that alone has it; none: every rank has it.
  std::optional<int> owner = {};
};

/// The ranks that write the tensors of a checkpoint, by the names of these.
using CheckpointWriters = std::map<std::string, int, std::less<>>;

/// Returns who writes what: the owner of a tensor what it has, and of the others, the largest first, each the rank that
/// has the least to write. Ranks that have the same list come to the same writers.
CheckpointWriters shareWriting(std::vector<CheckpointTensor> tensors, int ranks);

/// A CheckpointPart is what a manifest says of one part.
struct CheckpointPart {
  uint64_t bytes = 0;
  std::string hash;
};

/// Writes part `index` of `count` of a save, durably. Throws as saveCheckpoint.
CheckpointPart writeCheckpointPart(const std::filesystem::path &folder, const std::string &save, size_t index,
                                   size_t count, const DeferredTensors &tensors);

/// A save to a folder, as the one rank has it that writes the manifest. Until that is written the checkpoint before
/// is in force, and if it is not, the parts of this save go.
class CheckpointSave {
public:
  /// Makes the folder if it is missing, and keeps other processes from saving there. Throws IoFailed, and
  /// InvalidArgument where the folder has an index that no checkpoint has.
  explicit CheckpointSave(std::filesystem::path folder);
  ~CheckpointSave();

  /// Returns what stands in the names of the parts.
  const std::string &name() const { return name_; }
  /// Puts the parts, which have been written, into force, and removes those of other saves. Throws IoFailed, naming the
  /// rank, where a part is not here as it was written there; FileCorrupt where others than `writers` wrote a tensor.
  void commit(const Checkpoint &checkpoint, std::span<const CheckpointPart> parts, const CheckpointWriters &writers);

private:
  std::filesystem::path folder_;
  std::string name_;
  std::optional<OutputFile> manifest_;
};

/// Saves to a folder in one part.
void saveToFolder(const std::filesystem::path &folder, const Checkpoint &checkpoint);
/// Reads the checkpoint in a folder; see loadCheckpoint.
Checkpoint loadFromFolder(const DeviceRef &device, const std::filesystem::path &folder, const IsNeeded &isNeeded);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTFOLDER_H
