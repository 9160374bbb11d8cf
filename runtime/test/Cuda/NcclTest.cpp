//===- NcclTest.cpp - ranks that send by NCCL, on the fake one ------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "../../lib/Cuda/Nccl/MessageChoice.h"
#include "../../lib/Cuda/Nccl/NcclCollectives.h"
#include "../Collectives/CollectivesConformance.h"
#include "CudaTestParts.h"
#include "OnFakeCuda.h"
#include "segue/runtime/Cuda/Nccl.h"
#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <tuple>

using namespace segue;
using namespace segue::test;
using cuda::MessageWord;

static std::shared_ptr<Collectives> byNccl(DeviceRef device, std::shared_ptr<Transport> transport,
                                           const CollectiveOptions &options) {
  // One that adds in order has reasons to go by the host.
  return joinRanks(std::move(device), std::move(transport),
                   {.collectives = options, .way = options.addsInOrder ? MessageWay::Automatic : MessageWay::Nccl});
}

static constexpr const char *gpus = "cuda:RANK,dram=64MiB,pinned=8MiB";

INSTANTIATE_TEST_SUITE_P(Nccl, CollectivesConformance,
                         testing::Values(CollectivesCase{gpus, byNccl, /*addsInOrder=*/false},
                                         CollectivesCase{"cuda:RANK,dram=64MiB,pinned=4KiB", byNccl,
                                                         /*addsInOrder=*/false}));

static std::vector<std::string> onGpus(int ranks, const std::function<void(Rank &)> &body,
                                       InProcessOptions options = {}, CollectiveOptions collectives = {}) {
  return onRanks(ranks, gpus, body, options, collectives, byNccl);
}

//===----------------------------------------------------------------------===//
// How it is chosen
//===----------------------------------------------------------------------===//

static const std::string byHost = "host: messages between ranks go by way of the host: ";

static std::string choiceOf(const std::vector<MessageWord> &words) {
  try {
    cuda::MessageChoice choice = cuda::chooseMessages(words);
    return (choice.usesNccl ? "nccl: " : "host: ") + choice.why;
  } catch (const Error &error) {
    return error.what();
  }
}

TEST(MessageChoice, EveryRankNeedsAGpuOfItsOwn) {
  MessageWord a{.gpu = "a", .nccl = 22707}, b{.gpu = "b", .nccl = 22707}, none;
  EXPECT_EQ(choiceOf({a, b}), "nccl: messages between ranks go by NCCL 22707, from GPU to GPU");
  EXPECT_EQ(choiceOf({none, none}), "host: ");
  EXPECT_EQ(choiceOf({a, none}), byHost + "rank 1 has no GPU (device cuda:N)");
  expectWords(choiceOf({a, b, a}), byHost + "rank 0 and rank 2 have one GPU");
  EXPECT_EQ(choiceOf({a}), "host: "); // there is nobody to send to
  MessageWord old = b, lacking = b, piped = b;
  old.nccl = 22600;
  expectWords(choiceOf({a, old}), byHost + "rank 0 has NCCL 22707, and rank 1 22600");
  lacking.nccl = 0, lacking.lack = "there is no NCCL";
  expectWords(choiceOf({a, lacking}), byHost + "rank 1: there is no NCCL");
  piped.hostFor = "ranks of a pipeline send";
  expectWords(choiceOf({a, piped}), "go by way of the host: ranks of a pipeline send");
}

TEST(MessageChoice, WhoAsksForAWayGetsItOrAnError) {
  MessageWord a{.gpu = "a", .nccl = 22707}, b{.gpu = "b", .nccl = 22707};
  MessageWord asks = b, refuses = b;
  asks.way = MessageWay::Nccl, refuses.way = MessageWay::Host;
  expectWords(choiceOf({a, asks}), "nccl: ");
  expectWords(choiceOf({asks}), "nccl: "); // of one rank, for who tries it
  EXPECT_EQ(choiceOf({a, refuses}), "host: "); // and nothing else was asked for
  expectWords(choiceOf({asks, refuses}),
              "RANK_FAILED: rank 1 was asked to send by way of the host, and rank 0 by NCCL");
  expectWords(choiceOf({asks, MessageWord()}),
              "UNSUPPORTED: messages between ranks cannot go by NCCL, which rank 0 was asked for: rank 1 has no GPU");
  for (MessageWay way : {MessageWay::Automatic, MessageWay::Host, MessageWay::Nccl}) {
    MessageWord word{way, "fa", 22707, "why \"so\"", "that"};
    MessageWord told = MessageWord::parse(word.text());
    EXPECT_EQ(std::tie(told.way, told.gpu, told.nccl, told.lack, told.hostFor),
              std::tie(word.way, word.gpu, word.nccl, word.lack, word.hostFor));
  }
  EXPECT_EQ(parseMessageWay("nccl"), MessageWay::Nccl);
  EXPECT_THROW(parseMessageWay("mpi"), Error);
}

