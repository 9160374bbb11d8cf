//===- TensorDesc.cpp - what a tensor is and how it lies ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Tensor/TensorDesc.h"
#include "segue/runtime/Error.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace segue::inline runtime {

template <typename T> static std::string join(const std::vector<T> &numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i)
    text += (i ? "," : "") + std::to_string(numbers[i]);
  return text + "]";
}

void TensorDesc::validate() const {
  auto fail = [&](const std::string &what) { throw Error(ErrorCode::InvalidArgument, str() + ": " + what); };
  if (uint8_t(element) > uint8_t(ElementType::i1))
    fail("element type " + std::to_string(int(element)) + " does not exist");
  if (uint8_t(layout.space) > uint8_t(Space::DeviceL1))
    fail("space " + std::to_string(int(layout.space)) + " does not exist");
  if (uint8_t(layout.storage) > uint8_t(StorageType::Fp8E5M2Row))
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
  auto span = checkedSpanBytes(shape, strides(), byteSize(element));
  if (!span || !checkedAdd(*span, layout.offset))
    fail("strides must not be negative and the bytes they span must stay below 2^63");
}

uint64_t TensorDesc::elementCount() const { return *checkedElementCount(shape); }

uint64_t TensorDesc::spanBytes() const { return *checkedSpanBytes(shape, strides(), byteSize(element)); }

bool TensorDesc::isDense() const { return layout.strides.empty() || segue::isDense(shape, layout.strides); }

uint64_t TensorDesc::hash() const {
  Layout canonical = canonicalize(shape, layout);
  std::vector<int64_t> words{int64_t(element), int64_t(canonical.storage), int64_t(shape.size())};
  words.insert(words.end(), shape.begin(), shape.end());
  words.push_back(int64_t(canonical.strides.size()));
  words.insert(words.end(), canonical.strides.begin(), canonical.strides.end());
  words.push_back(int64_t(canonical.tile.size()));
  words.insert(words.end(), canonical.tile.begin(), canonical.tile.end());
  return XXH3_64bits(words.data(), words.size() * sizeof(int64_t));
}

std::string TensorDesc::str() const {
  std::string text(name(element));
  text += join(shape);
  if (!layout.strides.empty() && (layout.strides.size() != shape.size() || !isDense()))
    text += " strides " + join(layout.strides);
  if (!layout.tile.empty())
    text += " tile " + join(layout.tile);
  if (layout.storage != StorageType::Element)
    text += " stored as " + std::string(name(layout.storage));
  if (layout.space != Space::DeviceDram)
    text += " in " + std::string(name(layout.space));
  return text;
}

} // namespace segue::inline runtime
