//===- Wiring.h - which output feeds which input ----------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Modules know nothing of each other; the wiring joins them. For each input of
// a module, in this order:
//
//   1. an explicit Wire binds it to an output of an earlier module;
//   2. a tensor of its name in the batch is taken;
//   3. otherwise it takes the next output of the module before it, by
//      position, that no input of this module takes yet. The scalar output
//      called "loss" is never taken so.
//
// The batch goes before the module before, for the sake of targets and
// masks; where an output that would fit is left over, it may be a name that two
// things share by chance, and is noted.
//
// Pure functions over signatures: no tensor is touched.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_SESSION_WIRING_H
#define SEGUE_RUNTIME_SESSION_WIRING_H

#include "segue/runtime/Program/Program.h"
#include <functional>
#include <map>
#include <optional>
#include <span>

namespace segue::inline runtime {

/// Input `input` of module `module` is output `output` of module `fromModule`,
/// which comes before it.
struct Wire {
  std::string module, input, fromModule, output;
};

/// The inputs and outputs that a module shows to its neighbours; refers to the caller's strings.
struct ModulePorts {
  std::string_view name;
  std::span<const Value> inputs, outputs;
};

struct OutputRef {
  size_t module = 0, output = 0;
  bool operator==(const OutputRef &) const = default;
};

/// The output that feeds each input of each module, or nothing for the batch.
using Wiring = std::vector<std::vector<std::optional<OutputRef>>>;

/// The descriptions of the tensors of a batch, which are all that the wiring needs of them.
using BatchDescs = std::map<std::string_view, const TensorDesc *>;

/// Returns true for an output whose gradient is 1: a float scalar called "loss".
bool isLoss(const Value &output);

/// Checks wires. Throws NameUnknown for a wire from or to nothing (with the nearest name),
/// InvalidArgument for one that leads backwards or a second one to an input.
void checkWires(std::span<const ModulePorts> modules, std::span<const Wire> wires);

/// Binds every input. Throws MissingInput for one that nothing gives,
/// LayoutMismatch where shape or element type differ, and NameUnknown for a
/// tensor of the batch that no module takes; each names module and input, what
/// is wanted and what is given. Adds a sentence to `notes` for each tensor of
/// the batch that goes before an output which fits as well and which nothing
/// takes.
Wiring wireModules(std::span<const ModulePorts> modules, std::span<const Wire> wires, const BatchDescs &batch,
                   std::vector<std::string> *notes = nullptr);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_SESSION_WIRING_H
