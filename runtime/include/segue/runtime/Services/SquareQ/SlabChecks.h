//===- SlabChecks.h - may this slab serve this program? ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The checks of a slab before anything of it is used, in this order; the first
// one that fails lists all that it found and ends them:
//
//   1 the files parse            5 keys, types and shapes of the tensors
//   2 kernel_abi_version         6 scales and zero points are usable numbers
//   3 quant_bits, quant_scheme   7 the signature is the program's
//   4 layer_count, byte sum      8 every weight that the program wants is there
//
// A pure function over descriptions: the files are somebody else's business
// (Slab reads them, the replay of a log makes them up).
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABCHECKS_H
#define SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABCHECKS_H

#include "segue/runtime/Services/SquareQ/SlabManifest.h"
#include "segue/runtime/Services/WeightMatching.h"
#include <functional>

namespace segue::inline runtime {

inline constexpr int64_t supportedKernelAbi = 1;

struct StoredTensor {
  /// The type as a safetensors header spells it, "I8".
  std::string type;
  Shape shape;
};
using TensorTable = std::map<std::string, StoredTensor, std::less<>>;

/// A frozen parameter that a program takes from the slab: "fc1.weight". The
/// name of the layer alone means its weight.
struct WantedWeight {
  std::string name;
  /// The expected shape; empty for any.
  Shape shape = {};
};

/// A program's expectations. Without a signature, check 7 passes; without
/// `wants`, check 8 does. Both follow from the parameters of a program, if given:
///
/// The signature is that of its linear layers (LinearLayers.h), by the names that
/// the slab has for them, without trained ones that the slab does not know:
/// adapters, which the model had not when the slab was made. (Where no list of
/// those that were kept in bf16 tells, that of all its layers is right as well.)
/// It wants each that is frozen and was not kept in bf16. One that it trains is a
/// mismatch if the slab holds it, unless `mayTrain`.
struct SlabExpectation {
  std::optional<std::string> signature;
  std::optional<std::vector<WantedWeight>> wants;
  NameAliases aliases;
  std::vector<ProgramWeight> program = {};
  bool mayTrain = false;
};

/// A function that returns the values of a stored F32 or BF16 tensor, for check 6.
using TensorValues = std::function<std::vector<float>(const std::string &key)>;

struct SlabFindings {
  /// The check that failed; 0 if none did.
  int failedCheck = 0;
  /// All mismatches of that check.
  std::vector<SlabProblem> problems;
  /// Slab layers that no wanted weight comes from.
  std::vector<std::string> unused;
};

/// The place at which a wanted name is found in a slab.
struct SlabMatch {
  size_t layer = 0;
  bool isBias = false;
};

/// Finds the layer of a manifest that a name is served from: by its own name, then by the
/// declared others.
class SlabNames {
public:
  explicit SlabNames(const SlabManifest &manifest);
  std::optional<SlabMatch> find(std::string_view name, const NameAliases &aliases) const;

private:
  /// The index of each layer by its name, and whether it has a bias.
  std::map<std::string, std::pair<size_t, bool>, std::less<>> layers_;
};

/// Returns the layer of a slab that a parameter is served from; nothing if there is none.
std::optional<SlabMatch> findLayer(const SlabNames &names, const ProgramWeight &weight, const NameAliases &aliases);

/// Runs checks 2 to 8; check 1 has failed already if `problems` is not empty. Without
/// `values`, check 6 passes.
SlabFindings checkSlab(const SlabManifest &manifest, std::vector<SlabProblem> problems, const TensorTable &tensors,
                       const TensorValues &values, const SlabExpectation &expected);

/// Returns "I8" for "int8" and "I8", "F32" for "float32" and so on; other texts as they
/// are.
std::string safetensorsType(std::string_view type);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_SQUAREQ_SLABCHECKS_H
