//===- SubmitBench.cpp - what a submit costs ------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Nanoseconds per submit of programs whose work is next to nothing, inputs in
// place, outputs in the place of those before, on one thread of the cpu. The
// least of many rounds, all candidates in turns. run.py has the programs
// compiled and the peers beside it.
//
//   segue-bench-submit empty.segue add.segue wide.segue
//
//===----------------------------------------------------------------------===//

#include "../LeastTime.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Program/Executor.h"
#include <cstdio>

using namespace segue;

namespace {
/// A program ready to be submitted again and again.
struct Candidate {
  Candidate(const DeviceRef &device, const char *file)
      : binary(Binary::load(file, {.nativeCode = NativeCode::Allow})), executor(device, binary.program("forward")),
        outputs(executor.program().outputs().size()) {
    for (const Value &value : executor.program().inputs())
      for (auto *set : {&inputs, &others})
        set->push_back(Tensor::zeros(device, value.desc()));
  }

  void submit() { executor.run(std::span(inputs), std::span(outputs)); }
  /// With tensors that were not those of the submit before: descriptions at
  /// other addresses, compared by their hash.
  void submitOthers() {
    std::swap(inputs, others);
    submit();
  }

  Binary binary;
  Executor executor;
  std::vector<Tensor> inputs, others, outputs;
};
} // namespace

static void print(const char *what, double seconds) {
  std::printf("{\"peer\":\"segue\",\"what\":\"%s\",\"us\":%.4f}\n", what, seconds * 1e6);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: segue-bench-submit empty.segue add.segue wide.segue\n");
    return 2;
  }
  try {
    DeviceRef device = Device::open("cpu:threads=1");
    Candidate empty(device, argv[1]), add(device, argv[2]), wide(device, argv[3]);
    std::vector<double> seconds = bench::leastTimes(
        200, 2000,
        {[&] { empty.submit(); }, [&] { add.submit(); }, [&] { wide.submit(); }, [&] { wide.submitOthers(); }});
    double extra = double(wide.inputs.size() - empty.inputs.size());
    print("submit of an empty program", seconds[0]);
    print("submit of add, 16 floats", seconds[1]);
    print("one more input in place", (seconds[2] - seconds[0]) / extra);
    print("one more input in place, of another tensor each time", (seconds[3] - seconds[0]) / extra);
  } catch (const Error &error) {
    std::fprintf(stderr, "segue-bench-submit: %s\n", error.what());
    return 1;
  }
}
