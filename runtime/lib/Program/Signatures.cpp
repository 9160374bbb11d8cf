//===- Signatures.cpp - files that this user trusts -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Signatures.h"
#include "SignatureParts.h"
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pwd.h>
#include <sys/stat.h>

namespace segue::inline runtime {

using namespace signatures;

void signatures::fail(const std::filesystem::path &path, const std::string &what) {
  throw Problem{path.string() + " " + what};
}

void signatures::failSystem(const std::filesystem::path &path, const char *what) {
  fail(path, std::string(what) + ": " + std::strerror(errno));
}

std::optional<std::string> signatures::readAll(const File &file) {
  std::string text;
  char piece[1 << 14];
  for (ssize_t count; (count = ::pread(file.get(), piece, sizeof piece, off_t(text.size()))) != 0;) {
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return std::nullopt;
    text.append(piece, size_t(count));
  }
  return text;
}

//===----------------------------------------------------------------------===//
// Folder and key
//===----------------------------------------------------------------------===//

Signatures Signatures::ofUser() {
  // A program with raised rights does not follow the environment of whoever
  // starts it.
  if (const char *data = ::secure_getenv("XDG_DATA_HOME"); data && data[0] == '/')
    return Signatures(std::filesystem::path(data) / "segue");
  const char *home = ::secure_getenv("HOME");
  if (!home || home[0] != '/') {
    passwd entry, *found = nullptr;
    char buffer[4096];
    home = ::getpwuid_r(::geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found ? found->pw_dir : "";
    return Signatures(std::filesystem::path(home) / ".local/share/segue");
  }
  return Signatures(std::filesystem::path(home) / ".local/share/segue");
}

static void requireOwn(const std::filesystem::path &path, const struct stat &status, mode_t forbidden,
                       const char *danger) {
  if (status.st_uid != ::geteuid())
    fail(path, "belongs to another user");
  if (status.st_mode & forbidden)
    fail(path, std::string(danger) + "; take that right away with chmod go-rwx");
}

File signatures::openFolder(const std::filesystem::path &path) {
  File folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) {
    if (errno == ENOENT)
      return folder;
    failSystem(path, "cannot be opened");
  }
  struct stat status;
  if (::fstat(folder.get(), &status) != 0)
    failSystem(path, "cannot be looked at");
  requireOwn(path, status, S_IWGRP | S_IWOTH, "can be written by others");
  return folder;
}

std::optional<Key> signatures::readKey(const std::filesystem::path &path, const File &folder) {
  File file(::openat(folder.get(), "key", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT)
      return std::nullopt;
    failSystem(path / "key", "cannot be opened");
  }
  struct stat status;
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    fail(path / "key", "is no file");
  requireOwn(path / "key", status, S_IRWXG | S_IRWXO, "can be read by others");
  std::optional<std::string> text = readAll(file);
  if (!text || text->size() != keyBytes)
    fail(path / "key", "is damaged; remove it, and a new one is made");
  Key key;
  std::memcpy(key.data(), text->data(), keyBytes);
  ::OPENSSL_cleanse(text->data(), keyBytes);
  return key;
}

//===----------------------------------------------------------------------===//
// Signatures
//===----------------------------------------------------------------------===//

std::string signatures::codeOf(Key &key, std::string_view use, std::span<const std::byte> bytesOf) {
  unsigned char derived[EVP_MAX_MD_SIZE], digest[EVP_MAX_MD_SIZE];
  unsigned derivedBytes = 0, bytes = 0;
  auto data = [](const auto &of) { return reinterpret_cast<const unsigned char *>(of.data()); };
  bool done = ::HMAC(EVP_sha256(), key.data(), keyBytes, data(use), use.size(), derived, &derivedBytes) &&
              ::HMAC(EVP_sha256(), derived, int(derivedBytes), data(bytesOf), bytesOf.size(), digest, &bytes);
  ::OPENSSL_cleanse(key.data(), keyBytes);
  ::OPENSSL_cleanse(derived, sizeof derived);
  if (!done || bytes != 32)
    throw Problem{"the cryptographic library of this system has no SHA-256"};
  std::string code;
  for (unsigned i = 0; i < bytes; ++i) {
    constexpr char digits[] = "0123456789abcdef";
    code += digits[digest[i] >> 4];
    code += digits[digest[i] & 15];
  }
  return code;
}

std::string signatures::signatureOf(Key &key, std::span<const std::byte> file) {
  static constexpr char use[] = "segue: machine code of a file, 1";
  return codeOf(key, std::string_view(use, sizeof use), file) + "\n"; // the zero at its end belongs to it
}

bool signatures::lists(std::string_view list, std::string_view line) {
  for (size_t at = 0; (at = list.find(line, at)) != list.npos; ++at)
    if (at == 0 || list[at - 1] == '\n')
      return true;
  return false;
}

SignatureCheck Signatures::check(std::span<const std::byte> file) const {
  try {
    File folder = openFolder(folder_);
    std::optional<Key> key = folder ? readKey(folder_, folder) : std::nullopt;
    if (!key)
      return {false, "it is not signed: this user has compiled or trusted no file yet"};
    std::string line = signatureOf(*key, file);
    File list(::openat(folder.get(), "signatures", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    std::optional<std::string> text = list ? readAll(list) : std::nullopt;
    if (text && lists(*text, line))
      return {true, "it is signed with the key of this user"};
    return {false, "it is not signed with the key of this user: it was compiled elsewhere, or changed since"};
  } catch (const Problem &problem) {
    return {false, "its signature was not looked for: " + problem.sentence};
  }
}

} // namespace segue::inline runtime
