//===- Devices.cpp - segue-run devices ------------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "Commands.h"
#include "ExitStatus.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Plan/InfeasibleBudget.h"
#include <cstdio>

namespace segue::tool {

int listDevices() {
  DeviceRef cpu = Device::open("cpu");
  std::printf("cpu: %d threads, %s, kernels of %s\n", cpu->threads(), sizeText(cpu->freeMemory(Space::Host).bytes).c_str(),
              cpu->kernelTarget().c_str());
  try {
    for (const GpuDescription &gpu : describeGpus()) {
      std::string peers;
      for (int peer : gpu.peers)
        peers += (peers.empty() ? "; reaches cuda:" : ", cuda:") + std::to_string(peer);
      std::printf("cuda:%d: %s, %s, compute capability %d.%d%s\n", gpu.number, gpu.model.c_str(),
                  sizeText(gpu.memoryBytes).c_str(), gpu.capability / 10, gpu.capability % 10, peers.c_str());
    }
  } catch (const Error &error) {
    std::printf("no GPU: %s\n", error.what());
  }
  std::printf("sim, sim:virtual: devices with a memory of their own, simulated on the cpu\n");
  return Done;
}

} // namespace segue::tool
