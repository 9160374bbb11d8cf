//===- CudaDevice.h - a GPU of NVIDIA ---------------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// `cuda:N`, the N-th GPU that the driver names:
//
//   dram=               what may be taken of its memory (default: what is free, but for 1 GiB)
//   pinned=             page-locked memory (an eighth of the machine's)
//   disk=FOLDER?...     a disk below the host's memory (DiskOptions.h). host= is then what
//                       may stay in that memory, in the place of pinned=
//   profile=FILE        what plans expect at first (DeviceProfile.h)
//   tf32=on             rounds the operands of products and of attention in f32 to TF32
//   codes=on            rounds x of products with INT8 and FP8 weights to such codes
//   panels=             memory for products with weights in codes
//   workspace=          memory for products
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_CUDADEVICE_H
#define SEGUE_LIB_CUDA_CUDADEVICE_H

#include "../Drivers/DeviceOptions.h"
#include "segue/runtime/Device/Device.h"

namespace segue::inline runtime {
struct SpillSeam;
}

namespace segue::inline runtime::cuda {

/// Opens a GPU. Throws InvalidArgument for what it cannot use, Unsupported and DeviceOom where the driver has none, and
/// what SpillFile::open throws. `seam` is that of tests, which let the disk fail; it outlives the device.
DeviceRef openCudaDevice(const DeviceOptions &options, const SpillSeam *seam = nullptr);

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_CUDADEVICE_H
