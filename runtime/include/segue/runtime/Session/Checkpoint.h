//===- Checkpoint.h - what a training run is resumed from -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A checkpoint is one safetensors file: parameters under their session keys,
// optimizer state under "segue.state.<name>", step, seed, notes of the caller's and what services
// remember in the metadata, with a hash of each tensor and of each of these.
// Other tools read it as a file of weights.
//
// At a path that ends with a slash, or is a folder, it is a folder with several such files,
// which ranks write at the same time, and one manifest, model.safetensors.index.json: the index that
// Hugging Face's tools have for weights in several files. It is read like any other. The ranks see one file system.
//
// A *sealed* checkpoint (Session::seal) holds no bytes of tensors that live on the disk of
// its run. It names the file there, segue-<of whom>-<number>.sealed, and where each of them lies in it, with
// their hashes; what lives in memory is in it as in any other. It is read like any
// other, while that file is there and no run writes to it; saveCheckpoint makes one of it that holds
// everything.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_CHECKPOINT_H
#define SEGUE_RUNTIME_SESSION_CHECKPOINT_H

#include "segue/runtime/Files/Safetensors.h"
#include <functional>

namespace segue::inline runtime {

struct Checkpoint {
  /// The trained and frozen values, by session key.
  TensorMap parameters;
  /// The optimizer state, by "m.<key>" and so on.
  TensorMap state;
  /// The number of steps that are finished.
  int64_t step = 0;
  int64_t seed = 0;
  /// Holds the state of Selective Precision as JSON; empty without it.
  std::string precision;
  /// Holds LossScaling::state; empty without it.
  std::string lossScale = {};
  /// What whoever trains keeps with it, as where it is in its data; text, not read by the runtime.
  std::string notes = {};
  /// More of the trained and frozen values, by session key, which take no memory until they are read: those that a
  /// session has in its slab, dequantised. What reads one throws what SlabSource::copyDequantized throws.
  DeferredTensors deferred = {};
  /// More of the optimizer state, as of ranks that have it; what reads it throws RankFailed.
  DeferredTensors deferredState = {};
  /// Throws SourceChanged if a file that the tensors lie in was changed since it
  /// was opened; empty: they lie in memory. Session::restore asks it when it has
  /// copied them.
  std::function<void()> checkSource;
};

/// Returns true if a checkpoint at `path` is a folder: it ends with a slash, or is a folder already.
bool isCheckpointFolder(const std::filesystem::path &path);
/// Returns the file whose place a new checkpoint at `path` takes: `path` itself, or the manifest in the folder.
std::filesystem::path checkpointFileOf(const std::filesystem::path &path);
/// Throws what a checkpoint at `path` cannot be written for, before the long work; see OutputFile::check. Makes the
/// folder that it is to be.
void checkCheckpointPath(const std::filesystem::path &path);

/// Writes atomically and durably; see OutputFile. Reads each tensor twice, for its
/// hash and for its bytes, with no more of them in the host's memory than saveDeferred has. Throws IoFailed.
void saveCheckpoint(const std::filesystem::path &path, const Checkpoint &checkpoint);

/// Says of a parameter or an optimizer state, by its key, if somebody will read it.
using IsNeeded = std::function<bool(const std::string &key, bool isState)>;

/// Reads a checkpoint; its tensors are read-only views of the mapped file. All of
/// it, or of its tensors those that are needed, is compared with its hashes first:
/// FileCorrupt names the tensor or the key of the metadata that is not as it was written. Checkpoints of version 1 have no
/// hashes: `warn`, if it is given, gets a sentence about it. The spill file of a sealed checkpoint is
/// locked against other runs as long as its tensors live, unless it is that of `device`. Throws IoFailed,
/// FileCorrupt, VersionUnsupported, and InvalidArgument for a safetensors file that
/// is not a checkpoint of ours; SourceChanged.
Checkpoint loadCheckpoint(const DeviceRef &device, const std::filesystem::path &path,
                          const std::function<void(const std::string &)> &warn = {}, const IsNeeded &isNeeded = {});

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_CHECKPOINT_H
