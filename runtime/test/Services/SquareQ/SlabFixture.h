//===- SlabFixture.h - a slab in a folder of its own ------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABFIXTURE_H
#define SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABFIXTURE_H

#include "Services/SquareQ/SlabModel.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Services/SquareQ/Slab.h"
#include "segue/runtime/Services/SquareQ/SlabBuilder.h"
#include "segue/runtime/Files/Safetensors.h"
#include <gtest/gtest.h>

/// Begins with a slab of the small model by the default config.
class SlabFixture : public testing::Test {
protected:
  void SetUp() override {
    model_ = smallModel();
    build({});
  }

  /// Saves the model and makes a slab of it in place of the one that was there.
  segue::BuildReport build(const segue::SquareQConfig &config, int threads = 0) const {
    saveSafetensors(folder_ / "model.safetensors", model_);
    segue::BuildOptions options{.source = folder_ / "model.safetensors", .slab = folder_ / "slab", .config = config};
    options.threads = threads;
    return segue::SlabBuilder(options).finish();
  }

  std::filesystem::path slabPath() const { return folder_ / "slab.safetensors"; }
  std::filesystem::path manifestPath() const { return folder_ / "slab.manifest.json"; }

  std::shared_ptr<const segue::Slab> open(segue::SlabVerify verify = segue::SlabVerify::Open) const {
    auto slab = std::make_shared<segue::Slab>(slabPath());
    slab->open({}, verify);
    return slab;
  }

  /// A weight by the dequant path.
  static std::vector<float> dequantized(const segue::Slab &slab, std::string_view name) {
    std::vector<float> values(slab.desc(name).elementCount());
    slab.copyDequantized(name, segue::ElementType::f32, std::as_writable_bytes(std::span(values)));
    return values;
  }

  TemporaryFolder folder_;
  segue::TensorMap model_;
};

#endif // SEGUE_RUNTIME_TEST_SERVICES_SQUAREQ_SLABFIXTURE_H
