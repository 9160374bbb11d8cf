//===- Report.cpp - segue-run report --------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A page of what a run left: its telemetry, the lines that `segue-run train
// --json` printed, its trace.
//
//===----------------------------------------------------------------------===//

#include "Binaries.h"
#include "Commands.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Reports/RunReport.h"
#include <cstdio>

namespace segue::tool {

int report(const ReportOptions &options) {
  OutputFile::check(options.output);
  RunRecords records;
  records.head = headOfPage();
  records.head.erase("machine"); // on which the run need not have been
  size_t unknown = 0;
  for (const std::string &path : options.telemetry)
    unknown += readTelemetry(path, records);
  if (!options.trace.empty()) {
    std::optional<JsonProblem> problem = readJson(readAll(options.trace), records.trace);
    if (problem)
      throw Error(ErrorCode::FileCorrupt, options.trace + ": no trace of segue-run train --trace: " + problem->sentence);
    if (!records.trace.is_object() || !records.trace.contains("traceEvents"))
      throw Error(ErrorCode::FileCorrupt, options.trace + ": no trace of segue-run train --trace");
    if (records.trace.contains("otherData"))
      records.device = records.trace["otherData"].value("device", "");
  }
  if (options.cap)
    records.capBytes = options.cap;
  if (!options.device.empty()) {
    DeviceRef device = Device::open(options.device);
    records.device = device->name();
    records.link = device->link();
  }
  writeReport(records, options.output);
  if (unknown)
    std::fprintf(stderr, "segue-run: %zu lines are of no service and were left out\n", unknown);
  return Done;
}

} // namespace segue::tool
