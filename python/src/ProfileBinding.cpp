//===- ProfileBinding.cpp - where a step goes, in Python ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ProfileBinding.h"
#include "segue/runtime/Reports/Roofline.h"
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nlohmann/json.hpp>

namespace nb = nanobind;
using namespace nb::literals;

namespace segue::python {

namespace {
/// A timer with the device that it is for.
class DeviceTimer {
public:
  explicit DeviceTimer(const DeviceRef &device) : device_(device), timer_(device) {}

  void stop() { timer_.stop(); }

  std::string table(std::string what, uint64_t runs, double seconds) const {
    Roofline roofline({device_->name(), device_->threads(), std::move(what), runs, seconds}, timer_.times(),
                      speedOf(*device_));
    Json json = roofline.json();
    json["text"] = roofline.text();
    return json.dump();
  }

private:
  DeviceRef device_;
  CommandTimer timer_;
};
} // namespace

void bindProfile(nb::module_ &m) {
  using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<DeviceTimer>(m, "CommandTimer")
      .def(nb::init<const DeviceRef &>(), "device"_a)
      .def("stop", &DeviceTimer::stop, ReleaseGil())
      .def("table", &DeviceTimer::table, "what"_a, "runs"_a, "seconds"_a, ReleaseGil());
}

} // namespace segue::python
