//===- CheckpointHashes.h - whether a checkpoint is as it was written -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A checkpoint's metadata has an XXH3 hash of every tensor ("segue.hash.tensor."
// and its name in the file), over its name, role, element type, shape and bytes,
// and of every other value of the metadata ("segue.hash.metadata." and its key),
// over the key and the value. Two tensors that were exchanged are found as a
// flipped bit is. Hashes keep accidents out, not attackers.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTHASHES_H
#define SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTHASHES_H

#include "segue/runtime/Files/Safetensors.h"

namespace segue::inline runtime {

/// Tensors of this prefix are optimizer state, the others parameters.
inline constexpr std::string_view statePrefix = "segue.state.";

/// Adds the hashes of `tensors` and of all that `metadata` holds. Reads every
/// tensor, one after the other; those on a device without bytes are left out.
void addHashes(Metadata &metadata, const DeferredTensors &tensors);

/// Returns a hash as it stands in metadata: sixteen hexadecimal digits.
std::string hashText(uint64_t hash);

/// Returns true if a file has hashes.
bool hasHashes(const SafetensorsFile &file);

/// Throws FileCorrupt unless each value of the metadata has its hash, and each
/// hash its value or tensor.
void checkMetadataHashes(const SafetensorsFile &file);

/// Throws FileCorrupt unless the tensor has its hash. Reads all of its bytes.
void checkTensorHash(const SafetensorsFile &file, const SafetensorsEntry &entry);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SESSION_CHECKPOINTHASHES_H