TEST(Nccl, WhereThereIsNoneRanksAreToldWhatToInstall) {
  std::string kept = std::getenv("SEGUE_NCCL_LIBRARY");
  setenv("SEGUE_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  std::vector<std::string> thrown = onGpus(2, [](Rank &) {});
  for (const std::string &text : thrown) {
    expectWords(text, "UNSUPPORTED: messages between ranks cannot go by NCCL, which rank 0 was asked for: rank 0: ");
    expectWords(text, "/nowhere/libnccl.so.2");
    expectWords(text, "pip install nvidia-nccl-cu13");
  }
  std::vector<std::string> said(2);
  auto automatic = [&](DeviceRef device, std::shared_ptr<Transport> transport, const CollectiveOptions &options) {
    int rank = transport->rank();
    auto log = [&said, rank](const std::string &text) { said[size_t(rank)] = text; };
    return joinRanks(std::move(device), std::move(transport),
                     {.collectives = options, .way = MessageWay::Automatic, .log = log});
  };
  EXPECT_EQ(onRanks(2, gpus,
                    [](Rank &rank) {
                      Tensor tensor = filled(rank.device, 8, rank.number());
                      rank.device->wait(rank.together->allReduce(std::span(&tensor, 1)));
                      EXPECT_EQ(read(tensor), sums(2, 8));
                    },
                    {}, {}, automatic),
            nothing(2));
  expectWords(said[0], "messages between ranks go by way of the host: rank 0: UNSUPPORTED: there is no NCCL");
  EXPECT_EQ(said[0], said[1]);
  setenv("SEGUE_NCCL_LIBRARY", kept.c_str(), 1);
}

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

static uint64_t heldBy(const DeviceRef &device, std::string_view owner, Space space = Space::DeviceDram) {
  uint64_t bytes = 0;
  for (const MemoryHolder &holder : device->memory().holders(space))
    bytes += holder.owner.value == owner ? holder.liveBytes : 0;
  return bytes;
}

// What the library takes is found in the books while it has it, and no tensor passes through the host.
TEST(Nccl, WhatItTakesOfTheGpuCounts) {
  EXPECT_EQ(onGpus(2,
                   [](Rank &rank) {
                     EXPECT_EQ(heldBy(rank.device, cuda::ncclOwner), 6u << 20);
                     std::vector<Tensor> tensors;
                     for (int64_t count : {100000, 3, 5000})
                       tensors.push_back(filled(rank.device, count, rank.number()));
                     rank.device->wait(rank.together->allReduce(tensors));
                     rank.device->wait(rank.together->reduce(tensors, 1));
                     rank.device->wait(rank.together->broadcast(tensors, 0));
                     EXPECT_EQ(rank.together->figures().peakBytes, 0u);
                     EXPECT_EQ(rank.together->figures().messages, 3u);
                     rank.together = nullptr;
                     EXPECT_EQ(heldBy(rank.device, cuda::ncclOwner), 0u);
                     EXPECT_EQ(heldBy(rank.device, messageOwner), 0u);
                     EXPECT_EQ(heldBy(rank.device, messageOwner, Space::HostPinned), 0u);
                     // The bytes serve others again.
                     Tensor all = Tensor::empty(rank.device, TensorDesc({(60 << 20) / 4}, ElementType::f32));
                   }),
            nothing(2));
}

TEST(Nccl, WhatHasNoRoomInTheBudgetIsRefusedOnAll) {
  std::vector<std::string> thrown = onRanks(2, "cuda:RANK,dram=10MiB,pinned=8MiB", [](Rank &) {}, {}, {}, byNccl);
  int refused = 0;
  for (const std::string &text : thrown) {
    expectWords(text, "NCCL has taken 6291456 bytes of the GPU for itself");
    refused += text.rfind("DEVICE_OOM", 0) == 0;
  }
  EXPECT_GE(refused, 1);
}

//===----------------------------------------------------------------------===//
// Ranks that fail
//===----------------------------------------------------------------------===//

// The others hear of a rank that never comes to a call by name, though the call lies on their GPUs, and of one that
// gives up why it does.
TEST(Nccl, ARankThatIsGoneEndsTheOthers) {
  struct Case {
    bool says;
    int gone, calls;
  };
  for (auto [says, gone, calls] :
       {Case{true, 0, 0}, {true, 0, 2}, {true, 2, 1}, {false, 0, 1}, {false, 2, 2}}) {
    std::atomic<int> ended{0};
    std::vector<std::string> thrown = onGpus(
        3,
        [&, says = says, gone = gone, calls = calls](Rank &rank) {
          struct Ended {
            std::atomic<int> &count;
            ~Ended() { ++count; }
          } end{ended}; // of a rank whose next call throws, too
          rank.together->exchange("a test begins", ""); // nobody is still joining
          Tensor tensor = filled(rank.device, 64, rank.number());
          for (int i = 0; i < 3; ++i) {
            if (rank.number() == gone && i == calls) {
              if (says)
                rank.together->abandon("a test wants it");
              while (ended < 2)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
              return;
            }
            i == 1 ? rank.together->broadcast(std::span(&tensor, 1), 1)
                   : rank.together->allReduce(std::span(&tensor, 1));
          }
          wait(tensor);
        },
        {.seed = uint64_t(calls), .timeoutSeconds = 1});
    std::string name = "rank " + std::to_string(gone);
    for (int rank = 0; rank < 3; ++rank)
      if (rank != gone) {
        expectWords(thrown[size_t(rank)], says ? name + " has given up: a test wants it"
                                               : name + " did not come to a " + (calls == 1 ? "broadcast" : "sum"));
        EXPECT_EQ(thrown[size_t(rank)].rfind("RANK_FAILED", 0), 0u) << thrown[size_t(rank)];
      }
    EXPECT_EQ(thrown[size_t(gone)], "");
  }
}

// A call that one rank's library refuses, or an error that it finds by itself, is told on all ranks, and nobody hangs.
TEST(Nccl, AnErrorOfTheLibraryIsToldOnAll) {
  for (const char *call : {"ncclAllReduce", "ncclGroupEnd", "ncclCommGetAsyncError", "ncclCommInitRankConfig",
                           "ncclGetUniqueId"})
    for (unsigned skipped : {0, 3, 7}) {
      if (skipped > 1 && std::string_view(call).find("ncclG") == 0 && std::string_view(call) != "ncclGroupEnd")
        continue;
      if (skipped > 1 && std::string_view(call) == "ncclCommInitRankConfig")
        continue;
      SCOPED_TRACE(std::string(call) + " after " + std::to_string(skipped));
      fakecuda::failCalls(call, cuda::ncclRemoteFailed, skipped, 1);
      std::vector<std::string> thrown = onGpus(
          2,
          [](Rank &rank) {
            Tensor tensor = filled(rank.device, 64, rank.number());
            for (int i = 0; i < 8; ++i)
              rank.device->wait(rank.together->allReduce(std::span(&tensor, 1)));
            wait(tensor);
          },
          {.timeoutSeconds = 5});
      for (const std::string &text : thrown) {
        expectWords(text, "NCCL says of ");
        expectWords(text, ": remote process exited or there was a network error (6)");
      }
      fakecuda::reset();
    }
}

TEST(Nccl, RanksThatCallOtherThingsAreEnded) {
  for (bool sameCount : {false, true}) {
    std::vector<std::string> thrown = onGpus(
        2,
        [&](Rank &rank) {
          Tensor tensor = filled(rank.device, rank.number() && !sameCount ? 32 : 64, rank.number());
          rank.device->wait(rank.number() && sameCount ? rank.together->broadcast(std::span(&tensor, 1), 0)
                                                       : rank.together->allReduce(std::span(&tensor, 1)));
          wait(tensor);
        },
        {.timeoutSeconds = 1});
    for (const std::string &text : thrown)
      EXPECT_EQ(text.rfind("RANK_FAILED", 0), 0u) << text;
    expectWords(fakecuda::misuse(), "rank 0 calls ncclAllReduce of 64 of type 7, and rank 1 ");
    fakecuda::reset();
  }
}
