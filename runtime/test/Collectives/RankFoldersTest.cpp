//===- RankFoldersTest.cpp - checkpoints that several ranks write ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Ranks save to a folder at the same time, and any number of them goes on from there to
// the bit; whatever becomes of a rank meanwhile, there is a whole checkpoint.
//
//===----------------------------------------------------------------------===//

#include "ErrorOf.h"
#include "Session/TemporaryFolder.h"
#include "TrainOnRanks.h"
#include "segue/runtime/Session/Checkpoint.h"
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

namespace {
struct RankFolders : testing::TestWithParam<Sharding> {};
} // namespace

INSTANTIATE_TEST_SUITE_P(Strategies, RankFolders, testing::Values(Sharding::None, Sharding::States, Sharding::Gradients),
                         [](const auto &info) { return std::string(name(info.param)); });

/// The bytes of tensors that each part has.
static std::vector<uint64_t> bytesOfParts(const std::filesystem::path &folder) {
  std::vector<uint64_t> bytes;
  for (const auto &entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") {
      uint64_t sum = 0;
      SafetensorsFile file = SafetensorsFile::open(entry.path());
      for (const SafetensorsEntry &tensor : file.entries())
        sum += tensor.bytes;
      bytes.push_back(sum);
    }
  return bytes;
}

TEST_P(RankFolders, AnyNumberOfRanksGoesOnFromWhatTwoHaveSaved) {
  for (const char *device :
       {"cpu:threads=1", "sim:dram=1MiB,pinned=0,adversarial=4", "sim:streams,dram=1MiB,adversarial=2"}) {
    TemporaryFolder folder;
    Session before = stitched(Device::open("cpu:threads=1"), {});
    setValues(before, 1);
    train(before, 4, 0, 2);
    before.save(folder / "alone.safetensors");
    EXPECT_EQ(onRanks(
                  2, device,
                  [&](Rank &rank) {
                    Session session = stitched(rank.device, {.collectives = rank.together, .sharding = GetParam()});
                    setValues(session, 1);
                    for (int step = 0; step < 4; ++step) {
                      train(session, 1, rank.number(), 1);
                      session.save(folder / "c/", "notes"); // over the one before
                    }
                  },
                  {.seed = 5}),
              nothing(2));
    std::vector<uint64_t> bytes = bytesOfParts(folder / "c");
    ASSERT_EQ(bytes.size(), 2u);
    EXPECT_EQ(bytes[0], bytes[1]); // two parameters of a size with a state each
    for (int ranks : {1, 2, 3}) {
      Session alone = stitched(Device::open("cpu:threads=1"), {});
      alone.load(folder / "alone.safetensors");
      Course expected = train(alone, 3, 0, ranks);
      EXPECT_EQ(onRanks(
                    ranks, device,
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together, .sharding = GetParam()});
                      EXPECT_EQ(session.load(folder / "c"), "notes");
                      EXPECT_EQ(session.stepCount(), 4);
                      Course course = train(session, 3, rank.number(), 1);
                      EXPECT_EQ(course.losses, expected.losses);
                      for (const auto &[key, values] : course.tensors) // with the states that this rank has
                        EXPECT_EQ(values, expected.tensors.at(key)) << key;
                    },
                    {.seed = 6}, {.addsInOrder = true}),
                nothing(ranks));
    }
  }
}

// Before their first step ranks may have different values: each writes those that all will have.
TEST_P(RankFolders, ValuesAreAgreedOnBeforeTheyAreSaved) {
  TemporaryFolder folder;
  EXPECT_EQ(onRanks(3, "cpu:threads=1",
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together, .sharding = GetParam()});
                      setValues(session, float(1 + rank.number()));
                      session.save(folder / "c/");
                    }),
            nothing(3));
  Session first = stitched(Device::open("cpu:threads=1"), {}), loaded = stitched(first.device(), {});
  setValues(first, 1);
  loaded.load(folder / "c");
  EXPECT_EQ(train(loaded, 0, 0, 1), train(first, 0, 0, 1));
}

// A rank that fails or vanishes at any call of a save, or before, leaves the last checkpoint or the next one whole.
// Files that it has left besides go with the next save.
TEST_P(RankFolders, ARankThatIsGoneAtAnyMomentOfASaveLeavesAWholeCheckpoint) {
  Session alone = stitched(Device::open("cpu:threads=1"), {});
  setValues(alone, 1);
  std::vector<Course> states(1);
  for (int step = 1; step < 4; ++step)
    states.push_back(train(alone, 1, 0, 2));
  std::map<int64_t, int> found;
  uint64_t first = GetParam() == Sharding::None ? 6 : 10; // in the first step, which has fewer calls
  for (bool vanishes : {false, true})
    for (uint64_t call = first; call < first + 34; call += vanishes ? 5 : 1) {
      if (!isTried(call))
        continue;
      TemporaryFolder folder;
      int gone = int(call / (vanishes ? 5 : 1) % 2);
      std::vector<ErrorCode> codes(2);
      EXPECT_EQ(onRanks(
                    2, "cpu:threads=1",
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together, .sharding = GetParam()});
                      setValues(session, 1);
                      auto [code, what] = errorOf([&] {
                        for (int step = 0; step < 3; ++step) {
                          train(session, 1, rank.number(), 1);
                          session.save(folder / "c/");
                        }
                      });
                      codes[size_t(rank.number())] = code;
                      bool isWell = code == ErrorCode(-1); // the fault comes later
                      EXPECT_TRUE(code == ErrorCode::RankFailed || code == ErrorCode::StateTorn || isWell) << what;
                    },
                    {.timeoutSeconds = vanishes ? 0.1 : 20, .fault = InProcessOptions::Fault{gone, call, vanishes}}),
                nothing(2));
      Session after = stitched(Device::open("cpu:threads=1"), {});
      if (!std::filesystem::exists(checkpointFileOf(folder / "c/"))) {
        ++found[0];
        EXPECT_NE(codes[0], ErrorCode(-1));
        setValues(after, 1);
      } else {
        after.load(folder / "c");
        ++found[after.stepCount()];
        EXPECT_EQ(train(after, 0, 0, 1).tensors, states[size_t(after.stepCount())].tensors) << call;
      }
      after.save(folder / "c/");
      EXPECT_EQ(bytesOfParts(folder / "c").size(), 1u);
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "c"), {}), 2);
    }
  for (int64_t step : {0, 1, 2})
    EXPECT_GT(found[step], 0) << step;
}

