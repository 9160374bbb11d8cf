//===- ConfigSections.cpp - the sections of the config file ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// One line per service. Keys of objects that lie between two sections need no
// line.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Services/ActivationStagehandConfig.h"
#include "segue/runtime/Services/ConductorConfig.h"
#include "segue/runtime/Services/SelectivePrecisionConfig.h"
#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include "segue/runtime/Services/StateStagehandConfig.h"
#include "segue/runtime/Services/WeightStagehandConfig.h"
#include "segue/runtime/Session/RunBudget.h"
#include "segue/runtime/Transfer/StitchOptions.h"

namespace segue::inline runtime {

static constexpr ConfigSection sections[] = {
    {WeightStagehandConfig::section, [](ConfigReader &reader) { WeightStagehandConfig::read(reader); }},
    {"memory.stagehand.activation_stagehand", [](ConfigReader &reader) { ActivationStagehandConfig::read(reader); }},
    {"memory.stagehand.conductor_config", [](ConfigReader &reader) { ConductorConfig::read(reader); }},
    {"memory.stagehand.selective_precision", [](ConfigReader &reader) { SelectivePrecisionConfig::read(reader); }},
    {StateStagehandConfig::section, [](ConfigReader &reader) { StateStagehandConfig::read(reader); }},
    {"memory.stitch", [](ConfigReader &reader) { StitchOptions::read(reader); }},
    {RunBudget::section, [](ConfigReader &reader) { RunBudget::read(reader); }, /*hasTelemetry=*/false},
    {SquareQConfig::section, [](ConfigReader &reader) { SquareQConfig::read(reader); }, /*hasTelemetry=*/false},
};

std::span<const ConfigSection> configSections() { return sections; }

} // namespace segue::inline runtime
