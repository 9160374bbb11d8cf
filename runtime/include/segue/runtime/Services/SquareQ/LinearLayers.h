//===- LinearLayers.h - the linear layers of a model ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Which tensors of a checkpoint or parameters of a program are linear layers,
// and the short hash of their list that a slab and a program must agree on.
// Both sides ask collectLinearLayers, so that they agree by construction:
//
//   layer `L`   `L.weight` of rank 2, f32, bf16 or f16: [out, in]
//   bias        `L.bias` of shape [out]
//   not one     a table of rows that are picked by index: `wte.weight`, ...
//
// Pure functions: any thread may call.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_LINEARLAYERS_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_LINEARLAYERS_H

#include "segue/runtime/Layout/Layout.h"
#include <string>
#include <string_view>
#include <vector>

namespace segue::inline runtime {

/// One linear layer: y = x Wᵀ (+ b), W of shape [out, in].
struct LinearLayer {
  /// The name of the module: "blocks.3.attn.to_q".
  std::string name;
  int64_t in = 0, out = 0;
  bool bias = false;
};

/// A tensor of a checkpoint or a parameter of a program. `element` is empty
/// for element types that Segue lacks.
struct NamedShape {
  std::string_view name;
  std::span<const int64_t> shape;
  std::optional<ElementType> element;
};

/// Return "L" for "L.weight", and for "L.bias"; an empty text for any other name.
std::string_view layerOfWeight(std::string_view tensor);
std::string_view layerOfBias(std::string_view tensor);

/// Returns true if the layer's own name (its last component) is one that embedding tables
/// have: "wte", "embed_tokens", "token_embedding", ...
bool isTableName(std::string_view layer);

/// Returns the linear layers among `tensors`, by name.
std::vector<LinearLayer> collectLinearLayers(std::span<const NamedShape> tensors);

/// Returns `name:in:out:True` (`False` without a bias) of each layer, sorted by bytes,
/// joined by `|`: the text that modelSignature hashes.
std::string signatureText(std::span<const LinearLayer> layers);

/// Returns the first 16 hex digits of the SHA-256 of signatureText.
std::string modelSignature(std::span<const LinearLayer> layers);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_LINEARLAYERS_H
