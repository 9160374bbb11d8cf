//===- CompilePieces.h - modules apart, and joined --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Compiles modules each by itself, as anybody would, and all of them into one
// program with the same kernels. Fused kernels round as their fusion is, so the
// joined program is made of the modules' functions as they are after kernels
// were formed: a kernel is a barrier to further fusion, and no kernel crosses a
// cut. Everything else (outlining, buffers, arena, commands) is done for the
// joined function as a whole, without knowing of any cut.
//
// Compiler and runtime both have a segue::Layout; sources that include this
// header see neither.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TEST_STITCH_COMPILEPIECES_H
#define SEGUE_TEST_STITCH_COMPILEPIECES_H

#include <set>
#include <string>
#include <vector>

namespace segue::test {

/// From here on modules are compiled for GPUs and no processor, with twins of their kernels in the folder `twins`.
void compileForGpus(const std::string &twins);
/// The options of segue-compile that say for what modules are compiled.
std::vector<std::string> targetWords();

/// The bytes of a .segue file; throws std::runtime_error with the diagnostics.
std::string compileModule(const std::string &text, bool training);

/// One program of all modules, in their order, wired by the names of arguments
/// and results. Its results are `outputs` and, with `training`, "grad.<name>"
/// for everything that enters and has a gradient, for gradients "grad.<output>"
/// that enter. Gradients of a value that several modules read are summed, those
/// of later modules first, by modules such as sumText makes.
std::string compileJoined(const std::vector<std::string> &modules, const std::vector<std::string> &outputs,
                          bool training);

/// The matmul and attention commands of a file, each with the shapes and strides
/// that it is called with: a library may round otherwise for other strides.
std::set<std::string> libraryCalls(const std::string &file);

} // namespace segue::test

#endif // SEGUE_TEST_STITCH_COMPILEPIECES_H
