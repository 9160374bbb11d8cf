//===- PrecisionAnswers.h - what tests of precision ask ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_PRECISIONANSWERS_H
#define SEGUE_TEST_STITCH_PRECISIONANSWERS_H

#include "LoraModel.h"
#include "segue/runtime/Config/ConfigError.h"

namespace segue::test {

inline constexpr const char *simDevice = "sim:dram=4MiB,pinned=8MiB,link=4GB/s,latency=2us";

/// The lines of telemetry, without times.
inline std::vector<Json> linesOf(const std::filesystem::path &path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line));
    lines.back().erase("timestamp");
  }
  return lines;
}

inline std::string precisionOf(const Session &session, const std::string &unit) {
  const Json report = session.services()->precisionReport();
  for (const Json &each : report["units"])
    if (each["name"] == unit)
      return each["precision"];
  return "no such unit";
}

inline std::string messageOf(auto &&call) {
  try {
    call();
  } catch (const Error &error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Flips a bit of a weight's bytes without a trace in the file's times.
inline void damage(const std::filesystem::path &slab, const std::string &layer) {
  auto time = std::filesystem::last_write_time(slab);
  std::fstream file(slab, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char *>(&length), 8);
  std::string header(length, ' ');
  file.read(header.data(), std::streamsize(length));
  uint64_t at = 8 + length + Json::parse(header)[layer + ".qweight"]["data_offsets"][0].get<uint64_t>() + 77;
  file.seekg(std::streamoff(at));
  char byte = char(file.get());
  file.seekp(std::streamoff(at));
  file.put(char(byte ^ 0x10));
  file.close();
  std::filesystem::last_write_time(slab, time);
}

inline void expectPart(const std::string &text, const std::string &part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_PRECISIONANSWERS_H
