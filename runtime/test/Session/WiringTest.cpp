//===- WiringTest.cpp - which output feeds which input --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "segue/runtime/Session/Wiring.h"
#include "Session/ExpectError.h"
#include <gtest/gtest.h>

using namespace segue;

static Value value(std::string name, Role role, Shape shape, ElementType element = ElementType::f32) {
  Value value;
  value.name = std::move(name);
  value.role = role;
  value.sharedDesc = std::make_shared<const TensorDesc>(std::move(shape), element);
  return value;
}
static Value in(std::string name, Shape shape = {2, 3}) {
  return value(std::move(name), Role::Input, std::move(shape));
}
static Value out(std::string name, Shape shape = {2, 3}) {
  return value(std::move(name), Role::Output, std::move(shape));
}

namespace {
/// Modules by name, inputs and outputs; keeps what ModulePorts refers to.
struct Modules {
  struct Entry {
    std::string name;
    std::vector<Value> inputs, outputs;
  };
  std::vector<Entry> entries;
  std::vector<ModulePorts> ports() const {
    std::vector<ModulePorts> result;
    for (const Entry &entry : entries)
      result.push_back({entry.name, entry.inputs, entry.outputs});
    return result;
  }
};
} // namespace

static Wiring wire(const Modules &modules, const std::vector<Value> &batch, const std::vector<Wire> &wires = {}) {
  BatchDescs descs;
  for (const Value &tensor : batch)
    descs[tensor.name] = &tensor.desc();
  std::vector<ModulePorts> ports = modules.ports();
  return wireModules(ports, wires, descs);
}

static std::vector<std::string> notes(const Modules &modules, const std::vector<Value> &batch,
                                      const std::vector<Wire> &wires = {}) {
  BatchDescs descs;
  for (const Value &tensor : batch)
    descs[tensor.name] = &tensor.desc();
  std::vector<std::string> notes;
  std::vector<ModulePorts> ports = modules.ports();
  wireModules(ports, wires, descs, &notes);
  return notes;
}

static const std::optional<OutputRef> fromBatch;

// The usual chain: what the batch names comes from there, the rest by position.
TEST(Wiring, BatchFirstThenPosition) {
  Modules modules{{{"front", {in("x")}, {out("h"), out("mask")}}, {"back", {in("a"), in("y"), in("b")}, {out("z")}}}};
  Wiring wiring = wire(modules, {in("x"), in("y")});
  EXPECT_EQ(wiring[0], (std::vector{fromBatch}));
  EXPECT_EQ(wiring[1][0], (OutputRef{0, 0}));
  EXPECT_EQ(wiring[1][1], fromBatch);
  EXPECT_EQ(wiring[1][2], (OutputRef{0, 1}));
}

// A loss is never fed onwards by position, only by an explicit wire.
TEST(Wiring, LossIsNotPassedOn) {
  Modules modules{{{"a", {in("x")}, {out("loss", {}), out("h")}}, {"b", {in("h_in")}, {out("z")}}}};
  EXPECT_EQ(wire(modules, {in("x")})[1][0], (OutputRef{0, 1}));
  Modules scalar{{{"a", {in("x")}, {out("loss", {})}}, {"b", {in("s", {})}, {out("z")}}}};
  EXPECT_ERROR(wire(scalar, {in("x")}), MissingInput, "module \"b\", input \"s\" (f32[]): nothing gives it");
  EXPECT_EQ(wire(scalar, {in("x")}, {{"b", "s", "a", "loss"}})[1][0], (OutputRef{0, 0}));
}

// Wires reach over modules, win over the batch, and their outputs are not
// given a second time by position to the same module.
TEST(Wiring, WiresWin) {
  Modules modules{
      {{"a", {in("x")}, {out("h"), out("k")}}, {"b", {in("p"), in("q")}, {out("r")}}, {"c", {in("s")}, {out("t")}}}};
  Wiring wiring = wire(modules, {in("x")}, {{"b", "q", "a", "h"}, {"c", "s", "a", "k"}});
  EXPECT_EQ(wiring[1][0], (OutputRef{0, 1}));
  EXPECT_EQ(wiring[1][1], (OutputRef{0, 0}));
  EXPECT_EQ(wiring[2][0], (OutputRef{0, 1}));
  EXPECT_ERROR(wire(modules, {in("x"), in("s")}, {{"c", "s", "a", "k"}}), NameUnknown,
               "the batch has a tensor \"s\" (f32[2,3]) that no module takes");
}

