//===- ForwardEvents.h - a sink that hands events on ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Hands every event to a sink that can be exchanged, or to none: for owners of a
// sink whose receiver changes from step to step. A derived class that wants to
// see some events before or after the receiver does overrides `receive` with
// `deliver` and `forward`, in that order or the other.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_PROGRAM_FORWARDEVENTS_H
#define SEGUE_RUNTIME_PROGRAM_FORWARDEVENTS_H

#include "segue/runtime/Program/Events.h"

namespace segue::inline runtime {

class ForwardEvents : public EventSink {
public:
  /// The sink that is told, which is not owned; null for none.
  EventSink *target = nullptr;

  void receive(const Event &event) override { forward(event); }

protected:
  void forward(const Event &event) {
    if (target)
      target->receive(event);
  }
};

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_PROGRAM_FORWARDEVENTS_H
