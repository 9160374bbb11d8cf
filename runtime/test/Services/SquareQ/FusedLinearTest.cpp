//===- FusedLinearTest.cpp - products that read a slab's weights ----------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Services/SquareQ/FusedLinear.h"
#include "Services/SquareQ/SlabDevices.h"
#include "Services/SquareQ/SlabFixture.h"
#include "Session/ExpectError.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "segue/runtime/Transfer/ToLayout.h"
#include <gtest/gtest.h>

using namespace segue;

namespace {

class FusedLinearTest : public SlabFixture {
protected:
  Tensor stored(const DeviceRef &device, SlabServer &server, const std::string &name) const {
    return server.serve(name, std::make_shared<const TensorDesc>(server.storedDesc(name)));
  }
};

} // namespace

static Tensor onDevice(const DeviceRef &device, Shape shape, ElementType element, const std::vector<float> &values) {
  Tensor host = tensorOf(shape, element, values);
  return toLayout(device, host, TensorDesc(shape, element));
}

static std::vector<float> hostValues(const Tensor &tensor) { return valuesOf(toHost(tensor)); }

/// rows x depth times b(l, j), in double.
template <typename B>
static std::vector<double> multiply(const std::vector<float> &a, int64_t rows, int64_t depth, int64_t columns, B b) {
  std::vector<double> result(size_t(rows * columns));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t l = 0; l < depth; ++l)
        result[size_t(i * columns + j)] += double(a[size_t(i * depth + l)]) * double(b(l, j));
  return result;
}

static void expectNear(const std::vector<float> &found, const std::vector<double> &expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  double largest = 0;
  for (double value : expected)
    largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(double(found[i]), expected[i], tolerance * largest) << "at " << i;
}

// Against the dequant path, forward and for the derivative, a padded layer too,
// for every scheme.
TEST_F(FusedLinearTest, AgreesWithTheDequantPath) {
  for (SlabScheme scheme : allSlabSchemes) {
    build({.scheme = scheme});
    auto slab = open();
    for (const std::string &spec : slabDevices())
      for (ElementType element : {ElementType::f32, ElementType::bf16})
        for (std::string name : {"blocks.0.fc1.weight", "blocks.1.out.weight"}) {
          DeviceRef device = Device::open(spec);
          SlabServer server(device, slab);
          Tensor weight = stored(device, server, name);
          int64_t out = weight.shape()[0], in = weight.shape()[1];
          std::vector<float> w = dequantized(*slab, name);
          double tolerance = element == ElementType::f32 ? 1e-5 : 1e-2;

          Tensor x = onDevice(device, {2, 3, in}, element, gaussian(size_t(6 * in), 9));
          Tensor y = fusedLinear(device, x, weight);
          EXPECT_EQ(y.shape(), (Shape{2, 3, out}));
          EXPECT_EQ(y.element(), element);
          expectNear(hostValues(y),
                     multiply(hostValues(x), 6, in, out, [&](int64_t l, int64_t j) { return w[size_t(j * in + l)]; }),
                     tolerance);

          Tensor dy = onDevice(device, {2, 3, out}, element, gaussian(size_t(6 * out), 11));
          Tensor dx = fusedLinearGrad(device, dy, weight);
          EXPECT_EQ(dx.shape(), x.shape());
          expectNear(hostValues(dx),
                     multiply(hostValues(dy), 6, out, in, [&](int64_t l, int64_t j) { return w[size_t(l * in + j)]; }),
                     tolerance);
          EXPECT_EQ(server.takeTelemetry().fusedCalls, 2u);
        }
  }
}

