//===- ProfileDevice.cpp - segue-run profile-device -----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Reports/MeasureDevice.h"
#include <cstdio>
#include <nlohmann/json.hpp>

namespace segue::tool {

int profileDevice(const ProfileDeviceOptions &options) {
  if (!options.output.empty())
    OutputFile::check(options.output); // before it is measured
  Json profile = measureDevice(options.device, {.seconds = options.seconds,
                                                .diskBytes = options.diskBytes,
                                                .gpuMemory = gpuMemory});
  std::string text = profile.dump(2) + "\n";
  if (options.output.empty()) {
    std::fputs(text.c_str(), stdout);
    return Done;
  }
  OutputFile file(options.output);
  file.write(text);
  file.commit();
  return Done;
}

} // namespace segue::tool
