//===- TrainOnRanks.h - what ranks of a test train --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_COLLECTIVES_TRAINONRANKS_H
#define SEGUE_RUNTIME_TEST_COLLECTIVES_TRAINONRANKS_H

#include "OnRanks.h"
#include "Session/TrainingCourse.h"

namespace segue::test {

inline Session stitched(const DeviceRef &device, SessionOptions options) {
  return Session(device, {{"front", makeLayer()}, {"back", makeHead()}}, std::move(options));
}

/// Trains with the batches from `first` on of `count` in each step.
inline Course train(Session &session, int steps, int first, int count, double rate = 1e-3) {
  Course course;
  for (int step = 0; step < steps; ++step) {
    std::vector<TensorMap> batches;
    for (int i = 0; i < count; ++i)
      batches.push_back(batchOf(session.device(), session.stepCount(), first + i));
    course.add(session.step(batches, rate));
  }
  course.addState(session);
  return course;
}

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_COLLECTIVES_TRAINONRANKS_H
