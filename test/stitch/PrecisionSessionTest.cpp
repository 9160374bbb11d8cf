//===- PrecisionSessionTest.cpp - blocks that change their form -----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Selective Precision through a session: LoRA over a slab, forms that change
// while it trains, what the link then carries, checkpoints, calibration.
//
//===----------------------------------------------------------------------===//

#include "PrecisionAnswers.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Services/SquareQ/Slab.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include "segue/runtime/Transfer/TransferEngine.h"
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>

using namespace segue;
using namespace segue::test;

namespace {
class PrecisionSessionTest : public testing::TestWithParam<const char *> {
protected:
  DeviceRef device = Device::open(GetParam());
};
} // namespace
INSTANTIATE_TEST_SUITE_P(All, PrecisionSessionTest,
                         testing::Values("cpu:threads=2", "sim:dram=4MiB,pinned=8MiB,link=4GB/s,latency=2us",
                                         "sim:dram=4MiB,pinned=64KiB", "sim:dram=4MiB,adversarial=1",
                                         "sim:dram=4MiB,pinned=8MiB,adversarial=2",
                                         "sim:streams,dram=4MiB,pinned=8MiB,link=4GB/s,latency=2us",
                                         "sim:streams,dram=4MiB,pinned=8MiB,adversarial=2"));

//===----------------------------------------------------------------------===//
// Forms
//===----------------------------------------------------------------------===//

// A block that is served in int8 reads exactly the dequantised values of the
// slab, in forward and in backward: losses, gradients and parameters are those
// of a session that has these values for its weights.
TEST_P(PrecisionSessionTest, ALowBlockHasTheValuesOfTheSlab) {
  LoraFolder folder;
  Slab slab(folder.path / "int8.safetensors");
  slab.open();
  Session plain = loraSession(device);
  for (size_t i : {1, 4}) {
    Tensor value = Tensor::onHost(device, {loraWidth, loraWidth}, ElementType::f32);
    std::string name = "h." + std::to_string(i) + ".fc.weight";
    slab.copyDequantized(name, ElementType::f32, {value.bytes(), value.desc().spanBytes()});
    plain.setParameter(name, value);
  }
  for (const char *conductor : {"", R"(, "conductor_config": {"enabled": true, "telemetry_enabled": false})"}) {
    Session low = loraSession(
        device, precisionConfig(folder, R"({"enabled": true, "mode": "static", "force_int8_blocks": ["h.1", "h.4"]})",
                                conductor));
    Session same = loraSession(device);
    same.restore(plain.checkpoint());
    for (int64_t step = 0; step < 4; ++step) {
      double loss = low.forwardBackward(loraBatch(device, step)),
             expected = same.forwardBackward(loraBatch(device, step));
      ASSERT_EQ(loss, expected) << step;
      for (const ParameterInfo &info : low.parameters())
        if (info.trained) {
          ASSERT_EQ(values(low.gradient(info.key)), values(same.gradient(info.key))) << info.key;
        }
      low.optimize(1e-2);
      same.optimize(1e-2);
      EXPECT_EQ(low.evaluate(loraBatch(device, 99)).at("loss").item(),
                same.evaluate(loraBatch(device, 99)).at("loss").item());
    }
    EXPECT_EQ(precisionOf(low, "h.1"), "int8");
    EXPECT_EQ(precisionOf(low, "h.2"), "bf16");
  }
}

