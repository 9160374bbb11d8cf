//===- LoadedCode.h - a shared object in this process -----------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TARGET_CPU_LOADEDCODE_H
#define SEGUE_TARGET_CPU_LOADEDCODE_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <string>

namespace segue {

/// Maps the bytes of an ELF shared object as long as it lives. Any thread may look symbols up.
class LoadedCode {
public:
  LoadedCode() = default;
  LoadedCode(const LoadedCode &) = delete;
  LoadedCode &operator=(const LoadedCode &) = delete;
  ~LoadedCode();

  /// Maps it, once. Fails with the reason of the system's loader.
  llvm::Error load(llvm::StringRef elf);
  /// Null if there is no such symbol, or nothing was loaded.
  void *find(const std::string &symbol) const;

private:
  int descriptor = -1;
  void *library = nullptr;
};

} // namespace segue

#endif // SEGUE_TARGET_CPU_LOADEDCODE_H
