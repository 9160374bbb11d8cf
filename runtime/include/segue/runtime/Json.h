//===- Json.h - the one JSON type of the runtime ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Config files, telemetry records, replay logs and saved states are values of
// one type, whose objects keep the order in which their keys were put in: a
// record reads as it was written, and the same events give the same bytes.
// This header only declares it; include <nlohmann/json.hpp> to look inside.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_JSON_H
#define SEGUE_RUNTIME_JSON_H

#include <nlohmann/json_fwd.hpp>

namespace segue::inline runtime {

using Json = nlohmann::ordered_json;

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_JSON_H