// The test of the whole: blocks switch while it trains, losses stay finite, and
// the link carries what the telemetry says.
TEST_P(PrecisionSessionTest, BlocksSwitchAndTheLinkCarriesLess) {
  LoraFolder folder;
  Session session = loraSession(device, precisionConfig(folder, dynamicPrecision(folder), "", 0.3));
  std::vector<int64_t> bytes;
  for (int64_t step = 0; step < 60; ++step) {
    ASSERT_TRUE(std::isfinite(session.step(loraBatch(device, step), 1e-3).loss));
    bytes.push_back(session.services()->weightRecord()["h2d_bytes"].get<int64_t>());
  }
  std::vector<Json> lines = linesOf(folder.path / "precision.jsonl");
  ASSERT_EQ(lines.size(), 11u); // steps 5, 10, ... 55
  const Json &last = lines.back();
  int64_t low = last["blocks_int8"].get<int64_t>();
  EXPECT_GE(low, 3);
  EXPECT_LT(low, 6);
  EXPECT_EQ(last["blocks_bf16"].get<int64_t>() + low, 6);
  EXPECT_EQ(last["estimated_bandwidth_saving_pct"].get<double>(), 50.0 * double(low) / 6);
  EXPECT_EQ(last["calibrated_units"], 6);
  std::vector<std::string> keys;
  for (const auto &[key, value] : last.items())
    keys.push_back(key);
  EXPECT_EQ(keys,
            (std::vector<std::string>{"step_id", "blocks_bf16", "blocks_int8", "mean_sensitivity", "max_sensitivity",
                                      "min_sensitivity", "precision_changes", "estimated_bandwidth_saving_pct",
                                      "block_details", "actual_bandwidth_saving_pct", "rollbacks", "quarantined",
                                      "stats_skipped", "silent_units", "calibrated_units", "blocks_fp8"}));
  // What the forms of the units take.
  const Json report = session.services()->precisionReport();
  int64_t bf16 = 0, stored = 0;
  for (const Json &unit : report["units"]) {
    bf16 += unit["bf16_bytes"].get<int64_t>();
    stored += unit[unit["precision"] == "int8" ? "int8_bytes" : "bf16_bytes"].get<int64_t>();
  }
  EXPECT_NEAR(last["actual_bandwidth_saving_pct"].get<double>(), 100.0 * double(bf16 - stored) / double(bf16), 1e-9);
  auto sumOf = [&](size_t from) { return std::accumulate(bytes.begin() + from, bytes.begin() + from + 5, int64_t(0)); };
  if (device->hasUnifiedMemory() || sumOf(1) == 0)
    EXPECT_LE(sumOf(55), sumOf(0));
  else
    EXPECT_LT(sumOf(55), sumOf(1));
}

// The record's bytes are those of the link, whatever the forms: what else crosses
// it, the batch, is the same in all runs. A dynamic run ends with fewer than one
// that keeps all units in bf16, and so does each unit alone.
TEST(PrecisionSessionLinkTest, TheLinkCarriesTheStoredBytes) {
  LoraFolder folder;
  struct Bytes {
    int64_t link = 0, record = 0;
  };
  // On a device of its own with few slots, and nothing loaded ahead. The codes of a
  // load take memory beside its slot: nearer to the watermark they cost slots, and
  // so loads.
  auto train = [&](const std::string &precision) {
    DeviceRef device = Device::open(simDevice);
    Session session = loraSession(device, precisionConfig(folder, precision, "", 0.12, /*window=*/0));
    Bytes bytes;
    for (int64_t step = 0; step < 16; ++step) {
      device->drain();
      uint64_t before = device->transfer().counters().h2dBytes;
      session.step(loraBatch(device, step), 1e-3);
      device->drain();
      bytes.link += int64_t(device->transfer().counters().h2dBytes - before);
      bytes.record += session.services()->weightRecord()["h2d_bytes"].get<int64_t>();
    }
    EXPECT_LT(session.services()->weights()->slots(), 6);
    return bytes;
  };
  auto forced = [&](const std::string &units) {
    return train(R"({"enabled": true, "mode": "static", "force_int8_blocks": [)" + units + "]}");
  };
  Bytes all = forced("");
  for (int unit = 0; unit < 6; ++unit) {
    Bytes one = forced("\"h." + std::to_string(unit) + "\"");
    EXPECT_LT(one.record, all.record) << unit;
    EXPECT_EQ(all.link - one.link, all.record - one.record) << unit;
  }
  Bytes dynamic = train(dynamicPrecision(folder, R"(, "run_calibration": false)"));
  EXPECT_LT(dynamic.record, all.record);
  EXPECT_EQ(all.link - dynamic.link, all.record - dynamic.record) << "statistics go the other way";
}

// Twice the same, and a run that is resumed at any point goes on as the one that
// was not: losses to the bit, and the same decisions.
TEST_P(PrecisionSessionTest, RunsAreDeterministicAndResumeExactly) {
  auto run = [&](const LoraFolder &folder, int64_t stop) {
    std::vector<double> losses;
    auto session = std::make_unique<Session>(loraSession(device, precisionConfig(folder, dynamicPrecision(folder))));
    for (int64_t step = 0; step < 40; ++step) {
      if (step == stop) {
        session->save(folder.path / "checkpoint.safetensors");
        session.reset();
        session = std::make_unique<Session>(loraSession(device, precisionConfig(folder, dynamicPrecision(folder))));
        session->load(folder.path / "checkpoint.safetensors");
      }
      losses.push_back(session->step(loraBatch(device, step), 1e-3).loss);
    }
    return std::pair(losses, linesOf(folder.path / "precision.jsonl"));
  };
  LoraFolder whole;
  auto [losses, lines] = run(whole, -1);
  EXPECT_GT(lines.back()["blocks_int8"], 0);
  for (int64_t stop : {-1, 3, 6, 17}) {
    LoraFolder folder;
    auto [others, otherLines] = run(folder, stop);
    EXPECT_EQ(others, losses) << "stopped at " << stop;
    EXPECT_EQ(otherLines, lines) << "stopped at " << stop;
  }
}

