//===- DeviceProfile.cpp - a device's figures in a file -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DeviceProfile.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Json.h"
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace segue::inline runtime {

static constexpr std::string_view figureKeys[] = {"d2h",   "disk", "diskread", "diskwrite", "dram",   "flops",
                                                  "h2d",   "host", "hostmem",  "l1",        "latency", "launch",
                                                  "link",  "membw", "pinned",  "threads"};
static constexpr int64_t newestVersion = 1;
/// The greatest size of a profile in bytes; a longer file may be a device that never ends.
static constexpr size_t mostBytes = 1 << 20;

DeviceOptions readDeviceProfile(std::string_view driver, const std::string &path) {
  auto fail = [&](ErrorCode code, const std::string &what) {
    throw Error(code, "device \"" + std::string(driver) + "\": " + what);
  };
  std::error_code unknown;
  // Opening a pipe would wait for somebody to write to it.
  bool isPipe = std::filesystem::is_fifo(path, unknown);
  std::ifstream file;
  if (!isPipe)
    file.open(path, std::ios::binary);
  std::string text(mostBytes + 1, '\0');
  if (isPipe || !file || (!file.read(text.data(), std::streamsize(text.size())).eof() && !file))
    fail(ErrorCode::IoFailed, "cannot open the profile " + path);
  text.resize(size_t(file.gcount()));
  Json json;
  std::optional<JsonProblem> problem;
  if (text.size() > mostBytes)
    problem = JsonProblem{"it is longer than 1 MiB", ""};
  else
    problem = readJson(text, json);
  if (problem || !json.is_object())
    fail(ErrorCode::FileCorrupt,
         "profile " + path + " is not a JSON object of options" + (problem ? ": " + problem->sentence : ""));
  DeviceOptions options(std::string(driver) + "\", profile \"" + path, "");
  for (const auto &[key, value] : json.items()) {
    if (key == "version") {
      if (!value.is_number_unsigned() || value.get<uint64_t>() == 0)
        options.fail("\"version\" is " + value.dump() + "; it is " + std::to_string(newestVersion));
      if (value.get<uint64_t>() > uint64_t(newestVersion))
        fail(ErrorCode::VersionUnsupported, "profile " + path + " is of version " + value.dump() +
                                                "; this library reads up to " + std::to_string(newestVersion));
      continue;
    }
    if (key == "measured" && value.is_object())
      continue;
    if (!value.is_string() && !value.is_number_unsigned())
      options.fail("\"" + key + "\" is " + value.dump() + "; give a text such as \"16GB/s\"");
    if (key != "about")
      options.set(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  options.requireKnown(figureKeys);
  return options;
}

} // namespace segue::inline runtime
