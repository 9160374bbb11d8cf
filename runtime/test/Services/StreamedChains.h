//===- StreamedChains.h - stitched chains of layers to stream ---*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// A model of two chains whose weights a WeightStreamer brings, and the step that
// trains it, with or without one.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_SERVICES_STREAMEDCHAINS_H
#define SEGUE_TEST_SERVICES_STREAMEDCHAINS_H

#include "LayerChain.h"
#include "WeightRig.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Services/WeightStreamer.h"
#include "segue/runtime/Files/Safetensors.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <cstring>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

namespace segue::test {

inline WeightStagehandConfig quiet(const std::string &rest = "") {
  return parse(R"({"telemetry_enabled": false)" + rest + "}");
}

inline Tensor random(const DeviceRef &device, Shape shape, uint64_t seed, float scale) {
  Tensor tensor = Tensor::onHost(device, std::move(shape), ElementType::f32);
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> draw(-scale, scale);
  auto *data = tensor.data<float>();
  for (uint64_t i = 0, count = tensor.elementCount(); i < count; ++i)
    data[i] = draw(engine);
  return tensor;
}

inline std::shared_ptr<const SafetensorsFile> openedFile(const std::filesystem::path &path) {
  return std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
}

inline std::vector<float> valuesOf(const Tensor &tensor) {
  Tensor host = toHost(tensor);
  return {host.data<float>(), host.data<float>() + host.elementCount()};
}

/// Two stitched chains: one of frozen layers, one that is trained after it.
class Model {
public:
  Model(DeviceRef device, ChainSize first, ChainSize second) : device_(std::move(device)) {
    chains_.push_back(makeChain(first, 100));
    chains_.push_back(makeChain(second, 200));
    rate_ = Tensor::onHost(device_, {second.width, second.width}, ElementType::f32);
    std::memset(rate_.bytes(), 0, rate_.desc().spanBytes());
    for (int64_t i = 0; i < second.width; ++i)
      rate_.data<float>()[i * second.width + i] = -0.01f;
    hostRate_ = rate_;
    rate_ = copyTo(device_, rate_, TensorDesc(rate_.shape(), ElementType::f32));
    x_ = random(device_, {first.rows, first.width}, 7, 1);
  }

  /// Brings all weights to the device: what a run without streaming has.
  void placeAll() {
    for (Chain &chain : chains_)
      for (Tensor &weight : chain.weights)
        weight = copyTo(device_, weight, TensorDesc(weight.shape(), ElementType::f32));
  }

  void stream(WeightStreamer &streamer, const std::function<WeightSource(size_t, size_t)> &sourceOf = {}) {
    auto add = [&](StepPhase phase, size_t c, const char *program) {
      streamer.add(phase, std::string(1, char('a' + c)), chains_[c].binary.program(program),
                   [this, c, sourceOf](const Value &value) {
                     size_t index = size_t(std::stoi(value.name.substr(1)));
                     WeightSource source;
                     source.host = chains_[c].weights[index];
                     return std::optional(sourceOf ? sourceOf(c, index) : source);
                   });
    };
    add(StepPhase::Forward, 0, "forward");
    add(StepPhase::Forward, 1, "forward");
    add(StepPhase::Backward, 1, "backward");
    add(StepPhase::Backward, 0, "backward");
    add(StepPhase::Optimizer, 1, "optimizer");
    streamer.start();
  }

  /// Returns y and the gradient of x.
  std::pair<std::vector<float>, std::vector<float>> step(EventSink *events) {
    auto enter = [&](Phase phase) {
      if (events)
        events->enter(phase);
    };
    enter(Phase::StepBegin);
    std::vector<Tensor> a = forward(0, x_, events), b = forward(1, a.back(), events);
    Tensor y = b.back();
    std::vector<Tensor> gradB = backward(1, a.back(), b, y, events);
    std::vector<Tensor> gradA = backward(0, x_, a, inputGradient(1, gradB), events);
    update(gradB, events);
    auto result = std::pair(valuesOf(y), valuesOf(inputGradient(0, gradA)));
    enter(Phase::StepEnd);
    return result;
  }