// The services' cap and spilled activations beside it change no bit.
TEST(PrecisionSessionServicesTest, OtherServicesChangeNothing) {
  DeviceRef device = Device::open(simDevice);
  auto run = [&](const std::string &more) {
    LoraFolder folder;
    Session session = loraSession(device, precisionConfig(folder, dynamicPrecision(folder), more));
    std::vector<double> losses;
    for (int64_t step = 0; step < 20; ++step)
      losses.push_back(session.step(loraBatch(device, step), 1e-3).loss);
    return std::pair(losses, linesOf(folder.path / "precision.jsonl"));
  };
  auto alone = run("");
  EXPECT_EQ(run(R"(, "conductor_config": {"enabled": true, "telemetry_enabled": false})"), alone);
  EXPECT_EQ(run(R"(, "activation_stagehand": {"enabled": true, "telemetry_enabled": false, "min_spill_bytes": 1,
    "vram_high_watermark_mb": 0.01, "vram_low_watermark_mb": 0.005, "pinned_pool_classes_mb": [1], "slabs_per_class": [2]})"),
            alone);
}

// A device with little more than a run takes: nobody asks a twin, which has no values
// to choose by, whether that is enough.
TEST(PrecisionSessionServicesTest, LittleMemoryIsNoErrorOfTheConfig) {
  auto run = [&](uint64_t bytes) {
    DeviceRef device = Device::open("sim:pinned=8MiB,dram=" + std::to_string(bytes));
    LoraFolder folder;
    Session session = loraSession(device, precisionConfig(folder, dynamicPrecision(folder)));
    std::vector<double> losses;
    for (int64_t step = 0; step < 12; ++step)
      losses.push_back(session.step(loraBatch(device, step), 1e-3).loss);
    return std::pair(losses, device->memory().peakBytes(Space::DeviceDram));
  };
  auto [losses, peak] = run(4 << 20);
  EXPECT_EQ(run(peak + peak / 12).first, losses);
}

