//===- SlabBuilderTest.cpp - making slabs from checkpoints ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include "Services/SquareQ/SlabModel.h"
#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Services/SquareQ/Slab.h"
#include <csignal>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace segue;

namespace {

class SlabBuilderTest : public testing::Test {
protected:
  void SetUp() override { save(smallModel()); }
  void save(const TensorMap &model) { saveSafetensors(source(), model); }

  std::filesystem::path source() const { return folder_ / "model.safetensors"; }
  BuildOptions options(const std::string &slab = "slab") const {
    return {.source = source(), .slab = folder_ / slab, .threads = 2};
  }

  /// The bytes of the three files.
  std::vector<std::string> filesOf(const std::string &slab) const {
    SlabPaths paths(folder_ / slab);
    return {readText(paths.slab), readText(paths.manifest), readText(paths.report)};
  }
  bool hasFinalFiles(const std::string &slab) const {
    SlabPaths paths(folder_ / slab);
    return std::filesystem::exists(paths.slab) || std::filesystem::exists(paths.manifest);
  }

  TemporaryFolder folder_;
};

} // namespace

// NEW, LAYER k of n, FINALISED; what is quantised and what is not, and why.
TEST_F(SlabBuilderTest, BuildsLayerByLayer) {
  SlabBuilder builder(options());
  EXPECT_EQ(builder.state(), BuildState::New);
  EXPECT_EQ(builder.layerCount(), 7u);
  EXPECT_EQ(builder.nextLayer(), "blocks.0.fc1");
  EXPECT_TRUE(builder.step());
  EXPECT_EQ(builder.state(), BuildState::Layer);
  EXPECT_EQ(builder.layersDone(), 1u);
  EXPECT_FALSE(hasFinalFiles("slab"));
  BuildReport report = builder.finish();
  EXPECT_EQ(builder.state(), BuildState::Finalised);
  EXPECT_EQ(builder.nextLayer(), "");
  EXPECT_FALSE(builder.step());
  EXPECT_ERROR(builder.finish(), StateTransition, "FINALISED already");
  // Nothing else is left in the folder than source, slab, manifest, report.
  EXPECT_EQ(folder_.fileCount(), 4u);

  ASSERT_EQ(report.layers.size(), 7u);
  std::map<std::string, std::string> kept{
      {"lm_head", "keep_bf16 \"lm_head\""}, {"narrow", "max_ratio: 9 of its bf16 bytes"}, {"wte", "keep_bf16 \"wte\""}};
  EXPECT_EQ(report.keptBf16, kept);
  EXPECT_GT(report.minCosine, 0.9996);
  EXPECT_LT(report.maxRelRmse, 0.05);
  EXPECT_EQ(report.flooredRows, 0);
  uint64_t bytes = 2 * (160 * 128 + 8 * 160 + 4 * 160 + 96 * 192 + 8 * 96 + 96 * 128 + 8 * 96) + 32 * 192 + 8 * 32;
  EXPECT_EQ(report.bytesOut, bytes);
  Json telemetry = report.telemetry();
  std::vector<std::string> keys;
  for (const auto &[key, value] : telemetry.items())
    keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"layers", "kept_bf16", "bytes_in", "bytes_out", "floored_rows",
                                            "max_rel_rmse", "min_cosine", "seconds"}));
  EXPECT_EQ(telemetry["layers"], 7);
  EXPECT_EQ(telemetry["kept_bf16"], 3);

  Slab slab(folder_ / "slab.safetensors");
  slab.open({}, SlabVerify::Full);
  EXPECT_EQ(slab.manifest().keptBf16, kept);
  EXPECT_EQ(slab.manifest().totalQweightBytes, 2 * (160 * 128 + 96 * 192 + 96 * 128) + 32 * 192);
}

// The same bytes for any number of threads.
TEST_F(SlabBuilderTest, DoesNotDependOnThreads) {
  for (int threads : {1, 2, 5}) {
    BuildOptions built = options("slab" + std::to_string(threads));
    built.threads = threads;
    SlabBuilder(built).finish();
    EXPECT_EQ(filesOf("slab" + std::to_string(threads)), filesOf("slab1"));
  }
}

