//===- StitchOptionsTest.cpp - the section memory.stitch ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Transfer/StitchOptions.h"
#include "segue/runtime/Config/Config.h"
#include "segue/runtime/Transfer/TransferCounters.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace segue;

static StitchOptions read(const std::string &object) {
  Config config = Config::parse(R"({"memory": {"stitch": )" + object + "}}", "test.json");
  ConfigReader reader = config.section("memory.stitch");
  return StitchOptions::read(reader);
}

TEST(StitchOptions, DefaultsAreThoseOfTheTable) {
  StitchOptions options = read("{}"), plain;
  for (const StitchOptions &each : {options, plain}) {
    EXPECT_EQ(each.lossyCasts, LossyCasts::Error);
    EXPECT_TRUE(each.derivedCache);
    EXPECT_EQ(each.derivedCacheMaxBytes, 1024u << 20);
    EXPECT_EQ(each.stagingChunkBytes, 4u << 20);
    EXPECT_EQ(each.stagingBuffers, 2u);
    EXPECT_EQ(each.l1Bounce, L1Bounce::Allow);
    EXPECT_FALSE(each.traceCopies);
    EXPECT_TRUE(each.telemetry.enabled);
    EXPECT_EQ(each.telemetry.file, "stitch_telemetry.jsonl");
  }
}

TEST(StitchOptions, EveryKeyIsRead) {
  StitchOptions options = read(R"({"lossy_casts": "warn", "derived_cache": false, "derived_cache_max_mb": 0,
    "staging_chunk_mb": 256, "staging_buffers": 16, "l1_bounce": "forbid", "trace_copies": true,
    "telemetry_enabled": false, "telemetry_file": "/no/such/folder/t.jsonl"})");
  EXPECT_EQ(options.lossyCasts, LossyCasts::Warn);
  EXPECT_FALSE(options.derivedCache);
  EXPECT_EQ(options.derivedCacheMaxBytes, 0u);
  EXPECT_EQ(options.stagingChunkBytes, 256u << 20);
  EXPECT_EQ(options.stagingBuffers, 16u);
  EXPECT_EQ(options.l1Bounce, L1Bounce::Forbid);
  EXPECT_TRUE(options.traceCopies);
  EXPECT_FALSE(options.telemetry.enabled);
}

// Each row of the config table: key path, what was found, what is allowed.
TEST(StitchOptions, WhatIsRefused) {
  struct Case {
    const char *object;
    std::vector<const char *> words;
  };
  for (const Case &each : std::initializer_list<Case>{
           {R"({"lossy_casts": "maybe"})", {"memory.stitch.lossy_casts", "maybe", "allow", "warn", "error"}},
           {R"({"derived_cache": 1})", {"memory.stitch.derived_cache"}},
           {R"({"derived_cache_max_mb": -1})", {"memory.stitch.derived_cache_max_mb", "-1"}},
           {R"({"staging_chunk_mb": 0})", {"memory.stitch.staging_chunk_mb", "from 1 to 256"}},
           {R"({"staging_chunk_mb": 257})", {"memory.stitch.staging_chunk_mb", "257"}},
           {R"({"staging_buffers": 1})", {"memory.stitch.staging_buffers", "from 2 to 16"}},
           {R"({"staging_buffers": 17})", {"memory.stitch.staging_buffers", "17"}},
           {R"({"l1_bounce": "never"})", {"memory.stitch.l1_bounce", "allow", "forbid"}},
           {R"({"trace_copies": "yes"})", {"memory.stitch.trace_copies"}},
           {R"({"telemetry_file": "/no/such/folder/t.jsonl"})", {"memory.stitch.telemetry_file", "/no/such/folder"}},
           {R"({"staging_chunks_mb": 4})", {"staging_chunks_mb", "staging_chunk_mb"}},
       })
    try {
      read(each.object);
      ADD_FAILURE() << each.object << " was taken";
    } catch (const ConfigError &error) {
      EXPECT_EQ(error.code(), ErrorCode::ConfigInvalid);
      for (const char *word : each.words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what() << " lacks " << word;
    }
}

// The keys of the record are an interface: tools read them by name.
TEST(StitchTelemetry, HasExactlyTheKeysOfTheSpec) {
  StitchTelemetry record;
  record.step = 7;
  record.inputs = 3;
  record.inputs_elided = 2;
  record.wait_ms = 0.5;
  EXPECT_EQ(record.json().dump(),
            R"({"step":7,"submits":0,"inputs":3,"inputs_elided":2,"inputs_converted":0,"cache_hits":0,"h2d_bytes":0,)"
            R"("d2h_bytes":0,"d2d_bytes":0,"host_bytes":0,"bounces":0,"donations_ignored":0,"lossy_casts":0,)"
            R"("wait_ms":0.5,"align_ms":0.0,"l1_compactions":0,"l1_fallbacks":0})");
}