TEST(Wiring, ErrorsNameModuleInputWantedAndGiven) {
  Modules modules{{{"front", {in("x")}, {out("h", {4, 5})}}, {"back", {in("a")}, {out("z")}}}};
  EXPECT_ERROR(wire(modules, {in("x")}), LayoutMismatch,
               "module \"back\", input \"a\": f32[4,5] given by output \"h\" of module \"front\", f32[2,3] declared");
  EXPECT_ERROR(wire(modules, {in("x", {7})}), LayoutMismatch,
               "module \"front\", input \"x\": f32[7] given by the batch, f32[2,3] declared");
  EXPECT_ERROR(wire(modules, {value("x", Role::Input, {2, 3}, ElementType::i64)}), LayoutMismatch,
               "i64[2,3] given by the batch, f32[2,3] declared; convert it to f32");
  EXPECT_ERROR(wire(modules, {in("x", {0, 3})}), LayoutMismatch, "f32[2,3] declared; it has no elements; leave such a batch out");
  EXPECT_ERROR(wire(modules, {}), MissingInput,
               "module \"front\", input \"x\" (f32[2,3]): nothing gives it; the batch has no tensors, and there is no "
               "module before it");
  Modules front{{{"front", {in("tokens")}, {out("h")}}}};
  EXPECT_ERROR(wire(front, {in("tokens"), in("tokns")}), NameUnknown,
               "a tensor \"tokns\" (f32[2,3]) that no module takes; the nearest is \"tokens\"");
}

TEST(Wiring, WrongWires) {
  Modules modules{{{"a", {in("x")}, {out("h")}}, {"b", {in("y")}, {out("z")}}}};
  EXPECT_ERROR(wire(modules, {in("x")}, {{"b", "y", "c", "h"}}), NameUnknown, "module \"c\" does not exist");
  EXPECT_ERROR(wire(modules, {in("x")}, {{"b", "yy", "a", "h"}}), NameUnknown,
               "input \"yy\" does not exist; the nearest is \"y\"");
  EXPECT_ERROR(wire(modules, {in("x")}, {{"b", "y", "a", "g"}}), NameUnknown, "output \"g\" does not exist");
  EXPECT_ERROR(wire(modules, {in("x")}, {{"a", "x", "b", "z"}}), InvalidArgument, "does not run before it");
  EXPECT_ERROR(wire(modules, {in("x")}, {{"b", "y", "a", "h"}, {"b", "y", "a", "h"}}), InvalidArgument,
               "has two wires");
}

// Two modules call their input alike, as two halves of a model do: the batch's
// tensor goes to both, and what the first one made goes nowhere. That is said.
TEST(Wiring, NotesABatchThatShadowsAnOutput) {
  Modules modules{{{"front", {in("x")}, {out("h")}}, {"back", {in("x"), in("y")}, {out("z")}}}};
  EXPECT_EQ(
      notes(modules, {in("x"), in("y")}),
      std::vector<std::string>{"module \"back\", input \"x\" (f32[2,3]): takes the batch's tensor of that name, and "
                               "nothing takes output \"h\" of module \"front\", which fits too; if that was "
                               "meant, rename the tensor or give a wire"});
  // Nothing is left over, it does not fit, or somebody else takes it.
  EXPECT_EQ(notes(modules, {in("x")}, {{"back", "y", "front", "h"}}), std::vector<std::string>());
  EXPECT_EQ(
      notes(Modules{{{"front", {in("x")}, {out("h")}}, {"back", {in("a"), in("y")}, {out("z")}}}}, {in("x"), in("y")}),
      std::vector<std::string>());
  EXPECT_EQ(notes(Modules{{{"front", {in("x")}, {out("h", {4})}}, {"back", {in("x")}, {out("z")}}}}, {in("x")}),
            std::vector<std::string>());
}
