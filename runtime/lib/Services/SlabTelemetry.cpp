//===- SlabTelemetry.cpp - what slabs add to the weight record ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SlabSource.h"
#include "../JsonFields.h"
#include <algorithm>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

SlabTelemetry &SlabTelemetry::operator+=(const SlabTelemetry &other) {
  blocksServed += other.blocksServed;
  bytesH2d += other.bytesH2d;
  bytesSaved += other.bytesSaved;
  dequantMs += other.dequantMs;
  fusedCalls = std::max(fusedCalls, other.fusedCalls); // of the device, which both have asked
  crcFailures += other.crcFailures;
  return *this;
}

Json SlabTelemetry::json() const {
  return jsonOf({{"squareq_blocks_served", blocksServed},
                 {"squareq_bytes_h2d", bytesH2d},
                 {"squareq_bytes_saved", bytesSaved},
                 {"dequant_ms", dequantMs},
                 {"fused_calls", fusedCalls},
                 {"crc_failures", crcFailures}});
}

} // namespace segue::inline runtime
