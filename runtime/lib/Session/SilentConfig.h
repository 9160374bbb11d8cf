//===- SilentConfig.h - services that write nothing -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_SESSION_SILENTCONFIG_H
#define SEGUE_LIB_SESSION_SILENTCONFIG_H

#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Json.h"
#include <functional>
#include <optional>

namespace segue::inline runtime {

/// Returns the memory services of `config` for a session on a twin: they decide as they
/// would, and write neither telemetry nor traces. Selective Precision is left out, since it
/// measures values, and a twin has none. `edit` may change the section `memory.stagehand`
/// further.
Config silentConfig(const Config &config, const std::function<void(Json &stagehand)> &edit = {});

/// Returns the memory services of `config`, if there is one, and Weight Stagehand, of which it says nothing: a ring of
/// what programs use at once and one block ahead, which looks at no numbers and writes no files.
Config withRing(const std::optional<Config> &config);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_SESSION_SILENTCONFIG_H
