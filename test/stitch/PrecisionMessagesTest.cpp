//===- PrecisionMessagesTest.cpp - what Selective Precision says ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Errors and warnings of a session with Selective Precision that no fault of
// the table causes: what it cannot do with these programs, slabs and calls.
//
//===----------------------------------------------------------------------===//

#include "PrecisionAnswers.h"
#include "segue/runtime/Device/Device.h"
#include <limits>

using namespace segue;
using namespace segue::test;

namespace {
class PrecisionMessagesTest : public testing::Test {
protected:
  DeviceRef device = Device::open(simDevice);
  LoraFolder folder;
  std::vector<std::string> warnings;

  Session make(const std::string &precision, const LoraOptions &lora = {}) {
    SessionOptions options;
    options.warn = [this](const std::string &text) { warnings.push_back(text); };
    return loraSession(device, precisionConfig(folder, precision), std::move(options), lora);
  }
  std::string reasonOf(const Session &session, const std::string &key) {
    const Json report = session.services()->precisionReport();
    return report["kept"].value(key, "nothing is said of it");
  }
};
} // namespace

TEST_F(PrecisionMessagesTest, CalibratingAtTheWrongTime) {
  Session session = make(dynamicPrecision(folder));
  expectPart(messageOf([&] { session.calibrate({}); }), "calibrate: no batch was given");
  session.forwardBackward(loraBatch(device, 0));
  TensorMap batch = loraBatch(device, 1);
  expectPart(messageOf([&] { session.calibrate(std::span(&batch, 1)); }),
             "calibrate: gradients wait for the optimizer");
}

// Errors that are not numbers count as infinite, also for the next run: no unit
// is lowered.
TEST_F(PrecisionMessagesTest, OutputsThatAreNotFinite) {
  auto lowered = [&](Session &session) {
    for (int64_t step = 0; step < 7; ++step)
      session.step(loraBatch(device, step), 1e-3);
    const Json record = session.services()->precisionRecord();
    EXPECT_EQ(record["step_id"], 6);
    EXPECT_GE(record["block_details"]["h.0"]["sensitivity"].get<double>(), 0.3) << "the whole of error_weight";
    return record["blocks_int8"].get<int64_t>();
  };
  TensorMap batch = loraBatch(device, 1);
  batch["x"].data<float>()[0] = std::numeric_limits<float>::infinity();
  Session session = make(dynamicPrecision(folder));
  session.calibrate(std::span(&batch, 1));
  ASSERT_EQ(warnings.size(), 6u);
  expectPart(warnings[0], "the outputs of \"h.0\" in int8 are not finite; its error counts as infinite");
  EXPECT_EQ(lowered(session), 0);
  Session next = make(dynamicPrecision(folder));
  EXPECT_EQ(next.calibrationSamples(), 0);
  EXPECT_EQ(lowered(next), 0);
}

// Training goes on with the errors that the slab's builder measured.
TEST_F(PrecisionMessagesTest, NoMemoryToCalibrate) {
  Session session = make(dynamicPrecision(folder));
  DeviceMemory &memory = device->memory();
  uint64_t budget = memory.budget(Space::DeviceDram);
  memory.setBudget(Space::DeviceDram, memory.liveBytes(Space::DeviceDram) + 8192);
  TensorMap batch = loraBatch(device, 1);
  session.calibrate(std::span(&batch, 1));
  memory.setBudget(Space::DeviceDram, budget);
  ASSERT_EQ(warnings.size(), 1u);
  expectPart(warnings[0], "units are not calibrated: there is no memory for it: DEVICE_OOM");
  EXPECT_FALSE(std::filesystem::exists(folder.path / "int8.calibration.json"));
  for (int64_t step = 0; step < 7; ++step)
    session.step(loraBatch(device, step), 1e-3);
  EXPECT_EQ(precisionOf(session, "h.0"), "int8");
}

// The lists of mode static are one decision: a record at the end of the first
// step, counted as in all that a run writes, and none after it.
TEST_F(PrecisionMessagesTest, ListsAreToldOnce) {
  Session session = make(R"({"enabled": true, "mode": "static", "force_int8_blocks": ["h.1", "h.3"]})");
  EXPECT_TRUE(session.services()->precisionRecord().is_null());
  session.step(loraBatch(device, 0), 1e-3);
  const Json record = session.services()->precisionRecord();
  EXPECT_EQ(record["step_id"], 1);
  EXPECT_EQ(record["blocks_int8"], 2);
  EXPECT_EQ(record["block_details"]["h.3"]["reason"], "forced");
  EXPECT_EQ(record["block_details"]["h.0"]["reason"], "keep");
  session.step(loraBatch(device, 1), 1e-3);
  EXPECT_EQ(session.services()->precisionRecord(), record);
}

