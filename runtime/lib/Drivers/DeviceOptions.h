//===- DeviceOptions.h - what stands behind the colon -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The options of a device spec, `driver:key=value,flag,...`, read by a driver
// with units and ranges. Every error is InvalidArgument and says which device,
// which option, what was found and what is allowed.
//
//   DeviceOptions options("sim", "dram=512MiB,link=16GB/s");
//   options.requireKnown({"dram", "link"}, {"virtual"});
//   uint64_t bytes = options.bytes("dram", 512 << 20);
//   options.spec();                                   // opens the device again
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_DRIVERS_DEVICEOPTIONS_H
#define SEGUE_LIB_DRIVERS_DEVICEOPTIONS_H

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segue::inline runtime {

class DeviceOptions {
public:
  /// Parses `text`, which is what follows the colon. Throws if a key is given twice.
  DeviceOptions(std::string_view driver, std::string_view text);

  /// Throws unless all options are among `keys` (with a value) or `flags`
  /// (without one).
  void requireKnown(std::span<const std::string_view> keys, std::span<const std::string_view> flags = {}) const;

  bool has(std::string_view key) const { return find(key) != nullptr; }

  /// Reads "512MiB", "1.5GiB" or "4096" as bytes; units B, KiB, MiB, GiB, TiB.
  uint64_t bytes(std::string_view key, uint64_t absent) const;
  /// Reads "16GB/s" as bytes per second; units B/s, KB/s, MB/s, GB/s, TB/s, powers of 1000.
  double bytesPerSecond(std::string_view key, double absent) const;
  /// Reads "10us" as seconds; units s, ms, us, ns.
  double seconds(std::string_view key, double absent) const;
  /// Reads "80TFLOP/s" as operations per second; units GFLOP/s, TFLOP/s, PFLOP/s.
  double flopsPerSecond(std::string_view key, double absent) const;
  uint64_t integer(std::string_view key, uint64_t absent, uint64_t least, uint64_t most) const;
  /// Reads a number from 0 to 1.
  double fraction(std::string_view key, double absent) const;
  std::string text(std::string_view key, std::string_view absent) const;

  /// Sets an option, or adds it at the end.
  void set(std::string_view key, std::string_view value);

  /// Adds the options of `other`, in their order, except those named by `without`.
  void add(const DeviceOptions &other, std::span<const std::string_view> without);

  const std::string &driver() const { return driver_; }

  /// `driver:key=value,...`, or only the driver.
  std::string spec() const;

  /// Throws InvalidArgument with the message `device "sim": <what>`.
  [[noreturn]] void fail(const std::string &what) const;

private:
  struct Option {
    std::string key, value;
    bool hasValue;
  };
  const Option *find(std::string_view key) const;
  struct Unit {
    std::string_view name;
    double factor;
  };
  /// Returns the value times its unit; throws naming the units if it is not a number with
  /// one of them, is negative or infinite.
  double quantity(const Option &option, std::span<const Unit> units, std::string_view example) const;

  std::string driver_;
  std::vector<Option> options_;
};

} // namespace segue::inline runtime

#endif // SEGUE_LIB_DRIVERS_DEVICEOPTIONS_H
