//===- LinearLayers.cpp - the linear layers of a model --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "Digest.h"
#include <algorithm>
#include <map>

namespace segue::inline runtime {

static constexpr std::string_view weightSuffix = ".weight", biasSuffix = ".bias";

static std::string_view withoutSuffix(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : std::string_view();
}

std::string_view layerOfWeight(std::string_view tensor) { return withoutSuffix(tensor, weightSuffix); }
std::string_view layerOfBias(std::string_view tensor) { return withoutSuffix(tensor, biasSuffix); }

bool isTableName(std::string_view layer) {
  static constexpr std::string_view tables[] = {"wte",
                                                "wpe",
                                                "emb",
                                                "embedding",
                                                "embeddings",
                                                "embed_tokens",
                                                "embed_positions",
                                                "tok_embeddings",
                                                "token_embedding",
                                                "token_embeddings",
                                                "token_embedding_table",
                                                "word_embeddings",
                                                "position_embedding",
                                                "position_embeddings",
                                                "position_embedding_table",
                                                "token_type_embeddings"};
  std::string_view own = layer.substr(layer.rfind('.') + 1);
  return std::find(std::begin(tables), std::end(tables), own) != std::end(tables);
}

std::vector<LinearLayer> collectLinearLayers(std::span<const NamedShape> tensors) {
  std::map<std::string_view, LinearLayer> layers;
  for (const NamedShape &tensor : tensors) {
    std::string_view layer = layerOfWeight(tensor.name);
    if (layer.empty() || tensor.shape.size() != 2 || !tensor.element || !isComputedInF32(*tensor.element) || isTableName(layer))
      continue;
    layers[layer] = {std::string(layer), tensor.shape[1], tensor.shape[0], false};
  }
  for (const NamedShape &tensor : tensors) {
    auto layer = layers.find(layerOfBias(tensor.name));
    if (layer != layers.end() && tensor.shape.size() == 1 && tensor.shape[0] == layer->second.out)
      layer->second.bias = true;
  }
  std::vector<LinearLayer> sorted;
  for (auto &[name, layer] : layers)
    sorted.push_back(std::move(layer));
  return sorted;
}

std::string signatureText(std::span<const LinearLayer> layers) {
  std::vector<std::string> lines;
  for (const LinearLayer &layer : layers)
    lines.push_back(layer.name + ":" + std::to_string(layer.in) + ":" + std::to_string(layer.out) +
                    (layer.bias ? ":True" : ":False"));
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string &line : lines)
    text += (text.empty() ? "" : "|") + line;
  return text;
}

std::string modelSignature(std::span<const LinearLayer> layers) {
  std::string text = signatureText(layers);
  return sha256Hex(std::as_bytes(std::span(text.data(), text.size()))).substr(0, 16);
}

} // namespace segue::inline runtime
