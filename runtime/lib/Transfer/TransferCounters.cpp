//===- TransferCounters.cpp - what stitching has cost ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/TransferCounters.h"
#include "../JsonFields.h"
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

Json StitchTelemetry::json() const {
  return jsonOf({{"step", step},
                 {"submits", submits},
                 {"inputs", inputs},
                 {"inputs_elided", inputs_elided},
                 {"inputs_converted", inputs_converted},
                 {"cache_hits", cache_hits},
                 {"h2d_bytes", h2d_bytes},
                 {"d2h_bytes", d2h_bytes},
                 {"d2d_bytes", d2d_bytes},
                 {"host_bytes", host_bytes},
                 {"bounces", bounces},
                 {"donations_ignored", donations_ignored},
                 {"lossy_casts", lossy_casts},
                 {"wait_ms", wait_ms},
                 {"align_ms", align_ms},
                 {"l1_compactions", l1_compactions},
                 {"l1_fallbacks", l1_fallbacks}});
}

} // namespace segue::inline runtime
