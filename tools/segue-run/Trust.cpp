//===- Trust.cpp - segue-run trust ----------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Signs the bytes that were verified, not what the path names a moment later.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Signatures.h"
#include <cstdio>
#include <span>

namespace segue::tool {

int trust(const TrustOptions &options) {
  Signatures signatures = Signatures::ofUser();
  for (const std::string &path : options.files) {
    std::string text = readAll(path);
    std::span<const std::byte> bytes = std::as_bytes(std::span(text.data(), text.size()));
    Binary binary = Binary::fromMemory(bytes, {.nativeCode = NativeCode::Refuse}, path == "-" ? "stdin" : path);
    if (std::string problem = signatures.sign(bytes); !problem.empty())
      throw Error(ErrorCode::IoFailed, binary.name() + " cannot be signed: " + problem);
    std::printf("%s: %zu kernels of machine code may run for you now; signed in %s\n", binary.name().c_str(),
                binary.kernels().size(), signatures.folder().c_str());
  }
  return Done;
}

} // namespace segue::tool
