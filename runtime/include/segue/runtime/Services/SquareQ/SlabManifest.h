//===- SlabManifest.h - what a slab says about itself -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `<name>.manifest.json` lies beside `<name>.safetensors`: which layers the slab
// holds, under which keys, in which form. The keys and their order are those
// of SquareQ v2, whose readers ignore what Segue adds: `sha256` and `crc32`
// per layer (by tensor key), `source_sha256`, `tool_version` and `kept_bf16`
// (layer → why it is not in the slab) at the top. Manifests without them are
// read too.
//
// A manifest is data from outside: reading it checks the types of all values,
// checkSlab what they say.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABMANIFEST_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABMANIFEST_H

#include "segue/runtime/Json.h"
#include "segue/runtime/Services/SquareQ/SlabForm.h"
#include <map>
#include <string>
#include <vector>

namespace segue::inline runtime {

/// The one value that the key `rotation` may have.
inline constexpr std::string_view rotationName = "hadamard_256";

/// Hashes in lower-case hex digits, by tensor key.
using TensorHashes = std::map<std::string, std::string, std::less<>>;

struct SlabLayer {
  std::string canonicalName;
  std::string qweightKey, scaleKey;
  std::optional<std::string> zeroPointKey, biasKey;
  Shape origShape, packedShape;
  int64_t padK = 64;
  int64_t quantBits = 8;
  std::string quantScheme = "per_row_symmetric";
  int64_t quantAxis = 0;
  std::string dtypeQweight = "int8", dtypeScale = "float32", dtypeZeroPoint = "float32";
  std::optional<std::string> blockId;
  /// The number of columns that share a scale, for int4_group.
  std::optional<int64_t> group;
  /// Keys of int4_group: "hadamard_256" if the codes are those of the rotated weight; the
  /// rank of the low-rank product; and the keys of its matrices [out, rank] and [rank, in],
  /// bf16.
  std::optional<std::string> rotation;
  std::optional<int64_t> rank;
  std::optional<std::string> lowRankAKey, lowRankBKey;
  TensorHashes sha256, crc32;

  /// Returns the form that quantScheme and quantBits name together; nothing if this runtime
  /// has no such form.
  std::optional<SlabForm> form() const;
  /// Returns the keys of its tensors: qweight, scale, zero point, bias, low rank.
  std::vector<std::string> keys() const;
};

struct SlabManifest {
  std::string modelSignature;
  std::string architectureId = "unknown";
  std::string quantVersion = "squareq_bp8_v2";
  int64_t kernelAbiVersion = 1;
  std::string minRuntimeVersion = "0.1.0";
  int64_t layerCount = 0;
  int64_t totalQweightBytes = 0;
  /// The layers, sorted by canonical name if Segue wrote the manifest.
  std::vector<SlabLayer> layers;
  std::optional<std::string> sourceSha256, toolVersion;
  /// The layers that stayed bf16, with the reason of each.
  std::map<std::string, std::string> keptBf16;
  /// True if it was read with a hash of its own, which was right.
  bool hasOwnHash = false;

  /// Returns the text of the file, as SquareQ v2 writes JSON: indented by two, no last newline.
  std::string text() const;

  /// Returns true if every tensor has both hashes.
  bool hasHashes() const;
};

/// One thing that is wrong with a slab: its subject (a layer, a tensor key, a key
/// of the manifest) and a sentence.
struct SlabProblem {
  std::string subject, sentence;
};

/// Returns the SHA-256 of all values of a manifest in their order, whatever its spaces and
/// lines. It stands under `manifestHashKey`, which takes no part in it.
std::string manifestHash(Json manifest);
inline constexpr const char *manifestHashKey = "manifest_sha256";

/// Reads a manifest. Adds all that cannot be read to `problems`, and also a hash that is of
/// other values.
SlabManifest readManifest(const Json &json, std::vector<SlabProblem> &problems);
/// Parses the text of a manifest's file.
SlabManifest parseManifest(std::string_view text, std::vector<SlabProblem> &problems);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABMANIFEST_H
