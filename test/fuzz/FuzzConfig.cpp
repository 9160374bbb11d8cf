//===- FuzzConfig.cpp - hostile config files ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Every section is read, as a run with all services would. A ConfigError is the
// answer to nonsense.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Config/Config.h"

using namespace segue;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  try {
    Config config = Config::parse({reinterpret_cast<const char *>(data), size}, "fuzz.json");
    for (const ConfigSection &section : configSections()) {
      ConfigReader reader = config.section(section.path);
      section.check(reader);
    }
  } catch (const Error &) {
  }
  return 0;
}
