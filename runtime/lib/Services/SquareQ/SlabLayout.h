//===- SlabLayout.h - where the tensors of a slab lie -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Lays out the header of a slab, which is known before the first weight is
// read. Order and text are those of the safetensors library (wide types first,
// then names), so that a slab is the file that SquareQ v2 would write, to the
// byte.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_SLABLAYOUT_H
#define SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_SLABLAYOUT_H

#include "segue/runtime/Services/SquareQ/SlabForm.h"
#include <map>
#include <string>
#include <vector>

namespace segue::inline runtime {

struct PlacedTensor {
  std::string key;
  std::string_view type;
  Shape shape;
  uint64_t bytes = 0;
  /// The bytes from the start of the file.
  uint64_t offset = 0;
};

struct SlabLayout {
  /// The beginning of the file: length and JSON, padded.
  std::string header;
  /// The bytes of the whole file.
  uint64_t fileBytes = 0;
  std::map<std::string, PlacedTensor, std::less<>> tensors;
};

/// Places the tensors; their `offset` is ignored. Throws InvalidArgument for a
/// key that is not UTF-8 or stands twice.
SlabLayout layOutSlab(std::vector<PlacedTensor> tensors);

/// Returns the tensors of a layer: `L.qweight`, `L.scale`, ...
std::vector<PlacedTensor> tensorsOfLayer(const std::string &layer, const SlabForm &form, const SlabSize &size);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_SERVICES_SQUAREQ_SLABLAYOUT_H
