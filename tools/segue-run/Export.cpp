//===- Export.cpp - segue-run export --------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Session/Checkpoint.h"
#include <cstdio>

namespace segue::tool {

int exportCheckpoint(const ExportOptions &options) {
  std::error_code isMissing;
  // The sealed one would be gone, and with it what says whose its spill file is.
  if (std::filesystem::equivalent(options.checkpoint, options.output, isMissing))
    throw Error(ErrorCode::InvalidArgument, options.output + " is the checkpoint itself; write another file");
  Checkpoint checkpoint = loadCheckpoint(Device::open("cpu"), options.checkpoint, [](const std::string &text) {
    std::fprintf(stderr, "segue-run export: warning: %s\n", text.c_str());
  });
  saveCheckpoint(options.output, checkpoint);
  std::printf("%s: step %lld, %zu parameters, %zu optimizer states\n", options.output.c_str(),
              (long long)checkpoint.step, checkpoint.parameters.size(), checkpoint.state.size());
  return Done;
}

} // namespace segue::tool
