//===- RanksBinding.h - several ranks, as Python has them -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_PYTHON_RANKSBINDING_H
#define SEGUE_PYTHON_RANKSBINDING_H

#include "segue/runtime/Device/Device.h"
#include <nanobind/nanobind.h>

namespace segue::python {

/// Binds Collectives over a transport that is written in Python.
void bindRanks(nanobind::module_ &m);

/// Waits, when a call of a session ends, for all that it has given to other ranks. The GIL is not held then. A
/// transport of Python's needs the GIL to end what it does: whoever held it and waited for the device would wait for
/// ever. So nothing is under way between two calls.
class RanksAtRest {
public:
  explicit RanksAtRest(const DeviceRef &device) : device_(device) {}
  ~RanksAtRest() {
    try {
      if (uint64_t last = device_->position(Queue::Network))
        device_->wait(Fence(Queue::Network, last));
    } catch (const std::exception &) { // what has failed is told by the call that ends
    }
  }
  RanksAtRest(const RanksAtRest &) = delete;

private:
  DeviceRef device_;
};

} // namespace segue::python

#endif // SEGUE_PYTHON_RANKSBINDING_H
