//===- SignatureParts.h - the folder, the key and the list ------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// These parts are common to checking a signature (Signatures.cpp) and making one
// (SignFile.cpp). Checking is part of the runtime; signing is for tools that
// compile, and lies in a library of its own.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_SIGNATUREPARTS_H
#define SEGUE_LIB_PROGRAM_SIGNATUREPARTS_H

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace segue::inline runtime::signatures {

inline constexpr size_t keyBytes = 32, lineBytes = 65;
using Key = std::array<unsigned char, keyBytes>;

/// A file that is closed at the end.
class File {
public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File &&other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File &operator=(File &&other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File() {
    if (descriptor_ >= 0)
      ::close(descriptor_);
  }
  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

private:
  int descriptor_ = -1;
};

/// The exception of the functions below; check and sign report it as a sentence.
struct Problem {
  std::string sentence;
};
[[noreturn]] void fail(const std::filesystem::path &path, const std::string &what);
/// Throws Problem with what the system says.
[[noreturn]] void failSystem(const std::filesystem::path &path, const char *what);

/// Returns all bytes from the start on; nothing if they cannot be read.
std::optional<std::string> readAll(const File &file);

/// Opens the folder; returns no file if there is none.
File openFolder(const std::filesystem::path &path);

/// Returns the key, or nothing if there is none.
std::optional<Key> readKey(const std::filesystem::path &path, const File &folder);

/// Returns 64 hexadecimal digits: the HMAC-SHA256 of the bytes under a key that is derived for one use, so that a code of one
/// use is none of another. Wipes the key.
std::string codeOf(Key &key, std::string_view use, std::span<const std::byte> bytes);

/// Returns the line of the list for a file. Wipes the key.
std::string signatureOf(Key &key, std::span<const std::byte> file);

/// The use of codes of cache entries.
inline constexpr std::string_view cacheUse = "segue: an entry of a compile cache, 1";

/// Returns true if the line is one of the list. Lines may be torn by a full disk; one that
/// is whole stands between two ends.
bool lists(std::string_view list, std::string_view line);

} // namespace segue::inline runtime::signatures

#endif // SEGUE_LIB_PROGRAM_SIGNATUREPARTS_H
