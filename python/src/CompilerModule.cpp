//===- CompilerModule.cpp - the Python module segue._compiler -------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Text in, bytes out: MLIR never shows in Python. A child process loads it
// (compile_server.py), so that a process that trains maps no LLVM.
//
//===----------------------------------------------------------------------===//

#include "segue/Compiler/Compiler.h"
#include "segue/Compiler/VerifyValues.h"
#include <cstdlib>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <sstream>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

/// Raises segue.CompileError; its report has the diagnostics.
[[noreturn]] static void raiseCompileError(const std::string &diagnostics) {
  nb::dict report;
  report["diagnostics"] = nb::str(diagnostics.c_str(), diagnostics.size());
  std::string message = "the compiler refused the module:\n" + diagnostics;
  nb::object error = nb::module_::import_("segue.errors").attr("from_code")("COMPILE_FAILED", message.c_str(), report);
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

static nb::bytes compile(const std::string &text, const std::string &name, bool training, const std::string &optimizer,
                         const std::string &stitchHints, const std::string &gradientStatistics, bool blockPrograms,
                         const std::string &frozenStorage, const std::string &target,
                         uint64_t l1Bytes, const std::string &ptxas) {
  segue::CompileOptions options;
  std::vector<std::string> targets;
  std::istringstream each(target);
  for (std::string one; std::getline(each, one, ',');)
    targets.push_back(one);
  if (!targets.empty())
    if (std::string wrong = segue::readTargets(targets, options); !wrong.empty())
      raiseCompileError(wrong);
  options.cubins.ptxas = ptxas;
  // Where there is no GPU but a fake of one, tests say where it finds kernels for this machine.
  if (const char *twins = std::getenv("SEGUE_GPU_TWINS"); twins && options.gpuCapability)
    options.gpuTwins = twins;
  options.name = name;
  options.training = training;
  options.optimizer = optimizer;
  options.stitchHints = stitchHints;
  options.frozenStorage = frozenStorage;
  options.l1Bytes = l1Bytes;
  if (!gradientStatistics.empty() && gradientStatistics != "block" && gradientStatistics != "layer")
    raiseCompileError("gradient_statistics is \"" + gradientStatistics + "\"; it is \"block\", \"layer\" or empty");
  options.gradientStatistics = gradientStatistics.empty()      ? segue::StatisticsPer::Nothing
                               : gradientStatistics == "layer" ? segue::StatisticsPer::Layer
                                                               : segue::StatisticsPer::Block;
  options.blockPrograms = blockPrograms;
  std::string diagnostics;
  llvm::FailureOr<std::string> bytes = llvm::failure();
  {
    nb::gil_scoped_release release;
    bytes = segue::compileText(text, options, diagnostics, name);
  }
  if (failed(bytes))
    raiseCompileError(diagnostics);
  if (!diagnostics.empty())
    nb::module_::import_("logging").attr("getLogger")("segue").attr("info")("%s", nb::str(diagnostics.c_str()));
  return nb::bytes(bytes->data(), bytes->size());
}

/// Returns what differs, or an empty string, and numbers of what was called.
static nb::tuple verifyValues(const std::string &text, const std::string &name, nb::bytes values, bool training,
                              const std::string &optimizer) {
  segue::CompileOptions options;
  options.name = name;
  options.training = training;
  options.optimizer = optimizer;
  std::string diagnostics, difference;
  llvm::StringRef bytes(values.c_str(), values.size());
  llvm::FailureOr<segue::VerifiedValues> found = llvm::failure();
  {
    nb::gil_scoped_release release;
    found = segue::verifyText(text, options, bytes, diagnostics, name);
  }
  if (failed(found))
    raiseCompileError(diagnostics);
  if (found->difference)
    difference = found->difference->str();
  return nb::make_tuple(difference, found->kernels, found->launches, found->calls);
}

NB_MODULE(_compiler, m) {
  m.doc() = "The compiler of Segue. Use segue.compile instead.";
  m.def("compile", &compile, "text"_a, "name"_a, "training"_a = true, "optimizer"_a = "none", "stitch_hints"_a = "",
        "gradient_statistics"_a = "", "block_programs"_a = false, "frozen_storage"_a = "",
        "target"_a = "", "l1_bytes"_a = 0, "ptxas"_a = "");
  m.def("verify_values", &verifyValues, "text"_a, "name"_a, "values"_a, "training"_a = true, "optimizer"_a = "none");
}
