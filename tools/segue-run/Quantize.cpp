//===- Quantize.cpp - segue-run quantize ----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Drives a SlabBuilder: progress on stderr where that is a terminal, the report
// on stdout. The flags are read as the section of a config file would be, so
// that both have the same ranges and messages.
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include "segue/runtime/Services/SquareQ/SlabManifest.h"
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace segue::tool {

/// The section of the config file, if one is given, with the flags over it.
static SquareQConfig readConfig(const QuantizeOptions &options) {
  SquareQConfig fromFile;
  Json section = Json::object();
  if (!options.config.empty()) {
    Config config = Config::load(options.config);
    ConfigReader reader = config.section(SquareQConfig::section);
    fromFile = SquareQConfig::read(reader);
  }
  section["pad_k"] = options.padK.value_or(fromFile.padK);
  section["scheme"] = options.scheme.empty() ? name(fromFile.scheme) : std::string_view(options.scheme);
  section["group"] = options.group.value_or(fromFile.group);
  section["rotation"] = !options.rotation.empty() ? std::string_view(options.rotation)
                        : fromFile.rotated        ? rotationName
                                                  : "none";
  section["rank"] = options.rank.value_or(fromFile.rank);
  if (!options.includePrefixes.empty())
    section["include_prefixes"] = options.includePrefixes;
  else if (fromFile.includePrefixes)
    section["include_prefixes"] = *fromFile.includePrefixes;
  section["keep_bf16"] = options.keepBf16.empty() ? fromFile.keepBf16 : options.keepBf16;
  section["scale_search"] =
      options.scaleSearch.empty() ? name(fromFile.scaleSearch) : std::string_view(options.scaleSearch);
  section["max_ratio"] = options.maxRatio.value_or(fromFile.maxRatio);
  ConfigReader reader(section, "quantize");
  return SquareQConfig::read(reader);
}

/// One line on a terminal, written over.
static void showProgress(const SlabBuilder &builder) {
  std::fprintf(stderr, "\r\033[K[%zu/%zu] %.*s", builder.layersDone(), builder.layerCount(),
               int(builder.nextLayer().size()), builder.nextLayer().data());
  std::fflush(stderr);
}

static void printReport(const BuildReport &report, const SlabPaths &paths) {
  std::printf("%s: %zu layers, %.1f MiB of %.1f MiB as bf16\n", paths.slab.c_str(), report.layers.size(),
              double(report.bytesOut) / 1048576, double(report.bytesBf16()) / 1048576);
  if (!report.layers.empty())
    std::printf("relative RMSE at most %.5f; cosine at least %.6f, on average %.6f; %lld floored rows\n",
                report.maxRelRmse, report.minCosine, report.meanCosine, (long long)report.flooredRows);
  for (const std::string &layer : report.notRotated)
    std::printf("  plain %-40s its columns are not a multiple of 256\n", layer.c_str());
  for (const auto &[layer, reason] : report.keptBf16)
    std::printf("  bf16  %-40s %s\n", layer.c_str(), reason.c_str());
}

int quantize(const QuantizeOptions &options) {
  SquareQConfig config = readConfig(options);
  SlabPaths paths(options.slab);
  SlabBuilder builder({.source = options.source,
                       .slab = options.slab,
                       .config = config,
                       .architectureId = options.architectureId,
                       .keepNonfiniteBf16 = options.keepNonfiniteBf16,
                       .threads = int(options.threads)});
  if (!builder.restartReason().empty())
    std::fprintf(stderr, "segue-run: begun anew: %s\n", builder.restartReason().c_str());
  else if (builder.layersDone())
    std::fprintf(stderr, "segue-run: going on: %zu of %zu layers are done\n", builder.layersDone(),
                 builder.layerCount());
  bool isTerminal = ::isatty(STDERR_FILENO) && !options.json;
  try {
    do
      if (isTerminal)
        showProgress(builder);
    while (builder.step());
  } catch (...) {
    if (isTerminal)
      std::fputc('\n', stderr);
    throw;
  }
  if (isTerminal)
    std::fputs("\r\033[K", stderr);
  BuildReport report = builder.finish();
  if (!options.json) {
    printReport(report, paths);
    return Done;
  }
  Json json = report.json();
  json["seconds"] = report.seconds;
  json["resumed_layers"] = report.resumedLayers;
  json["slab"] = paths.slab.string();
  json["manifest"] = paths.manifest.string();
  std::printf("%s\n", json.dump().c_str());
  return Done;
}

} // namespace segue::tool
