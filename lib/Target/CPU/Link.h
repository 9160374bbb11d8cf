//===- Link.h - object file to shared object --------------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_LIB_TARGET_CPU_LINK_H
#define SEGUE_LIB_TARGET_CPU_LINK_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/Error.h"
#include <string>

namespace segue {

/// Links objects into an ELF shared object that needs no other library; an
/// undefined symbol is an error that names it. One link at a time.
llvm::Expected<std::string> linkShared(llvm::ArrayRef<std::string> objects);

} // namespace segue

#endif // SEGUE_LIB_TARGET_CPU_LINK_H