// Two micro-batches are two collections, each of which the history keeps.
TEST_P(PrecisionSessionTest, EachMicroBatchIsACollection) {
  LoraFolder folder;
  Session session = loraSession(device, precisionConfig(folder, dynamicPrecision(folder, R"(, "warmup_steps": 0,
    "update_interval_steps": 1, "history_window": 2, "run_calibration": false)")));
  Session plain = loraSession(device);
  TensorMap batches[] = {loraBatch(device, 1), loraBatch(device, 2)};
  session.step(batches, 1e-3);
  Json record = session.services()->precisionRecord();
  // By hand, from the gradients of each batch.
  std::vector<double> sums(6);
  for (const TensorMap &batch : batches) {
    plain.forwardBackward(batch);
    std::vector<double> norms;
    for (size_t i = 0; i < 6; ++i) {
      double squares = 0;
      for (const char *name : {"a", "b"})
        for (float g : values(plain.gradient("h." + std::to_string(i) + ".fc." + name)))
          squares += double(g) * double(g);
      norms.push_back(std::sqrt(squares));
    }
    plain.clearGradients();
    double mean = 0;
    for (double norm : norms)
      mean += norm / 6;
    for (size_t i = 0; i < 6; ++i)
      sums[i] += norms[i] / mean / 2;
  }
  for (size_t i = 0; i < 6; ++i)
    EXPECT_NEAR(record["block_details"]["h." + std::to_string(i)]["rel"].get<double>(), sums[i], 1e-5) << i;
}

//===----------------------------------------------------------------------===//
// Units
//===----------------------------------------------------------------------===//

TEST(PrecisionSessionUnitsTest, TrainedBlocksAreRefused) {
  LoraFolder folder;
  DeviceRef device = Device::open("cpu:threads=2");
  LoraOptions trained{.trainsLastBase = true};
  auto forced = [&](const char *precision) {
    return messageOf([&] { loraSession(device, precisionConfig(folder, precision), {}, trained); });
  };
  expectPart(forced(R"({"enabled": true, "mode": "static", "force_int8_blocks": ["h.5"]})"),
             "\"h.5\" cannot be int8: its base weights are trained");
  expectPart(forced(R"({"enabled": true, "force_int8_blocks": ["h.05"]})"), "there is no unit \"h.05\"");
  expectPart(forced(R"({"enabled": true, "force_bf16_blocks": ["h.6"]})"),
             "there is no unit \"h.6\"; the nearest is \"h.");
  Session session = loraSession(device, precisionConfig(folder, dynamicPrecision(folder)), {}, trained);
  for (int64_t step = 0; step < 12; ++step)
    session.step(loraBatch(device, step), 1e-3);
  Json record = session.services()->precisionRecord();
  EXPECT_EQ(record["block_details"]["h.5"]["reason"], "ineligible");
  EXPECT_EQ(precisionOf(session, "h.5"), "bf16");
}

// The forced block is int8 from the first decision on; the other never.
TEST(PrecisionSessionUnitsTest, ForcedUnitsObey) {
  LoraFolder folder;
  DeviceRef device = Device::open(simDevice);
  Session session = loraSession(device, precisionConfig(folder, dynamicPrecision(folder, R"(,
    "force_int8_blocks": ["h.4"], "force_bf16_blocks": ["h.0"])")));
  for (int64_t step = 0; step < 8; ++step) {
    session.step(loraBatch(device, step), 1e-3);
    EXPECT_EQ(precisionOf(session, "h.4"), step < 6 ? "bf16" : "int8") << step;
    EXPECT_EQ(precisionOf(session, "h.0"), "bf16");
  }
}

TEST(PrecisionSessionUnitsTest, LayersAreUnits) {
  LoraFolder folder;
  DeviceRef device = Device::open(simDevice);
  LoraOptions layers{.statistics = "layer"};
  std::string config = precisionConfig(folder, dynamicPrecision(folder, R"(, "granularity": "layer")"));
  Session session = loraSession(device, config, {}, layers);
  for (int64_t step = 0; step < 8; ++step)
    session.step(loraBatch(device, step), 1e-3);
  EXPECT_EQ(precisionOf(session, "h.0.fc"), "int8");
  EXPECT_EQ(precisionOf(session, "h.4.fc"), "bf16");
  Json record = session.services()->precisionRecord();
  EXPECT_GT(record["block_details"]["h.0.fc"]["error"].get<double>(), 0);
  // Statistics of blocks do not say anything of layers; those of layers do of blocks.
  expectPart(messageOf([&] { loraSession(device, config); }), "--gradient-statistics=layer");
  Session blocks = loraSession(device, precisionConfig(folder, dynamicPrecision(folder)), {}, layers);
  for (int64_t step = 0; step < 8; ++step)
    blocks.step(loraBatch(device, step), 1e-3);
  EXPECT_EQ(precisionOf(blocks, "h.0"), "int8");
}

// Of two forms a unit takes the one with the smaller error.
TEST(PrecisionSessionUnitsTest, Fp8AndInt8) {
  LoraFolder folder(6, /*fp8=*/true);
  DeviceRef device = Device::open(simDevice);
  std::string fp8 = R"(, "low_precisions": ["int8", "fp8_e4m3"], "fp8_slab_path": ")" +
                    (folder.path / "fp8.safetensors").string() + '"';
  Session session = loraSession(device, precisionConfig(folder, dynamicPrecision(folder, fp8)));
  for (int64_t step = 0; step < 8; ++step)
    session.step(loraBatch(device, step), 1e-3);
  EXPECT_EQ(precisionOf(session, "h.0"), "int8") << "uniform weights suit int8";
  Session onlyFp8 = loraSession(
      device,
      precisionConfig(folder, dynamicPrecision(folder, R"(, "low_precisions": ["fp8_e4m3"], "fp8_slab_path": ")" +
                                                           (folder.path / "fp8.safetensors").string() + '"')));
  for (int64_t step = 0; step < 8; ++step)
    onlyFp8.step(loraBatch(device, step), 1e-3);
  EXPECT_EQ(precisionOf(onlyFp8, "h.0"), "fp8_e4m3");
  EXPECT_GT(onlyFp8.services()->precisionRecord()["blocks_fp8"], 0);
  EXPECT_EQ(onlyFp8.services()->precisionRecord()["blocks_int8"], 0);
}

//===----------------------------------------------------------------------===//
// Calibration
//===----------------------------------------------------------------------===//

// The error of a unit is that of its output on the input that it has in a
// normal forward; kept on disk for the next run.
TEST_P(PrecisionSessionTest, CalibrationMeasuresOutputs) {
  LoraFolder folder;
  Session session =
      loraSession(device, precisionConfig(folder, dynamicPrecision(folder, R"(, "calibration_samples": 2)")));
  EXPECT_EQ(session.calibrationSamples(), 2);
  TensorMap batches[] = {loraBatch(device, 1), loraBatch(device, 2)};
  session.calibrate(batches);
  EXPECT_EQ(session.calibrationSamples(), 0);
  Json cache = Json::parse(std::ifstream(folder.path / "int8.calibration.json"));
  // The slow way: the model cut behind block i, once with the slab's weight.
  Slab slab(folder.path / "int8.safetensors");
  slab.open();
  for (size_t i = 0; i < 6; ++i) {
    double expected = 0;
    for (const TensorMap &batch : batches) {
      std::vector<double> h;
      for (float v : values(batch.at("x")))
        h.push_back(v);
      std::vector<double> high, low;
      for (size_t k = 0; k <= i; ++k) {
        std::string name = "h." + std::to_string(k) + ".fc.";
        auto parameter = [&](const char *leaf, Shape shape) {
          return values(loraValue(device, name + leaf, TensorDesc(std::move(shape), ElementType::f32)));
        };
        std::vector<float> w = parameter("weight", {64, 64}), a = parameter("a", {4, 64}), b = parameter("b", {64, 4}),
                           q(w);
        slab.copyDequantized(name + "weight", ElementType::f32, std::as_writable_bytes(std::span(q)));
        auto block = [&](const std::vector<float> &weight) {
          std::vector<double> out(h);
          for (size_t r = 0; r < 4; ++r)
            for (size_t o = 0; o < 64; ++o) {
              double sum = 0;
              for (size_t n = 0; n < 64; ++n)
                sum += h[r * 64 + n] * double(weight[o * 64 + n]);
              for (size_t m = 0; m < 4; ++m) {
                double inner = 0;
                for (size_t n = 0; n < 64; ++n)
                  inner += h[r * 64 + n] * double(a[m * 64 + n]);
                sum += LoraOptions().scales[k] * inner * double(b[o * 4 + m]);
              }
              out[r * 64 + o] += 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
            }
          return out;
        };
        high = block(w);
        low = block(q);
        h = high;
      }
      double difference = 0, norm = 0;
      for (size_t j = 0; j < high.size(); ++j) {
        difference += (high[j] - low[j]) * (high[j] - low[j]);
        norm += high[j] * high[j];
      }
      expected += std::sqrt(difference / norm) / 2;
    }
    double found = cache["errors"]["h." + std::to_string(i)].get<double>();
    EXPECT_GT(expected, 1e-4);
    EXPECT_NEAR(found, expected, expected * 1e-3) << i;
  }
  // The next run takes it from there, and does not need programs of blocks.
  Session next = loraSession(device, precisionConfig(folder, dynamicPrecision(folder, R"(, "calibration_samples": 2)")),
                             {}, {.blockPrograms = false});
  EXPECT_EQ(next.calibrationSamples(), 0);
}

// Measured while training: what quantising a unit does is asked again at every
// decision, with the adapters as they are then.
TEST(PrecisionSessionCalibrationTest, ErrorsAreMeasuredAgainOnline) {
  LoraFolder folder;
  DeviceRef device = Device::open(simDevice);
  Session session = loraSession(device, precisionConfig(folder, dynamicPrecision(folder)));
  std::vector<double> errors;
  for (int64_t step = 0; step < 16; ++step) {
    session.step(loraBatch(device, step), 1e-3);
    if (step % 5 == 0 && step)
      errors.push_back(session.services()->precisionRecord()["block_details"]["h.0"]["error"].get<double>());
  }
  EXPECT_NE(errors[0], errors[1]);
  EXPECT_NE(errors[1], errors[2]);
  EXPECT_NEAR(errors[0], errors[2], errors[0] * 0.5);
}

TEST(PrecisionSessionCalibrationTest, WithoutProgramsOfBlocksTheBuildersReportIsUsed) {
  LoraFolder folder;
  DeviceRef device = Device::open(simDevice);
  std::vector<std::string> warnings;
  SessionOptions options;
  options.warn = [&](const std::string &text) { warnings.push_back(text); };
  Session session =
      loraSession(device, precisionConfig(folder, dynamicPrecision(folder)), options, {.blockPrograms = false});
  for (int64_t step = 0; step < 6; ++step)
    session.step(loraBatch(device, step), 1e-3);
  ASSERT_EQ(warnings.size(), 1u);
  expectPart(warnings[0], "--block-programs");
  Json report = Json::parse(std::ifstream(folder.path / "int8.report.json"));
  EXPECT_EQ(session.services()->precisionRecord()["block_details"]["h.0"]["error"], report["per_layer"][0]["rel_rmse"]);
  EXPECT_FALSE(std::filesystem::exists(folder.path / "int8.calibration.json"));
}
