//===- Signatures.h - files that this user trusts ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A .segue file holds machine code, which runs with all rights of the process.
// Whoever compiles a file signs it; only what is signed runs unasked (SECURITY.md).
//
//   Signatures signatures = Signatures::ofUser();
//   std::string problem = signatures.sign(file); // "": done
//   SignatureCheck check = signatures.check(file);
//
// A signature is the HMAC-SHA256 of the whole file under a random key that only
// this user can read. It is kept beside the key and not in the file: a file
// keeps its bytes, is trusted under any name and from any folder, through a
// pipe too, and not after one byte of it has changed or been appended.
//
//   folder/key         32 random bytes, made at the first signature
//   folder/signatures  a line of 64 hexadecimal digits per file, newest last
//
// Folder and key are used only if they belong to this user and nobody else can
// write the one or read the other. Without the key the signatures say nothing:
// a list from elsewhere trusts no file.
//
// Any thread and any number of processes may call at once. Nothing is thrown.
// Checking and signing need nothing else of the runtime: the compiler links no more.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_SIGNATURES_H
#define SEGUE_RUNTIME_PROGRAM_SIGNATURES_H

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace segue::inline runtime {

struct SignatureCheck {
  bool isSigned = false;
  /// The finding, as part of a sentence: "it is signed with
  /// the key of this user", "this user has no key yet".
  std::string reason;
};

class Signatures {
public:
  /// The number of signatures that are kept; the oldest go first. They are more than a user
  /// makes in years, and are read in a millisecond.
  static constexpr size_t most = 65536;

  /// Returns the signatures in $XDG_DATA_HOME/segue, or ~/.local/share/segue.
  static Signatures ofUser();
  explicit Signatures(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path &folder() const { return folder_; }

  /// Returns whether `file`, all bytes of a file, was signed. Makes
  /// and changes nothing; what cannot be read counts as not there.
  SignatureCheck check(std::span<const std::byte> file) const;

  /// Signs `file`, with a new key if there is none. Returns what stood in the way, naming
  /// the path, or "": a caller whose work is done goes on without a signature. Blocks while
  /// another process writes one. The function lies in the library
  /// SegueRuntime::SegueSigning, which programs that only run files do without.
  std::string sign(std::span<const std::byte> file) const;

  /// Returns a code that only who can read this user's key can make of the bytes of a cache entry, 64 hexadecimal digits;
  /// empty if there can be no key. It is kept by the caller, in no list, and signs no file.
  std::string codeOf(std::span<const std::byte> entry) const;
  /// Returns whether `code` is that of the entry. Makes and changes nothing. Both lie in SegueSigning.
  bool hasCode(std::span<const std::byte> entry, std::string_view code) const;

private:
  std::filesystem::path folder_;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_SIGNATURES_H
