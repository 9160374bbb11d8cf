//===- CostOfCommand.h - flops and bytes of one command ---------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_PROGRAM_COSTOFCOMMAND_H
#define SEGUE_LIB_PROGRAM_COSTOFCOMMAND_H

#include "BinaryImage.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Engine/LibraryCall.h"

namespace segue::inline runtime {

/// Returns the cost of a verified command on the device it runs on; nothing for one
/// that does no work. Counts that do not fit are the greatest number.
WorkCost costOfCommand(const schema::Binary &root, const schema::Program &program, const schema::Command &command);

/// Returns what the library is told of a verified call: its tensors, without places.
LibraryCallSpec librarySpec(const schema::LibraryCall &call);

/// Returns the kind, such as "Matmul"; for a call of the library, the name of its operation.
std::string kindOf(const schema::Command &command);

} // namespace segue::inline runtime

#endif // SEGUE_LIB_PROGRAM_COSTOFCOMMAND_H
