//===- SignFile.cpp - signing a file for this user ------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SignatureParts.h"
#include "segue/runtime/Program/Signatures.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

namespace segue::inline runtime {

using namespace signatures;

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

/// A name that no other process uses.
static std::string temporaryName() {
  uint64_t number;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    number = uint64_t(::getpid());
  return "new-" + std::to_string(number);
}

/// The key; where there is none, a new one, whole under its name or not there.
/// Makes a key; several processes that make one all take the first.
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

std::string Signatures::codeOf(std::span<const std::byte> entry) const {
  try {
    File folder = makeFolder(folder_);
    Key key = makeKey(folder_, folder);
    return signatures::codeOf(key, cacheUse, entry);
  } catch (const Problem &) {
    return "";
  }
}

bool Signatures::hasCode(std::span<const std::byte> entry, std::string_view code) const {
  try {
    File folder = openFolder(folder_);
    std::optional<Key> key = folder ? readKey(folder_, folder) : std::nullopt;
    if (!key)
      return false;
    std::string own = signatures::codeOf(*key, cacheUse, entry);
    return code.size() == own.size() && ::CRYPTO_memcmp(code.data(), own.data(), own.size()) == 0;
  } catch (const Problem &) {
    return false;
  }
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
