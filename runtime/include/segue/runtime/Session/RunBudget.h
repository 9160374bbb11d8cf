//===- RunBudget.h - a budget as people say it ------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A RunBudget says how many bytes of memory a run computes with, and in which folder on
// a disk lies what has no room in them: `segue-run train --budget 2GiB --spill-dir
// /mnt/ssd` and Trainer(budget="2GiB", spill_dir="/mnt/ssd"). It becomes the spec of a
// device that has no more memory than that, and a config in which a plan decides what
// leaves it.
//
//   RunBudget budget{2ull << 30, "/mnt/ssd"};
//   DeviceRef device = Device::open(budget.device("cpu"));
//   SessionOptions options;
//   options.config = budget.config(std::nullopt);
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_RUNBUDGET_H
#define SEGUE_RUNTIME_SESSION_RUNBUDGET_H

#include "segue/runtime/Config/Config.h"
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace segue::inline runtime {

struct RunBudget {
  /// The bytes of device_dram, which holds parameters, gradients, states, saved tensors and arenas.
  uint64_t bytes = 0;
  /// Empty: what leaves goes to the host's memory, on a device with memory of its own. With a folder,
  /// what the host has no room for goes on to there; host= in the device's spec is that room.
  std::filesystem::path spillFolder = {};
  /// The bytes that the run may take in the folder, reserved when the device is opened; 0 for
  /// half of what is free there.
  uint64_t spillCapacityBytes = 0;
  /// Bytes that may stay in the host's memory, above the folder; 0: as the device's spec says.
  uint64_t hostBytes = 0;

  /// The section of a config that says all this:
  ///
  ///   {"memory": {"tiers": {"device_dram_mb": 64, "host_mb": 128, "disk": "/mnt/ssd", "disk_mb": 4096}}}
  static constexpr std::string_view section = "memory.tiers";
  /// Reads that section. Throws ConfigError.
  static RunBudget read(ConfigReader &reader);
  /// Nothing where `config` has no such section. Throws ConfigError.
  static std::optional<RunBudget> of(const Config &config);

  /// The spec of `device` with this much memory, and with the disk below it. Throws
  /// InvalidArgument for a folder beside a device that has no disk below it, for none beside `cpu`, where
  /// nothing could leave, for a capacity without a folder, and for a device whose spec sets what is
  /// set here itself.
  std::string device(std::string_view device) const;

  /// Returns `given` with Conductor on, whose caps are the budget, and Activation Stagehand by plan, if it does
  /// not have these sections; without telemetry, since nobody has named a file for it, and with checksums of
  /// what a disk keeps. Throws InvalidArgument if it has Activation Stagehand off.
  Config config(const std::optional<Config> &given) const;
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_RUNBUDGET_H
