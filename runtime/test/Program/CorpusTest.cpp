//===- CorpusTest.cpp - files of every released version, run for ever -----===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// test/corpus/<version>/<model>.segue are as the tools of that version wrote
// them. Each must load, and each of its programs must give what it gave then:
// <model>.inputs.safetensors holds the values by name, and
// <model>.outputs.safetensors the results as "<program>/<output>".
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

using namespace segue;

static std::vector<std::filesystem::path> corpusFiles() {
  std::vector<std::filesystem::path> files;
  for (const auto &entry : std::filesystem::recursive_directory_iterator(SEGUE_TEST_CORPUS))
    if (entry.path().extension() == ".segue")
      files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

/// Greatest |x - y| / (1 + |y|) of two f32 tensors.
static double distance(const Tensor &given, const Tensor &expected) {
  Tensor a = toHost(given), b = toHost(expected);
  auto *x = reinterpret_cast<const float *>(a.bytes()), *y = reinterpret_cast<const float *>(b.bytes());
  double worst = 0;
  for (uint64_t i = 0; i < a.elementCount(); ++i) {
    double error = std::fabs(x[i] - y[i]) / (1 + std::fabs(y[i]));
    worst = error <= worst ? worst : error; // NaN is worst
  }
  return worst;
}

TEST(Corpus, EveryReleasedFileRuns) {
  std::vector<std::filesystem::path> files = corpusFiles();
  ASSERT_GE(files.size(), 7u);
  DeviceRef device = Device::open("cpu:threads=1");
  for (const std::filesystem::path &path : files) {
    SCOPED_TRACE(path.string());
    Binary binary = Binary::load(path, {.nativeCode = NativeCode::Allow});
    auto sibling = [&](const char *extension) { return std::filesystem::path(path).replace_extension(extension); };
    SafetensorsFile given = SafetensorsFile::open(sibling("inputs.safetensors"));
    SafetensorsFile expected = SafetensorsFile::open(sibling("outputs.safetensors"));
    size_t compared = 0;
    for (const Program &program : binary.programs()) {
      SCOPED_TRACE(program.name());
      std::vector<Tensor> inputs;
      for (const Value &value : program.inputs())
        // Read-only in the file, and some are written in place.
        inputs.push_back(copyTo(device, given.tensor(device, value.name), value.desc()));
      std::vector<Tensor> outputs = submit(device, program, std::move(inputs));
      for (size_t i = 0; i < outputs.size(); ++i) {
        Tensor wanted = expected.tensor(device, program.name() + "/" + program.output(i).name);
        ASSERT_EQ(outputs[i].shape(), wanted.shape());
        ASSERT_EQ(outputs[i].element(), ElementType::f32);
        // Instruction sets sum in different orders, and so do oneDNN's kernels for different processors.
        EXPECT_LE(distance(outputs[i], wanted), 2e-5) << program.output(i).name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, expected.entries().size());
  }
}
