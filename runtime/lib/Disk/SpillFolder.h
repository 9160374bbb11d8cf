//===- SpillFolder.h - a file without a name, with all of its room -*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_DISK_SPILLFOLDER_H
#define SEGUE_RUNTIME_LIB_DISK_SPILLFOLDER_H

#include "SpillEngine.h"
#include <string>

namespace segue::inline runtime {

/// Returns bytes as a text for a message: "640.0 MiB".
std::string spillSize(uint64_t bytes);

/// Throws as SpillFile::open does for a folder that does not exist, lies in memory or
/// cannot be written to.
void checkSpillFolder(const std::filesystem::path &folder);

/// Returns the descriptor of a new file without a name, of mode 0600, for reads and
/// writes through the page cache, which nameFile can give a name if the file system has
/// such files. Throws IoFailed.
int openUnnamedFile(const std::filesystem::path &folder, const SpillSeam &seam);

/// Gives the file a name in the folder, for good. Throws IoFailed, and Unsupported where that cannot be.
void nameFile(int descriptor, const std::filesystem::path &folder, const std::string &name);

/// Makes the file `bytes` long. Returns true if that has reserved all of its room,
/// false if the file system cannot reserve, so that all must be written once. Throws
/// IoFailed where the room is missing or forbidden.
bool reserveRoom(int descriptor, const std::filesystem::path &folder, uint64_t bytes, const SpillSeam &seam);
/// Throws IoFailed for a file of `bytes` that has met the errno `cause` on its way.
[[noreturn]] void throwNoRoom(int descriptor, const std::filesystem::path &folder, uint64_t bytes, int cause);

/// Opens the file once more, past the page cache; returns -1 where the file system
/// cannot do that in blocks of SpillFile::block. `addressAlignment` is then what
/// addresses in memory must be multiples of. Throws IoFailed if the disk fails.
int openDirect(int descriptor, const std::filesystem::path &folder, uint64_t &addressAlignment);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_DISK_SPILLFOLDER_H
