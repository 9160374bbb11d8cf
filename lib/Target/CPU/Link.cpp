//===- Link.cpp - object file to shared object ----------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// lld runs in this process. It reads and writes files, so a fresh folder is
// made and removed again.
//
//===----------------------------------------------------------------------===//

#include "Link.h"
#include "lld/Common/Driver.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include <mutex>

LLD_HAS_DRIVER(elf)

using namespace llvm;

static Error failed(const Twine &what) { return createStringError(inconvertibleErrorCode(), what); }

Expected<std::string> segue::linkShared(ArrayRef<std::string> objects) {
  // lld keeps its state in globals.
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);

  SmallString<128> folder;
  if (std::error_code code = sys::fs::createUniqueDirectory("segue-link", folder))
    return failed("no temporary folder for linking kernels: " + code.message());
  struct Remove {
    StringRef folder;
    ~Remove() { sys::fs::remove_directories(folder); }
  } remove{folder};

  auto pathOf = [&](const Twine &name) {
    SmallString<128> path(folder);
    sys::path::append(path, name);
    return std::string(path);
  };
  std::string output = pathOf("kernels.so");
  std::vector<std::string> inputs;
  for (size_t at = 0; at < objects.size(); ++at) {
    inputs.push_back(pathOf("kernels" + Twine(at) + ".o"));
    std::error_code code;
    raw_fd_ostream file(inputs.back(), code);
    file << objects[at];
    file.close();
    if (code || file.has_error())
      return failed("cannot write " + inputs.back());
  }

  std::vector<const char *> arguments = {"ld.lld",         "--shared",      "--no-undefined", "-z",
                                         "now",            "--build-id=none", "--hash-style=gnu", "--strip-all",
                                         "-soname=segue-kernels.so", "-o", output.c_str()};
  for (const std::string &input : inputs)
    arguments.push_back(input.c_str());
  std::string said;
  raw_string_ostream stream(said);
  lld::Result result = lld::lldMain(arguments, stream, stream, {{lld::Gnu, &lld::elf::link}});
  if (result.retCode != 0)
    return failed("linking kernels failed: " + stream.str());
  auto bytes = MemoryBuffer::getFile(output, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!bytes)
    return failed("linked kernels cannot be read: " + bytes.getError().message());
  return (*bytes)->getBuffer().str();
}
