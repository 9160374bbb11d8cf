//===- ProgramValues.h - inputs and outputs by name -------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// What the commands that run programs share: `[name=]text` arguments sorted to
// the values they mean, and what is done with outputs.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_TOOLS_SEGUERUN_PROGRAMVALUES_H
#define SEGUE_TOOLS_SEGUERUN_PROGRAMVALUES_H

#include "segue/runtime/Program/Executor.h"
#include "segue/runtime/Program/Program.h"
#include "segue/runtime/Tensor/Tensor.h"
#include <filesystem>
#include <span>

namespace segue::tool {

/// Sorts `[name=]text` arguments to the values of a program: by name, or the
/// next value that no argument names. Empty where nothing was given. `what`:
/// "input" or "output". Throws NameUnknown, InvalidArgument.
std::vector<std::string> assignTexts(std::span<const std::string> arguments, std::span<const Value> values,
                                     const char *what);

/// Opens a device for a command that gives programs values. Throws InvalidArgument for one that computes nothing.
DeviceRef openForValues(const std::string &spec);

/// A tensor per input of a program, as declared: what `[name=]tensor` arguments
/// give; those that they do not give hold small numbers, the same in every run.
std::vector<Tensor> makeInputs(const DeviceRef &device, const Program &program, std::span<const std::string> arguments);

/// Returns the seconds of each of `repeat` submits until its outputs are there, sorted; those
/// before them plan and warm up. The outputs are those of the last submit.
std::vector<double> timeSubmits(const Executor &executor, std::vector<Tensor> &inputs, std::vector<Tensor> &outputs,
                                int64_t repeat, int64_t warmUps = 2);

/// The path of `@file.npy`, whose @ may be left out. Throws InvalidArgument for anything else, and IoFailed
/// before anything runs for a file that could not be written.
std::filesystem::path npyPath(const std::string &text);

/// Returns true if the tensors are equal as numpy.allclose has it, NaN equal to NaN. Says
/// on stderr where they differ.
bool matches(const std::string &name, const Tensor &given, const Tensor &expected, double tolerance);

struct NamedOutput {
  std::string name;
  Tensor tensor;
  /// The file to write it to; empty for stdout.
  std::filesystem::path file;
};

/// Writes the outputs that have files. They are written first and put in place
/// together at the end: if one cannot be written, none appears. Throws IoFailed.
void writeFiles(std::span<const NamedOutput> outputs);

/// The outputs without file, a line each: "y: 2xf32=1,2".
void printTensors(std::span<const NamedOutput> outputs);

} // namespace segue::tool

#endif // SEGUE_TOOLS_SEGUERUN_PROGRAMVALUES_H