// Prefixes, globs and bounds; a bound is known only after quantising.
TEST_F(SlabBuilderTest, LeavesOutWhatItIsTold) {
  BuildOptions built = options();
  built.config.includePrefixes = {"blocks.0.", "conv"};
  built.config.keepBf16 = {"*.fc?"};
  BuildReport report = SlabBuilder(built).finish();
  ASSERT_EQ(report.layers.size(), 2u);
  EXPECT_EQ(report.layers[0].name, "blocks.0.out");
  EXPECT_EQ(report.layers[1].name, "conv");
  EXPECT_EQ(report.keptBf16["blocks.0.fc1"], "keep_bf16 \"*.fc?\"");
  EXPECT_EQ(report.keptBf16["blocks.1.fc1"], "not in include_prefixes");
  EXPECT_EQ(report.keptBf16["lm_head"], "not in include_prefixes");

  built.config.includePrefixes = {"blocks.", "layers."};
  EXPECT_ERROR(SlabBuilder(built), ConfigInvalid, "begins with \"layers.\"");

  built.config.includePrefixes.reset();
  // A bound between the errors of the layers keeps some and takes others.
  built.config.keepBf16.clear();
  double least = 1, greatest = 0;
  for (const LayerReport &layer : SlabBuilder(built).finish().layers) {
    least = std::min(least, layer.error.relRmse);
    greatest = std::max(greatest, layer.error.relRmse);
  }
  std::string bound = "rmse>" + std::to_string((least + greatest) / 2);
  built.config.keepBf16 = {bound};
  report = SlabBuilder(built).finish();
  size_t bounded = 0;
  for (const auto &[name, reason] : report.keptBf16)
    bounded += reason.starts_with("keep_bf16 \"" + bound + "\": 0.0");
  EXPECT_GT(bounded, 0u);
  EXPECT_GT(report.layers.size(), 0u);
  EXPECT_EQ(bounded + report.layers.size() + 1, 10u); // `narrow` is kept for its ratio
  EXPECT_LE(report.maxRelRmse, (least + greatest) / 2 + 1e-6);

  built.config.keepBf16 = {"cosine<1.0"};
  EXPECT_EQ(SlabBuilder(built).finish().layers.size(), 0u);
  Slab slab(folder_ / "slab.safetensors");
  slab.open(); // an empty slab is one
}

TEST_F(SlabBuilderTest, NamesWeightsThatAreNotFinite) {
  TensorMap model = smallModel();
  model["conv.weight"].data<float>()[5 * 144 + 9] = std::nanf("");
  model["blocks.1.out.weight"].data<uint16_t>()[2 * 100 + 1] = 0x7c00; // infinity
  save(model);
  SlabBuilder builder(options());
  EXPECT_ERROR(builder.finish(), NonFinite, "layer \"blocks.1.out\", row 2, column 1");
  EXPECT_FALSE(hasFinalFiles("slab"));
  BuildOptions kept = options("kept");
  kept.keepNonfiniteBf16 = true;
  BuildReport report = SlabBuilder(kept).finish();
  EXPECT_EQ(report.keptBf16["blocks.1.out"], "not finite at row 2, column 1");
  EXPECT_EQ(report.keptBf16["conv"], "not finite at row 5, column 9");
  EXPECT_EQ(report.layers.size(), 5u);

  model = smallModel();
  model["blocks.0.fc1.bias"].data<uint16_t>()[3] = 0x7f80;
  save(model);
  EXPECT_ERROR(SlabBuilder(options("bias")).finish(), NonFinite, "the bias of layer \"blocks.0.fc1\", row 3");
}

TEST_F(SlabBuilderTest, CountsFlooredRows) {
  TensorMap model = smallModel();
  std::fill_n(model["conv.weight"].data<float>(), 2 * 144, 1e-9f);
  save(model);
  BuildReport report = SlabBuilder(options()).finish();
  EXPECT_EQ(report.flooredRows, 2);
  EXPECT_EQ(report.layers.back().error.flooredRows, 2);
}

