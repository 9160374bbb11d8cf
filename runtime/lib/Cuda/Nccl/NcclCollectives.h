//===- NcclCollectives.h - collectives on device memory ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Tensors go from GPU to GPU by NCCL, in the order of Queue::Network. Of a call all ranks
// give NCCL the same: which of a rank's tensors lie on its GPU and which at their home on
// the host depends on its budget, and NCCL hangs where ranks differ. So a call is cut into
// rounds by the sizes of its tensors alone, and what lies on the host passes through a piece
// of device memory, the stage, round by round.
//
// Words that ranks agree by, and tensors for one other rank, go by way of the host: a send
// waits for nobody there, and one of NCCL's keeps all that stands behind it in the stream
// waiting for its receiver, which two ranks that send to each other first never end.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_CUDA_NCCL_NCCLCOLLECTIVES_H
#define SEGUE_LIB_CUDA_NCCL_NCCLCOLLECTIVES_H

#include "NcclApi.h"
#include "segue/runtime/Collectives/Transport.h"

namespace segue::inline runtime::cuda {

/// The owner in the books of what NCCL takes of a GPU's memory for itself.
inline constexpr const char *ncclOwner = "(NCCL)";

/// Makes the operations on a GPU of a rank whose group has agreed to use NCCL. `device` is a GpuHolder. Throws
/// RankFailed where NCCL cannot begin, and OutOfMemory where the budget has no room for what it takes.
std::shared_ptr<Collectives> ncclCollectives(const NcclApi &api, DeviceRef device,
                                             std::shared_ptr<Transport> transport, const CollectiveOptions &options,
                                             const NcclId &id);

} // namespace segue::inline runtime::cuda

#endif // SEGUE_LIB_CUDA_NCCL_NCCLCOLLECTIVES_H
