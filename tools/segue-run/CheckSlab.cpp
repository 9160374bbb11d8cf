//===- CheckSlab.cpp - segue-run quantize --check -------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Reads all of a slab before a run depends on it: what a run that opens it with
// `verify: open` would only find at the first use of a damaged weight.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/SquareQ/Slab.h"
#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::tool {

int checkSlab(const QuantizeOptions &options) {
  SlabPaths paths(options.source);
  Slab slab(paths.slab, paths.manifest);
  slab.open({}, SlabVerify::Full);
  if (!slab.manifest().hasHashes())
    throw Error(ErrorCode::SlabInvalid,
                paths.manifest.string() + ": no hashes for some tensors (SquareQ v2 wrote none), so that a changed byte "
                                          "cannot be found; build the slab again");
  bool hasOwnHash = slab.manifest().hasOwnHash;
  if (!hasOwnHash)
    std::fprintf(stderr,
                 "segue-run quantize: warning: %s has no hash of its own (older versions of Segue wrote none): of names, shapes and "
                 "schemes only what the slab's header contradicts was found; build the slab again\n",
                 paths.manifest.c_str());
  size_t tensors = 0;
  uint64_t bytes = 0;
  for (const SlabLayer &layer : slab.manifest().layers)
    for (const std::string &key : layer.keys()) {
      ++tensors;
      bytes += slab.mapped(key).size();
    }
  size_t layers = slab.manifest().layers.size();
  if (options.json)
    std::printf("%s\n", Json{{"slab", paths.slab.string()}, {"layers", layers}, {"tensors", tensors}, {"bytes", bytes}, {"manifest_hash", hasOwnHash}}
                            .dump()
                            .c_str());
  else
    std::printf("%s: %zu layers, %zu tensors of %.1f MiB, every hash is right\n", paths.slab.c_str(), layers, tensors,
                double(bytes) / 1048576);
  return Done;
}

} // namespace segue::tool
