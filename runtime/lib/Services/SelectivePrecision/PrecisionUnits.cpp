//===- PrecisionUnits.cpp - what Selective Precision chooses for ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/PrecisionUnits.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include <set>

namespace segue::inline runtime {

using Granularity = SelectivePrecisionConfig::Granularity;

std::optional<Precision> precisionOf(const SlabLayer &layer) {
  std::optional<SlabForm> form = layer.form();
  if (form && form->scheme == SlabScheme::PerRowSymmetric)
    return Precision::Int8;
  if (form && form->scheme == SlabScheme::Fp8E4M3Row)
    return Precision::Fp8E4M3;
  return std::nullopt;
}

static std::string layerName(const StreamedParameter &parameter) {
  std::string_view layer = layerOfWeight(parameter.name);
  return std::string(layer.empty() ? std::string_view(parameter.name) : layer);
}

/// Names that several modules have.
static std::set<std::string> sharedNames(std::span<const StreamedParameter> parameters, bool ofLayers) {
  std::map<std::string, std::string> owners;
  std::set<std::string> shared;
  for (const StreamedParameter &parameter : parameters) {
    std::string name = ofLayers ? layerName(parameter) : parameter.block;
    if (auto [it, isNew] = owners.try_emplace(name, parameter.module); !isNew && it->second != parameter.module)
      shared.insert(name);
  }
  return shared;
}

/// Returns the stored bytes of a unit in a form: weights that do not have it stay as they are.
static int64_t bytesIn(const UnitPlan &plan, std::optional<Precision> form) {
  uint64_t bytes = 0;
  for (const UnitWeight &weight : plan.weights) {
    auto low = form ? weight.forms.find(*form) : weight.forms.end();
    bytes += low == weight.forms.end() ? weight.parameter.desc.spanBytes()
                                       : low->second->slab().layerBytes(weight.parameter.name);
  }
  return int64_t(bytes);
}

static void finish(UnitPlan &plan) {
  PrecisionUnit &unit = plan.unit;
  std::set<Precision> forms;
  bool isTrained = false;
  for (const UnitWeight &weight : plan.weights) {
    if (weight.forms.empty())
      continue;
    isTrained |= weight.parameter.isTrained;
    unit.shapes.push_back(*flattenWeight(weight.parameter.desc.shape));
    for (const auto &[form, slab] : weight.forms)
      forms.insert(form);
  }
  unit.eligible = !isTrained && !forms.empty();
  unit.why = isTrained ? "its base weights are trained" : forms.empty() ? "no slab has a weight of it" : "";
  unit.forms.assign(forms.begin(), forms.end());
  unit.bf16Bytes = bytesIn(plan, std::nullopt);
  unit.int8Bytes = forms.contains(Precision::Int8) ? bytesIn(plan, Precision::Int8) : 0;
  unit.fp8Bytes = forms.contains(Precision::Fp8E4M3) ? bytesIn(plan, Precision::Fp8E4M3) : 0;
}

PrecisionPlan planPrecision(std::span<const StreamedParameter> parameters,
                            std::span<const std::shared_ptr<SlabServer>> slabs, Granularity granularity) {
  PrecisionPlan plan;
  bool ofLayers = granularity == Granularity::Layer;
  std::set<std::string> shared = sharedNames(parameters, ofLayers);
  for (const StreamedParameter &parameter : parameters) {
    UnitWeight weight{parameter, {}};
    std::string reason = "no slab has it";
    for (const auto &slab : slabs) {
      std::string layer = layerName(parameter);
      if (auto kept = slab->slab().manifest().keptBf16.find(layer); kept != slab->slab().manifest().keptBf16.end())
        reason = kept->second;
      if (!slab->holds(parameter.name))
        continue;
      SlabSize size = slab->slab().size(parameter.name);
      if (flattenWeight(parameter.desc.shape) != std::pair(size.out, size.in))
        reason = "its slab has it in another shape";
      else if (std::optional<Precision> form = precisionOf(slab->slab().layer(parameter.name)))
        weight.forms.try_emplace(*form, slab);
      else
        reason = "its slab has it in a form that is not chosen";
    }
    if (weight.forms.empty() && !parameter.isTrained)
      plan.kept[parameter.key] = reason;
    if (ofLayers && weight.forms.empty())
      continue;
    std::string name = ofLayers ? layerName(parameter) : parameter.block;
    if (shared.contains(name))
      name = parameter.module + (ofLayers ? "." : "/") + name;
    auto unit = std::ranges::find_if(plan.units, [&](const UnitPlan &each) { return each.unit.name == name; });
    if (unit == plan.units.end())
      unit = plan.units.insert(
          unit, {.unit = {.name = name}, .module = parameter.module, .block = parameter.block, .weights = {}});
    unit->weights.push_back(std::move(weight));
  }
  for (UnitPlan &unit : plan.units)
    finish(unit);
  return plan;
}

size_t PrecisionPlan::unitOf(std::string_view module, std::string_view of, Granularity granularity) const {
  for (size_t i = 0; i < units.size(); ++i) {
    const UnitPlan &plan = units[i];
    if (plan.module != module)
      continue;
    if (granularity == Granularity::Block && plan.block == of)
      return i;
    for (const UnitWeight &weight : plan.weights)
      if (layerName(weight.parameter) == of)
        return i;
  }
  return SIZE_MAX;
}

} // namespace segue::inline runtime
