//===- DescribeGpus.cpp - which GPUs this machine has ---------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DriverApi.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Error.h"

namespace segue::inline runtime {

std::vector<GpuDescription> describeGpus() {
  const cuda::Api &api = cuda::Api::open("cuda");
  auto check = [&](cuda::CUresult result, const char *call) {
    if (result)
      throw Error(ErrorCode::Unsupported, std::string(call) + " gives " + api.describe(result));
  };
  int count = 0;
  check(api.deviceCount(&count), "cuDeviceGetCount");
  std::vector<cuda::CUdevice> handles(static_cast<size_t>(count));
  std::vector<GpuDescription> found;
  for (int number = 0; number < count; ++number) {
    cuda::CUdevice &device = handles[size_t(number)];
    check(api.deviceGet(&device, number), "cuDeviceGet");
    GpuDescription gpu{.number = number};
    char name[256] = "";
    check(api.deviceName(name, sizeof name - 1, device), "cuDeviceGetName");
    gpu.model = name;
    size_t bytes = 0;
    check(api.deviceMemory(&bytes, device), "cuDeviceTotalMem");
    gpu.memoryBytes = bytes;
    int major = 0, minor = 0;
    check(api.deviceAttribute(&major, cuda::attributeCapabilityMajor, device), "cuDeviceGetAttribute");
    check(api.deviceAttribute(&minor, cuda::attributeCapabilityMinor, device), "cuDeviceGetAttribute");
    gpu.capability = 10 * major + minor;
    found.push_back(std::move(gpu));
  }
  for (GpuDescription &gpu : found)
    for (int other = 0; other < count; ++other) {
      int reaches = 0;
      if (other != gpu.number)
        check(api.deviceReaches(&reaches, handles[size_t(gpu.number)], handles[size_t(other)]), "cuDeviceCanAccessPeer");
      if (reaches)
        gpu.peers.push_back(other);
    }
  return found;
}

} // namespace segue::inline runtime
