//===- FuzzSlabManifest.cpp - hostile manifests of slabs ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Whatever is read without a problem can be written, and reads as the same.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Error.h"
#include "segue/runtime/Services/SquareQ/SlabManifest.h"
#include <cstdlib>

using namespace segue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try {
    std::vector<SlabProblem> problems;
    SlabManifest manifest = parseManifest({reinterpret_cast<const char *>(data), size}, problems);
    for (const SlabLayer &layer : manifest.layers)
      if (layer.keys().empty() && layer.form())
        std::abort();
    if (!problems.empty())
      return 0;
    std::string text = manifest.text();
    std::vector<SlabProblem> again;
    if (parseManifest(text, again).text() != text || !again.empty())
      std::abort();
  } catch (const Error &) {
  }
  return 0;
}
