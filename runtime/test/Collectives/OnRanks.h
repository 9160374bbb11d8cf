//===- OnRanks.h - ranks of a test ------------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_COLLECTIVES_ONRANKS_H
#define SEGUE_RUNTIME_TEST_COLLECTIVES_ONRANKS_H

#include "segue/runtime/Collectives/InProcess.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include <cstdlib>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <thread>

namespace segue::test {

/// A rank of a test, with a device of its own.
struct Rank {
  DeviceRef device;
  std::shared_ptr<Transport> transport;
  std::shared_ptr<Collectives> together;
  int number() const { return transport->rank(); }
};

/// Makes the collectives of a rank.
using MakeCollectives =
    std::function<std::shared_ptr<Collectives>(DeviceRef, std::shared_ptr<Transport>, const CollectiveOptions &)>;

/// Runs `body` on a thread for each rank, whose number stands for RANK in `device`. Returns what each threw, by rank: ""
/// for nothing.
inline std::vector<std::string> onRanks(int count, const std::string &device, const std::function<void(Rank &)> &body,
                                        InProcessOptions options = {}, CollectiveOptions collectives = {},
                                        const MakeCollectives &make = makeCollectives) {
  std::vector<std::shared_ptr<Transport>> ends = inProcessRanks(count, options);
  std::vector<std::string> thrown(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < thrown.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        std::string name = device;
        if (size_t at = name.find("RANK"); at != name.npos)
          name.replace(at, 4, std::to_string(rank));
        Rank own{Device::open(name), ends[rank], nullptr};
        own.together = make(own.device, own.transport, collectives);
        body(own);
      } catch (const std::exception &error) {
        thrown[rank] = error.what();
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  return thrown;
}

/// True for the calls at which a test lets a rank fail: all, or with SEGUE_SAMPLE, for builds that take many times as
/// long, every third, in each instance of a test others and of either rank.
inline bool isTried(uint64_t call) {
  if (!std::getenv("SEGUE_SAMPLE"))
    return true;
  for (const char *letter = testing::UnitTest::GetInstance()->current_test_info()->name(); *letter; ++letter)
    call += uint64_t(*letter);
  return call % 3 == 0;
}

/// Returns such results of so many ranks, of which none threw.
inline std::vector<std::string> nothing(int ranks) { return std::vector<std::string>(size_t(ranks)); }

} // namespace segue::test

#endif // SEGUE_RUNTIME_TEST_COLLECTIVES_ONRANKS_H