// log_decisions: a line per step whose decision changes a form, with the reason.
TEST_F(PrecisionMessagesTest, DecisionsAreLogged) {
  std::vector<std::string> lines;
  auto train = [&](const char *more) {
    SessionOptions options;
    options.log = [&](const std::string &text) {
      if (text.starts_with("[PRECISION"))
        lines.push_back(text);
    };
    Json precision = Json::parse(dynamicPrecision(folder));
    precision.update(Json::parse(more));
    Session session = loraSession(device, precisionConfig(folder, precision.dump()), std::move(options));
    for (int64_t step = 0; step < 7; ++step)
      session.step(loraBatch(device, step), 1e-3);
    return session.services()->precisionRecord();
  };
  Json record = train("{}");
  ASSERT_GT(record["precision_changes"], 0);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("[PRECISION step=" + record["step_id"].dump() + "] h.")) << lines[0];
  expectPart(lines[0], " bf16 -> int8 (first, sensitivity 0.");
  EXPECT_EQ(size_t(std::ranges::count(lines[0], ';')) + 1, record["precision_changes"].get<size_t>());
  lines.clear();
  record = train(R"({"log_decisions": false})");
  EXPECT_EQ(lines, std::vector<std::string>{});
  EXPECT_EQ(record["block_details"], Json::object());
}

TEST_F(PrecisionMessagesTest, NothingToChoose) {
  LoraFolder one(1);
  SessionOptions options;
  options.warn = [this](const std::string &text) { warnings.push_back(text); };
  loraSession(device, precisionConfig(one, dynamicPrecision(one)), options, {.scales = {1}, .trainsLastBase = true});
  ASSERT_EQ(warnings.size(), 2u);
  expectPart(warnings[0], "int8.safetensors: the program does not want h.0.fc");
  expectPart(warnings[1], "no unit can change its form: \"h.0\": its base weights are trained");
}

TEST_F(PrecisionMessagesTest, ProgramsWithoutStatistics) {
  Session session = make(dynamicPrecision(folder), {.statistics = ""});
  ASSERT_EQ(warnings.size(), 1u);
  expectPart(warnings[0], "the backward programs return no statistics, so that nothing will be decided; compile them "
                          "with --gradient-statistics");
  for (int64_t step = 0; step < 7; ++step)
    session.step(loraBatch(device, step), 1e-3);
  EXPECT_EQ(precisionOf(session, "h.0"), "bf16");
}

// A slab of another model is refused; what a right one has of a weight decides
// whether its unit can change.
TEST_F(PrecisionMessagesTest, SlabsThatDoNotFit) {
  TensorMap tensors;
  for (size_t i = 0; i < 4; ++i)
    tensors["h." + std::to_string(i) + ".fc.weight"] =
        i == 0 ? randomTensor(device, {2 * loraWidth, loraWidth}, 1) : LoraFolder::baseWeight(device, i);
  saveSafetensors(folder.path / "other.safetensors", tensors);
  folder.build("int8", SlabScheme::PerRowSymmetric, "other.safetensors");
  std::string message = messageOf([&] { make(R"({"enabled": true, "mode": "static"})"); });
  expectPart(message, "SLAB_INVALID");
  expectPart(message, "\"h.0.fc.weight\" of shape [64,64], the slab holds [128,64]");
  expectPart(message, "\"h.4.fc.weight\", which the slab does not hold");
  folder.build("int8", SlabScheme::PerRowSymmetric, "base.safetensors", {"h.4.fc"});
  Session session = make(R"({"enabled": true, "mode": "static", "force_int8_blocks": ["h.1"]})");
  EXPECT_EQ(reasonOf(session, "lora.h.4.fc.weight"), "keep_bf16 \"h.4.fc\"");
  EXPECT_EQ(reasonOf(session, "lora.h.1.fc.weight"), "nothing is said of it");
  expectPart(messageOf([&] { make(R"({"enabled": true, "mode": "static", "force_int8_blocks": ["h.4"]})"); }),
             "\"h.4\" cannot be int8: no slab has a weight of it");
  folder.build("int8", SlabScheme::Int4Group);
  Session groups = make(R"({"enabled": true, "mode": "static"})");
  EXPECT_EQ(reasonOf(groups, "lora.h.1.fc.weight"), "its slab has it in a form that is not chosen");
}

// Forms change between steps, and of weights that are streamed.
TEST_F(PrecisionMessagesTest, FormsAtTheWrongTime) {
  Session session = make(R"({"enabled": true, "mode": "static"})");
  auto &weights = const_cast<WeightStreamer &>(*session.services()->weights());
  WeightStreamer::FormChoice choice{"h.1", "lora.h.9.fc.weight", nullptr};
  expectPart(messageOf([&] { weights.setForms(std::span(&choice, 1)); }),
             "unit \"h.1\": there is no weight \"lora.h.9.fc.weight\"");
  session.forwardBackward(loraBatch(device, 0));
  choice.weight = "lora.h.1.fc.weight";
  expectPart(messageOf([&] { weights.setForms(std::span(&choice, 1)); }), "forms of weights are chosen between steps");
}