// A builder that is dropped at any layer leaves what the next one goes on with.
TEST_F(SlabBuilderTest, GoesOnWhereItStopped) {
  SlabBuilder(options("whole")).finish();
  for (size_t stop = 0; stop <= 7; ++stop) {
    {
      SlabBuilder builder(options());
      EXPECT_EQ(builder.layersDone(), stop ? stop - 1 : 0); // that of the round before
      while (builder.layersDone() < stop && builder.step()) {
      }
    }
    EXPECT_FALSE(hasFinalFiles("slab"));
  }
  SlabBuilder builder(options());
  EXPECT_EQ(builder.layersDone(), 7u);
  EXPECT_EQ(builder.restartReason(), "");
  EXPECT_EQ(builder.finish().resumedLayers, 7u);
  EXPECT_EQ(filesOf("slab"), filesOf("whole"));
}

// kill -9 at random points of a build, again and again until one comes
// through: the same bytes as of a build that was left alone. No file has its
// final name before.
TEST_F(SlabBuilderTest, SurvivesKills) {
  TensorMap model;
  for (int i = 0; i < 24; ++i)
    model["layer." + std::to_string(i) + ".weight"] = gaussianTensor({256, 1024}, ElementType::f32, uint32_t(i));
  save(model);
  BuildOptions alone = options("whole");
  alone.threads = 1;
  double seconds = SlabBuilder(alone).finish().seconds;
  uint32_t seed = 20261121;
  RecordProperty("seed", int(seed));
  std::mt19937 random(seed);
  BuildOptions built = options();
  built.threads = 1; // as the time that the kills go by
  int kills = 0;
  for (int round = 0; round < 60; ++round) {
    pid_t child = ::fork();
    if (child == 0) {
      try {
        SlabBuilder(built).finish();
      } catch (const std::exception &error) {
        ::write(2, error.what(), std::strlen(error.what()));
        ::_exit(1);
      }
      ::_exit(0);
    }
    // Mostly within the first third, so that it takes many kills.
    double share = double(random()) / 4294967296.0;
    ::usleep(useconds_t(seconds * 1e6 * (round < 12 ? share / 3 : 4 + share)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      if (kills || seconds < 1e-3)
        break;
      // The build alone was held up by other work, and this one was done before it was to be killed.
      seconds /= 4;
      SlabPaths done(built.slab);
      for (const std::filesystem::path &path : {done.slab, done.manifest, done.report})
        std::filesystem::remove(path);
      continue;
    }
    ++kills;
    SlabPaths paths(built.slab);
    EXPECT_FALSE(std::filesystem::exists(paths.manifest) && !std::filesystem::exists(paths.slab));
  }
  EXPECT_GT(kills, 0);
  EXPECT_EQ(filesOf("slab"), filesOf("whole"));
}

// Killed between the renames: the slab has its name, the manifest not yet.
TEST_F(SlabBuilderTest, GoesOnBetweenTheRenames) {
  SlabBuilder(options("whole")).finish();
  {
    SlabBuilder builder(options());
    while (builder.step()) {
    }
  }
  std::filesystem::rename(folder_ / "slab.safetensors.partial", folder_ / "slab.safetensors");
  SlabBuilder builder(options());
  EXPECT_EQ(builder.layersDone(), 7u);
  builder.finish();
  EXPECT_EQ(filesOf("slab"), filesOf("whole"));
  EXPECT_EQ(folder_.fileCount(), 7u);
}

// The journal may be torn, tampered with, or of bytes that are not there.
TEST_F(SlabBuilderTest, TrustsOnlyBytesThatAreThere) {
  SlabBuilder(options("whole")).finish();
  std::filesystem::path partial = folder_ / "slab.safetensors.partial", journal = folder_ / "slab.safetensors.building";
  auto begin = [&] {
    SlabBuilder builder(options());
    while (builder.layersDone() < 5 && builder.step()) {
    }
  };
  auto expectGoesOnAt = [&](size_t layers) {
    {
      SlabBuilder builder(options());
      EXPECT_EQ(builder.layersDone(), layers);
    }
    SlabBuilder(options()).finish();
    EXPECT_EQ(filesOf("slab"), filesOf("whole"));
    SlabPaths paths(folder_ / "slab");
    for (const auto &path : {paths.slab, paths.manifest, paths.report})
      std::filesystem::remove(path);
  };
  begin(); // the last line torn
  std::filesystem::resize_file(journal, std::filesystem::file_size(journal) - 3);
  expectGoesOnAt(4);
  begin(); // a byte of the third layer lost, as by a power failure
  std::string bytes = readText(partial);
  std::string whole = readText(folder_ / "whole.safetensors");
  SafetensorsFile file = SafetensorsFile::open(folder_ / "whole.safetensors");
  bytes[file.find("blocks.0.out.qweight")->offset + 11] ^= 1;
  writeText(partial, bytes);
  expectGoesOnAt(2);
  begin(); // a line that says too little
  std::string lines = readText(journal);
  size_t second = lines.find('\n', lines.find('\n') + 1);
  writeText(journal, lines.substr(0, second + 1) + "{\"layer\": \"blocks.0.fc2\"}\n" + lines.substr(second + 1));
  expectGoesOnAt(1);
  begin(); // no partial file
  std::filesystem::remove(partial);
  expectGoesOnAt(0);
  begin(); // a journal of noise
  writeText(journal, std::string("\0\xff{}\n[", 6));
  expectGoesOnAt(0);
}

// Another source or other options are another build: begun anew, and said.
TEST_F(SlabBuilderTest, BeginsAnewForAnotherBuild) {
  auto begin = [&] {
    SlabBuilder builder(options());
    builder.step();
  };
  begin();
  BuildOptions other = options();
  other.config.padK = 16;
  {
    SlabBuilder builder(other);
    EXPECT_EQ(builder.layersDone(), 0u);
    EXPECT_EQ(builder.restartReason(), "the build that was begun had another pad_k");
  }
  begin();
  save(smallModel(5));
  SlabBuilder builder(options());
  EXPECT_EQ(builder.layersDone(), 0u);
  EXPECT_NE(builder.restartReason().find("another source_"), std::string::npos);
  builder.finish();
  SlabBuilder(options("whole")).finish();
  EXPECT_EQ(filesOf("slab"), filesOf("whole"));
}

// The old slab is whole until the new one takes its place.
TEST_F(SlabBuilderTest, ReplacesAnOldSlab) {
  SlabBuilder(options()).finish();
  std::vector<std::string> old = filesOf("slab");
  save(smallModel(7));
  SlabBuilder builder(options());
  EXPECT_ERROR(SlabBuilder(options()), IoFailed, "another process is writing it");
  while (builder.step()) {
  }
  EXPECT_EQ(filesOf("slab"), old);
  builder.finish();
  EXPECT_NE(filesOf("slab"), old);
  Slab slab(folder_ / "slab.safetensors");
  slab.open({}, SlabVerify::Full);
}

// A source that changes under the builder: no slab of two models.
TEST_F(SlabBuilderTest, NoticesASourceThatChanges) {
  SlabBuilder builder(options());
  builder.step();
  save(smallModel(9));
  EXPECT_ERROR(builder.step(), SourceChanged, "than when it was opened");
  EXPECT_FALSE(hasFinalFiles("slab"));
}

// A disk without room for the slab says so before any work, and leaves nothing;
// with room, the same command goes through.
TEST_F(SlabBuilderTest, MeetsAFullDiskBeforeTheWork) {
  pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{64 << 10, 64 << 10}; // stands in for the size of the disk
    ::setrlimit(RLIMIT_FSIZE, &limit);
    BuildOptions built = options();
    built.threads = 1;
    try {
      SlabBuilder builder(built);
      ::_exit(2);
    } catch (const Error &error) {
      bool isRight = error.code() == ErrorCode::IoFailed && std::strstr(error.what(), "slab.safetensors: cannot be");
      ::_exit(isRight ? 0 : 3);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(folder_.fileCount(), 1u); // the source
  SlabBuilder(options()).finish();
}

TEST_F(SlabBuilderTest, RefusesWhatIsNoSource) {
  BuildOptions built = options();
  built.source = folder_ / "none.safetensors";
  EXPECT_ERROR(SlabBuilder(built), IoFailed, "none.safetensors: cannot be opened");
  writeText(folder_ / "text.safetensors", "no tensors here");
  built.source = folder_ / "text.safetensors";
  EXPECT_ERROR(SlabBuilder(built), FileCorrupt, "text.safetensors");
  built = options("missing/slab");
  EXPECT_ERROR(SlabBuilder(built), IoFailed, "cannot be opened for writing: No such file or directory");
  EXPECT_EQ(folder_.fileCount(), 2u);
}
