//===- main.cpp - plays programs that were compiled apart -----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
//   cpp-stitch [--device=cpu] a.segue b.segue ...
//
// Runs @forward of each file in turn: what one puts out, the next takes in.
// Inputs and parameters that come from nowhere are made up. Prints the outputs
// of the last and what the seams between the programs have cost.
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Runtime.h"
#include <cmath>
#include <cstdio>
#include <iostream>

/// Element i of input n is sin(i + n).
static segue::Tensor makeUp(const segue::DeviceRef &device, const segue::TensorDesc &desc, size_t n) {
  if (desc.element != segue::ElementType::f32)
    throw segue::Error(segue::ErrorCode::InvalidArgument, desc.str() + ": this example makes up f32 alone");
  segue::Tensor tensor = segue::Tensor::onHost(device, desc.shape, desc.element);
  for (uint64_t i = 0; i < tensor.elementCount(); ++i)
    tensor.data<float>()[i] = std::sin(float(i) + float(n));
  return tensor;
}

/// The outputs of @forward. Its inputs are taken from `given` in their order.
static std::vector<segue::Tensor> play(const segue::DeviceRef &device, const segue::Program &program,
                                       std::vector<segue::Tensor> given) {
  std::vector<segue::Tensor> inputs;
  size_t taken = 0;
  for (const segue::Value &input : program.inputs()) {
    bool comesFromBefore = input.role == segue::Role::Input && taken < given.size();
    inputs.push_back(comesFromBefore ? std::move(given[taken++]) : makeUp(device, input.desc(), inputs.size()));
  }
  // Whatever layout an input is in: submit brings it to the one that the
  // program declares, and does nothing if it is there.
  return segue::submit(device, program, std::move(inputs));
}

static void print(const segue::Value &output, const segue::Tensor &tensor) {
  segue::Tensor host = segue::toHost(tensor); // waits for it
  std::cout << output.name << ": " << host.desc().str() << '\n';
  size_t columns = host.shape().empty() ? 1 : size_t(host.shape().back());
  for (uint64_t i = 0; i < host.elementCount(); ++i)
    std::printf("%9.4f%s", host.data<float>()[i], (i + 1) % columns ? "" : "\n");
  std::fflush(stdout);
}

int main(int argc, char **argv) {
  std::string spec = "cpu";
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument.starts_with("--device="))
      spec = argument.substr(9);
    else
      files.push_back(std::move(argument));
  }
  if (files.empty()) {
    std::cerr << "usage: cpp-stitch [--device=cpu] a.segue b.segue ...\n";
    return 2;
  }
  try {
    segue::DeviceRef device = segue::Device::open(spec);
    std::vector<segue::Tensor> flowing;
    for (const std::string &file : files) {
      segue::Binary binary = segue::Binary::load(file);
      const segue::Program &forward = binary.program("forward");
      flowing = play(device, forward, std::move(flowing));
      if (&file == &files.back())
        for (size_t i = 0; i < flowing.size(); ++i)
          print(forward.output(i), flowing[i]);
    }
    std::cout << segue::stitchReport(*device).table();
  } catch (const segue::Error &error) {
    std::cerr << "cpp-stitch: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
