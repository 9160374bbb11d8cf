//===- CheckpointValues.h - what files say of a checkpoint ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Checkpoints of one file and of several (CheckpointFolder.h) have the same tensors and
// values, under the same names.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTVALUES_H
#define SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTVALUES_H

#include "segue/runtime/Session/Checkpoint.h"

namespace segue::inline runtime {

/// The key of the version; a part of a checkpoint has the other one instead.
inline constexpr std::string_view versionKey = "segue.checkpoint", partKey = "segue.part";

/// Returns the tensors by their names in files. Throws InvalidArgument for a parameter with the name of a state.
DeferredTensors tensorsOf(const Checkpoint &checkpoint);
/// Returns the version, step, seed and texts.
Metadata valuesOf(const Checkpoint &checkpoint, std::string_view version);
/// Reads what valuesOf has made, of the file at `path`. Throws FileCorrupt.
void readValues(const Metadata &values, const std::filesystem::path &path, Checkpoint &checkpoint);

/// Adds the tensors of a file, which are views of it; those that are needed are compared with their hashes first, if
/// there are any. Throws FileCorrupt.
void readTensors(const SafetensorsFile &file, const DeviceRef &device, const IsNeeded &isNeeded, bool haveHashes,
                 Checkpoint &checkpoint);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTVALUES_H
