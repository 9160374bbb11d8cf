//===- Signatures.cpp - files that this user trusts -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Program/Signatures.h"
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <optional>
#include <pwd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace segue::inline runtime {

static constexpr size_t keyBytes = 32, lineBytes = 65;
using Key = std::array<unsigned char, keyBytes>;

namespace {
/// A file that is closed, and what went wrong with one.
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

/// Thrown within this file, and told as a sentence.
struct Problem {
  std::string sentence;
};
} // namespace

[[noreturn]] static void fail(const std::filesystem::path &path, const std::string &what) {
  throw Problem{path.string() + " " + what};
}

[[noreturn]] static void failSystem(const std::filesystem::path &path, const char *what) {
  fail(path, std::string(what) + ": " + std::strerror(errno));
}

static bool writeAll(const File &file, const void *data, size_t bytes) {
  for (auto *at = static_cast<const char *>(data); bytes != 0;) {
    ssize_t written = ::write(file.get(), at, bytes);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return false;
    at += written;
    bytes -= size_t(written);
  }
  return true;
}

/// All bytes from the start on.
static std::optional<std::string> readAll(const File &file) {
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

/// The folder, or nothing if there is none.
static File openFolder(const std::filesystem::path &path) {
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

static File makeFolder(const std::filesystem::path &path) {
  if (!path.is_absolute())
    fail(path, "is no place to keep a key: this user has no home folder");
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    failSystem(path, "cannot be made");
  File folder = openFolder(path);
  if (!folder)
    fail(path, "was removed");
  return folder;
}

/// The key, or nothing if there is none.
static std::optional<Key> readKey(const std::filesystem::path &path, const File &folder) {
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

/// A name that no other process uses.
static std::string temporaryName() {
  uint64_t number;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    number = uint64_t(::getpid());
  return "new-" + std::to_string(number);
}

/// The key; where there is none, a new one, whole under its name or not there.
/// Of several processes that make one, all take the first.
static Key makeKey(const std::filesystem::path &path, const File &folder) {
  if (std::optional<Key> key = readKey(path, folder))
    return *key;
  Key key;
  for (size_t have = 0; have < keyBytes;) {
    ssize_t count = ::getrandom(key.data() + have, keyBytes - have, 0);
    if (count < 0 && errno != EINTR)
      failSystem(path, "gets no key: no random numbers");
    have += size_t(std::max<ssize_t>(count, 0));
  }
  std::string name = temporaryName();
  File file(::openat(folder.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file)
    failSystem(path / "key", "cannot be made");
  bool isWritten = writeAll(file, key.data(), keyBytes) && ::fsync(file.get()) == 0;
  bool isPlaced = isWritten && (::linkat(folder.get(), name.c_str(), folder.get(), "key", 0) == 0 || errno == EEXIST);
  int cause = errno;
  ::unlinkat(folder.get(), name.c_str(), 0);
  ::OPENSSL_cleanse(key.data(), keyBytes);
  if (!isPlaced) {
    errno = cause;
    failSystem(path / "key", "cannot be made");
  }
  if (std::optional<Key> first = readKey(path, folder))
    return *first;
  fail(path / "key", "was removed");
}

//===----------------------------------------------------------------------===//
// Signatures
//===----------------------------------------------------------------------===//

/// A line of the list.
static std::string signatureOf(Key &key, std::span<const std::byte> file) {
  // The key of this use alone is derived first: another use may follow.
  static constexpr unsigned char use[] = "segue: machine code of a file, 1";
  unsigned char derived[EVP_MAX_MD_SIZE], digest[EVP_MAX_MD_SIZE];
  unsigned derivedBytes = 0, bytes = 0;
  bool done = ::HMAC(EVP_sha256(), key.data(), keyBytes, use, sizeof use, derived, &derivedBytes) &&
              ::HMAC(EVP_sha256(), derived, int(derivedBytes), reinterpret_cast<const unsigned char *>(file.data()),
                     file.size(), digest, &bytes);
  ::OPENSSL_cleanse(key.data(), keyBytes);
  ::OPENSSL_cleanse(derived, sizeof derived);
  if (!done || bytes != 32)
    throw Problem{"the cryptographic library of this system has no SHA-256"};
  std::string line;
  for (unsigned i = 0; i < bytes; ++i) {
    constexpr char digits[] = "0123456789abcdef";
    line += digits[digest[i] >> 4];
    line += digits[digest[i] & 15];
  }
  return line + "\n";
}

/// Lines may be torn by a full disk; one that is whole stands between two ends.
static bool lists(std::string_view list, std::string_view line) {
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

/// The list, locked against other writers until it is closed.
static File lockList(const std::filesystem::path &path, const File &folder) {
  while (true) {
    File list(::openat(folder.get(), "signatures", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!list)
      failSystem(path / "signatures", "cannot be written");
    while (::flock(list.get(), LOCK_EX) != 0)
      if (errno != EINTR)
        failSystem(path / "signatures", "cannot be locked");
    // A shorter list may have taken the name meanwhile.
    struct stat mine, named;
    if (::fstat(list.get(), &mine) == 0 && ::fstatat(folder.get(), "signatures", &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
      return list;
  }
}

/// Puts `text` in the place of the list, whole or not at all.
static void replaceList(const std::filesystem::path &path, const File &folder, std::string_view text) {
  std::string name = temporaryName();
  File file(::openat(folder.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file && writeAll(file, text.data(), text.size()) &&
      ::renameat(folder.get(), name.c_str(), folder.get(), "signatures") == 0)
    return;
  int cause = errno;
  ::unlinkat(folder.get(), name.c_str(), 0);
  errno = cause;
  failSystem(path / "signatures", "cannot be written");
}

std::string Signatures::sign(std::span<const std::byte> file) const {
  try {
    File folder = makeFolder(folder_);
    Key key = makeKey(folder_, folder);
    std::string line = signatureOf(key, file);
    File list = lockList(folder_, folder);
    std::optional<std::string> text = readAll(list);
    if (!text)
      failSystem(folder_ / "signatures", "cannot be read");
    if (lists(*text, line))
      return "";
    if (!text->empty() && text->back() != '\n')
      line = "\n" + line; // the last one was torn
    if (text->size() >= most * lineBytes) {
      size_t newer = text->find('\n', text->size() - most / 2 * lineBytes - 1);
      replaceList(folder_, folder, text->substr(newer == text->npos ? text->size() : newer + 1) + line);
    } else if (!writeAll(list, line.data(), line.size())) {
      failSystem(folder_ / "signatures", "cannot be written");
    }
    return "";
  } catch (const Problem &problem) {
    return problem.sentence;
  }
}

} // namespace segue::inline runtime