  /// Queues a copy of the rate, which the optimizer reads, over the one that is
  /// there.
  void placeRateAnew() { copyInto(hostRate_, rate_); }

  std::vector<float> weight(size_t chain, size_t layer) const { return valuesOf(chains_[chain].weights[layer]); }
  Tensor &weightTensor(size_t chain, size_t layer) { return chains_[chain].weights[layer]; }
  size_t layers(size_t chain) const { return chains_[chain].weights.size(); }

private:
  struct Chain {
    Binary binary;
    std::vector<Tensor> weights;
    bool isTrained;
  };

  Chain makeChain(const ChainSize &size, uint64_t seed) {
    Chain chain{ChainWriter(size).binary(), {}, size.isTrained};
    for (int64_t i = 0; i < size.layers; ++i)
      chain.weights.push_back(random(device_, {size.width, size.width}, seed + uint64_t(i), 0.2f));
    return chain;
  }

  std::vector<Tensor> forward(size_t c, const Tensor &x, EventSink *events) {
    std::vector<Tensor> inputs{x};
    inputs.insert(inputs.end(), chains_[c].weights.begin(), chains_[c].weights.end());
    return submit(device_, chains_[c].binary.program("forward"), inputs, events);
  }

  /// `results`: what forward gave, the saved values and y.
  std::vector<Tensor> backward(size_t c, const Tensor &x, const std::vector<Tensor> &results, const Tensor &gradient,
                               EventSink *events) {
    std::vector<Tensor> inputs{gradient, x};
    inputs.insert(inputs.end(), results.begin(), results.end() - 1);
    inputs.insert(inputs.end(), chains_[c].weights.begin(), chains_[c].weights.end());
    std::vector<Tensor> outputs = submit(device_, chains_[c].binary.program("backward"), inputs, events);
    return outputs;
  }

  const Tensor &inputGradient(size_t c, const std::vector<Tensor> &gradients) const {
    return gradients[size_t(chains_[c].binary.program("backward").findOutput("gx"))];
  }

  void update(const std::vector<Tensor> &gradients, EventSink *events) {
    Chain &chain = chains_[1];
    const Program &backward = chain.binary.program("backward"), &optimizer = chain.binary.program("optimizer");
    std::vector<Tensor> inputs{rate_};
    for (size_t i = 0; i < chain.weights.size(); ++i)
      inputs.push_back(gradients[size_t(backward.findOutput("dw" + std::to_string(i)))]);
    inputs.insert(inputs.end(), chain.weights.begin(), chain.weights.end());
    chain.weights = submit(device_, optimizer, inputs, events);
  }

  DeviceRef device_;
  std::vector<Chain> chains_;
  Tensor hostRate_, rate_, x_;
};

inline constexpr ChainSize frozen{.layers = 6, .isTrained = false}, trained{.layers = 2, .isTrained = true};
inline constexpr uint64_t weightBytes = 64 * 64 * 4;

/// The results of some steps where all weights are on the device.
struct Course {
  /// y and the gradient of x, of each step.
  std::vector<std::pair<std::vector<float>, std::vector<float>>> steps;
  /// Weights of the second chain, after the last step.
  std::vector<std::vector<float>> weights;
};

inline Course courseWithout(const char *spec, ChainSize first, ChainSize second, int steps) {
  Model model(Device::open(spec), first, second);
  model.placeAll();
  Course course;
  for (int i = 0; i < steps; ++i)
    course.steps.push_back(model.step(nullptr));
  for (size_t i = 0; i < model.layers(1); ++i)
    course.weights.push_back(model.weight(1, i));
  return course;
}

/// Tests that hold on every kind of device.
class OnDevices : public testing::TestWithParam<const char *> {
public:
  static auto all() {
    return testing::Values("cpu", "sim:dram=4MiB,link=1GB/s", "sim:dram=4MiB,adversarial=1",
                           "sim:dram=4MiB,adversarial=2",
                                         "sim:streams,dram=4MiB,link=1GB/s",
                                         "sim:streams,dram=4MiB,adversarial=2");
  }
};

} // namespace segue::test

#endif // SEGUE_TEST_SERVICES_STREAMEDCHAINS_H