// y = x W'ᵀ + x A B * (alpha / rank), and its derivative; with B = 0 the bits
// are those of the weight alone.
TEST_F(FusedLinearTest, AddsAdapters) {
  std::string name = "blocks.0.fc2.weight";
  auto slab = open();
  std::vector<float> w = dequantized(*slab, name);
  for (const std::string &spec : slabDevices()) {
    DeviceRef device = Device::open(spec);
    SlabServer server(device, slab);
    Tensor weight = stored(device, server, name);
    int64_t out = weight.shape()[0], in = weight.shape()[1], rank = 4;
    Tensor x = onDevice(device, {5, in}, ElementType::f32, gaussian(size_t(5 * in), 9));
    Tensor dy = onDevice(device, {5, out}, ElementType::f32, gaussian(size_t(5 * out), 10));
    std::vector<float> a = gaussian(size_t(in * rank), 12), b = gaussian(size_t(rank * out), 13);
    LoraAdapter adapter{.a = onDevice(device, {in, rank}, ElementType::f32, a),
                        .b = onDevice(device, {rank, out}, ElementType::f32, std::vector<float>(size_t(rank * out))),
                        .alpha = 8};
    EXPECT_EQ(hostValues(fusedLinear(device, x, weight, {&adapter})), hostValues(fusedLinear(device, x, weight)));
    EXPECT_EQ(hostValues(fusedLinearGrad(device, dy, weight, {&adapter})),
              hostValues(fusedLinearGrad(device, dy, weight)));

    adapter.b = onDevice(device, {rank, out}, ElementType::f32, b);
    // W' + the adapter as one dense weight [out, in].
    std::vector<float> sum = w;
    for (int64_t o = 0; o < out; ++o)
      for (int64_t k = 0; k < in; ++k)
        for (int64_t r = 0; r < rank; ++r)
          sum[size_t(o * in + k)] += a[size_t(k * rank + r)] * b[size_t(r * out + o)] * 2; // 8 / 4
    expectNear(hostValues(fusedLinear(device, x, weight, {&adapter})),
               multiply(hostValues(x), 5, in, out, [&](int64_t l, int64_t j) { return sum[size_t(j * in + l)]; }),
               1e-5);
    expectNear(hostValues(fusedLinearGrad(device, dy, weight, {&adapter})),
               multiply(hostValues(dy), 5, out, in, [&](int64_t l, int64_t j) { return sum[size_t(l * in + j)]; }),
               1e-5);
    // Floats of 16 bits are summed with the adapter in f32 and rounded once.
    Tensor half = onDevice(device, {5, in}, ElementType::bf16, gaussian(size_t(5 * in), 9));
    Tensor y = fusedLinear(device, half, weight, {&adapter});
    EXPECT_EQ(y.element(), ElementType::bf16);
    expectNear(hostValues(y),
               multiply(hostValues(half), 5, in, out, [&](int64_t l, int64_t j) { return sum[size_t(j * in + l)]; }),
               1e-2);
  }
}

TEST_F(FusedLinearTest, NamesWhatDoesNotFit) {
  auto slab = open();
  DeviceRef device = Device::open("cpu");
  SlabServer server(device, slab);
  Tensor weight = stored(device, server, "blocks.0.fc2.weight"); // [96, 160]
  Tensor x = onDevice(device, {5, 160}, ElementType::f32, gaussian(800, 9));
  EXPECT_ERROR(fusedLinear(device, x, x), LayoutMismatch, "weight is f32[5,160]");
  EXPECT_ERROR(fusedLinearGrad(device, x, weight), LayoutMismatch, "dy is f32[5,160]");
  EXPECT_ERROR(fusedLinear(device, Tensor::onHost(device, {5, 160}, ElementType::i64), weight), LayoutMismatch,
               "it must be floats [..., 160]");
  LoraAdapter adapter{.a = x, .b = x};
  EXPECT_ERROR(fusedLinear(device, x, weight, {&adapter}), LayoutMismatch, "adapter's A is f32[5,160]");
  adapter.a = onDevice(device, {160, 2}, ElementType::f32, gaussian(320, 1));
  EXPECT_ERROR(fusedLinear(device, x, weight, {&adapter}), LayoutMismatch, "it must be f32[2, 96]");
}
