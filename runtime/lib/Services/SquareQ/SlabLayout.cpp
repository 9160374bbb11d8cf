//===- SlabLayout.cpp - where the tensors of a slab lie -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SlabLayout.h"
#include "segue/runtime/Error.h"
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

/// The order of types in the library's enum, as far as slabs have them.
static int rankOf(std::string_view type) {
  static constexpr std::string_view ascending[] = {"U8", "I8", "F8_E4M3", "BF16", "F32"};
  return int(std::find(std::begin(ascending), std::end(ascending), type) - std::begin(ascending));
}

SlabLayout layOutSlab(std::vector<PlacedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const PlacedTensor &a, const PlacedTensor &b) {
    int rankA = rankOf(a.type), rankB = rankOf(b.type);
    return rankA != rankB ? rankA > rankB : a.key < b.key;
  });
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  SlabLayout layout;
  uint64_t end = 0;
  for (PlacedTensor &tensor : tensors) {
    json[tensor.key] = {{"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {end, end + tensor.bytes}}};
    tensor.offset = end;
    end += tensor.bytes;
    if (!layout.tensors.emplace(tensor.key, tensor).second)
      throw Error(ErrorCode::InvalidArgument, "two layers would both be stored as \"" + tensor.key + "\"");
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception &error) {
    throw Error(ErrorCode::InvalidArgument, std::string("a layer's name cannot be written: ") + error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  uint64_t length = text.size();
  layout.header.assign(reinterpret_cast<const char *>(&length), sizeof length);
  layout.header += text;
  layout.fileBytes = layout.header.size() + end;
  for (auto &[key, tensor] : layout.tensors)
    tensor.offset += layout.header.size();
  return layout;
}

std::vector<PlacedTensor> tensorsOfLayer(const std::string &layer, const SlabForm &form, const SlabSize &size) {
  bool isInt4 = form.scheme == SlabScheme::Int4Group;
  std::vector<PlacedTensor> tensors;
  tensors.push_back({layer + ".qweight", form.qweightType(), size.packedShape(), size.qweight});
  if (isInt4)
    tensors.push_back({layer + ".wscales", form.scaleType(), {size.padded / form.group, size.out}, size.scale});
  else
    tensors.push_back({layer + ".scale", form.scaleType(), {size.out}, size.scale});
  if (size.zeroPoint)
    tensors.push_back({layer + ".zero_point", "F32", {size.out}, size.zeroPoint});
  if (size.bias)
    tensors.push_back({layer + ".bias", "F32", {size.out}, size.bias});
  if (size.lowRank) {
    tensors.push_back({layer + ".lowrank_a", "BF16", {size.out, form.rank}, 2 * uint64_t(size.out * form.rank)});
    tensors.push_back({layer + ".lowrank_b", "BF16", {form.rank, size.in}, 2 * uint64_t(form.rank * size.in)});
  }
  return tensors;
}

} // namespace segue::inline runtime