// A rank that cannot write, or writes where rank 0 does not see it, costs that checkpoint: all hear of it, the one
// before stays, and all go on.
TEST_P(RankFolders, ARankThatCannotWriteCostsThatCheckpointAlone) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "elsewhere");
  auto filesIn = [&] {
    std::set<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator(folder / "c"))
      names.insert(entry.path().filename());
    return names;
  };
  struct Way {
    const char *path;
    const char *onRank0, *onRank1;
  };
  const Way ways[] = {{"missing/", "RANK_FAILED: rank 1 cannot save: IO_FAILED: ", "IO_FAILED: "},
                      {"elsewhere/", "is not here as rank 1 has written it", "RANK_FAILED: rank 0 cannot save: "}};
  std::set<std::string> first;
  EXPECT_EQ(onRanks(2, "cpu:threads=1",
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together, .sharding = GetParam()});
                      setValues(session, 1);
                      train(session, 1, rank.number(), 1);
                      session.save(folder / "c/");
                      if (rank.number() == 0)
                        first = filesIn();
                      for (const Way &way : ways) {
                        train(session, 1, rank.number(), 1);
                        auto [code, what] = errorOf([&] { session.save(folder / (rank.number() ? way.path : "c/")); });
                        EXPECT_NE(what.find(rank.number() ? way.onRank1 : way.onRank0), what.npos) << what;
                        rank.together->exchange("looking", "");
                        EXPECT_EQ(filesIn(), first);
                        rank.together->exchange("looked", "");
                      }
                      train(session, 1, rank.number(), 1);
                      session.save(folder / "c/");
                    }),
            nothing(2));
  Session after = stitched(Device::open("cpu:threads=1"), {}), alone = stitched(after.device(), {});
  after.load(folder / "c");
  setValues(alone, 1);
  EXPECT_EQ(train(after, 0, 0, 1).tensors, train(alone, 4, 0, 2).tensors);
  EXPECT_EQ(filesIn().size(), 3u);
}

// A rank compares with hashes, and so reads, the states that it has, and no others.
TEST(RankFolder, ARankReadsNoStatesOfOthers) {
  for (const char *name : {"c/", "c.safetensors"}) {
    TemporaryFolder folder;
    Session session = stitched(Device::open("cpu:threads=1"), {});
    setValues(session, 1);
    train(session, 1, 0, 2);
    session.save(folder / name);
    std::filesystem::path path = folder / name;
    if (path.filename().empty())
      for (const auto &entry : std::filesystem::directory_iterator(path))
        if (entry.path().extension() == ".safetensors")
          path = entry.path();
    std::string bytes = readText(path), damaged;
    SafetensorsFile file = SafetensorsFile::open(path);
    for (const SafetensorsEntry &entry : file.entries())
      if (entry.name.starts_with("segue.state.") && damaged.empty()) {
        damaged = entry.name;
        bytes[entry.offset] ^= 1;
      }
    ASSERT_NE(damaged, "");
    writeText(path, bytes);
    std::vector<std::string> said(2);
    EXPECT_EQ(onRanks(2, "cpu:threads=1",
                      [&](Rank &rank) {
                        Session own =
                            stitched(rank.device, {.collectives = rank.together, .sharding = Sharding::States});
                        auto [code, what] = errorOf([&] { own.load(folder / name); });
                        said[size_t(rank.number())] = what;
                        bool has = own.state().contains(damaged.substr(std::string("segue.state.").size()));
                        bool isSaid = what.find("tensor \"" + damaged + "\" does not match its hash") != what.npos;
                        EXPECT_EQ(isSaid, has) << what;
                        EXPECT_EQ(own.stepCount(), has ? 0 : 1);
                      }),
              nothing(2));
    EXPECT_NE(said[0], said[1]);
  }
}

// With files and one rank, where all have all, nothing is met about.
TEST(RankFolder, SealsAndFilesStayWhatTheyAre) {
  TemporaryFolder folder;
  EXPECT_EQ(onRanks(2, "cpu:threads=1",
                    [&](Rank &rank) {
                      Session session = stitched(rank.device, {.collectives = rank.together});
                      setValues(session, 1);
                      train(session, 1, rank.number(), 1);
                      if (rank.number() == 0)
                        session.save(folder / "c.safetensors");
                    }),
            nothing(2));
  Session after = stitched(Device::open("cpu:dram=1MiB,disk=" + folder.path.string() + "?capacity=16MiB"), {});
  after.load(folder / "c.safetensors");
  auto [code, what] = errorOf([&] { after.sealAt(folder / "c/"); });
  EXPECT_EQ(code, ErrorCode::InvalidArgument) << what;
}
