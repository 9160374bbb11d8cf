//===- TensorDesc.cpp - what a tensor is and how it lies ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Layout/TensorDesc.h"
#include "../Hash.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

template <typename T> static std::string join(const std::vector<T> &numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i)
    text += (i ? "," : "") + std::to_string(numbers[i]);
  return text + "]";
}

void TensorDesc::validate() const {
  auto fail = [&](const std::string &what) { throw Error(ErrorCode::InvalidArgument, str() + ": " + what); };
  if (uint8_t(element) >= elementTypeCount)
    fail("element type " + std::to_string(int(element)) + " does not exist");
  if (uint8_t(layout.space) >= spaceCount)
    fail("space " + std::to_string(int(layout.space)) + " does not exist");
  if (uint8_t(layout.storage) > uint8_t(StorageType::Int4Group64))
    fail("storage " + std::to_string(int(layout.storage)) + " does not exist");
  if (!layout.strides.empty() && layout.strides.size() != shape.size())
    fail("strides " + join(layout.strides) + " do not match the number of dimensions");
  if (layout.tile.size() > shape.size())
    fail("tile " + join(layout.tile) + " has more dimensions than the shape");
  for (uint32_t extent : layout.tile)
    if (extent == 0)
      fail("tile extents must be positive");
  if (!std::has_single_bit(layout.alignment))
    fail("alignment " + std::to_string(layout.alignment) + " is not a power of two");
  if (layout.offset % layout.alignment != 0)
    fail("offset " + std::to_string(layout.offset) + " is not a multiple of the alignment");
  if (!checkedElementCount(shape))
    fail("extents must not be negative and their product must stay below 2^63");
  if (layout.zeroPoints && !isRowStorage(layout.storage))
    fail("zero points belong to row storages (int8_row, fp8_e4m3_row, fp8_e5m2_row)");
  if (isRowStorage(layout.storage) && layout.alignment < alignof(float))
    fail("alignment " + std::to_string(layout.alignment) + " is too small for the f32 scales of rows; at least 4");
  if (isGroupStorage(layout.storage) && layout.alignment < alignof(uint16_t))
    fail("alignment " + std::to_string(layout.alignment) + " is too small for the bf16 scales of groups; at least 2");
  if (std::string problem = findGroupProblem(shape, layout); !problem.empty())
    fail(problem);
  auto parts = checkedParts(shape, element, layout);
  if (!parts || !checkedAdd(parts->bytes, layout.offset))
    fail("strides must not be negative and the bytes they span must stay below 2^63");
}

uint64_t TensorDesc::elementCount() const { return *checkedElementCount(shape); }

LayoutParts TensorDesc::parts() const { return *checkedParts(shape, element, layout); }

uint64_t TensorDesc::spanBytes() const { return parts().bytes; }

bool TensorDesc::isDense() const {
  if (layout.tile.empty() && !isQuantized(layout.storage))
    return layout.strides.empty() || segue::isDense(shape, layout.strides);
  Layout canonical = canonicalize(shape, layout);
  return canonical.strides.empty() && canonical.tile.empty() && !isQuantized(canonical.storage);
}

uint64_t TensorDesc::hash() const {
  Layout canonical = canonicalize(shape, layout);
  int64_t storage = int64_t(canonical.storage) | int64_t(canonical.zeroPoints) << 8;
  std::vector<int64_t> words{int64_t(element), storage, int64_t(shape.size())};
  words.insert(words.end(), shape.begin(), shape.end());
  words.push_back(int64_t(canonical.strides.size()));
  words.insert(words.end(), canonical.strides.begin(), canonical.strides.end());
  words.push_back(int64_t(canonical.tile.size()));
  words.insert(words.end(), canonical.tile.begin(), canonical.tile.end());
  return hashOf(words.data(), words.size() * sizeof(int64_t));
}

std::string TensorDesc::str() const {
  std::string text(name(element));
  text += join(shape);
  // This works for descriptions that are not valid too, since validate() prints them.
  bool dense = layout.strides.empty() ||
               (layout.tile.empty() && layout.strides.size() == shape.size() && segue::isDense(shape, layout.strides));
  if (!dense)
    text += " strides " + join(layout.strides);
  if (!layout.tile.empty())
    text += " tile " + join(layout.tile);
  if (layout.storage != StorageType::Element)
    text += " stored as " + std::string(name(layout.storage));
  if (layout.zeroPoints)
    text += " with zero points";
  if (layout.space != Space::DeviceDram)
    text += " in " + std::string(name(layout.space));
  return text;
}

std::string TensorDesc::strWithAlignment() const { return str() + " aligned to " + std::to_string(layout.alignment); }

} // namespace segue::inline runtime
