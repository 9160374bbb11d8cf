//===- PrecisionUnits.h - what Selective Precision chooses for --*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Makes units of the parameters that come to the device with their block:
// blocks, or the linear layers of them that a slab has, in the order of
// forward. A unit has a low form if a slab has one of its frozen weights in it
// and the source beside the slab is known; a block whose base weights are
// trained has none. What no slab has (norms, embeddings, modulation, the output
// head) stays as it is and is listed.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SERVICES_PRECISIONUNITS_H
#define SEGUE_RUNTIME_SERVICES_PRECISIONUNITS_H

#include "segue/runtime/Services/SelectivePrecision.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "segue/runtime/Services/WeightStreamer.h"

namespace segue::inline runtime {

/// Returns the form in which a slab has a weight, if Selective Precision knows it.
std::optional<Precision> precisionOf(const SlabLayer &layer);

/// A weight of a unit in its low forms.
struct UnitWeight {
  StreamedParameter parameter;
  /// The slab of each form. Several slabs may have the unit.
  std::map<Precision, std::shared_ptr<SlabServer>> forms;
};

struct UnitPlan {
  PrecisionUnit unit;
  std::string module, block;
  std::vector<UnitWeight> weights;
};

struct PrecisionPlan {
  std::vector<UnitPlan> units;
  /// The frozen parameters that no form is chosen for: name and reason.
  std::map<std::string, std::string> kept;

  /// Returns the unit that a result of statistics belongs to, by what it is of; SIZE_MAX if none does.
  size_t unitOf(std::string_view module, std::string_view of, SelectivePrecisionConfig::Granularity granularity) const;
};

/// Makes units of `parameters`, which are in the order of forward. A block's name stands
/// for it where only one module has it, otherwise "<module>/<block>"; the same holds for
/// layers, "<module>.<layer>".
PrecisionPlan planPrecision(std::span<const StreamedParameter> parameters,
                            std::span<const std::shared_ptr<SlabServer>> slabs,
                            SelectivePrecisionConfig::Granularity granularity);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SERVICES_PRECISIONUNITS_H
