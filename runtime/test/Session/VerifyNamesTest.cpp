//===- VerifyNamesTest.cpp - programs of a file that do not fit together --===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Each program of these files is right by itself, and so are all hashes: what is
// wrong is a name, a role or a tensor between two of them.
//
//===----------------------------------------------------------------------===//

#include "Session/ExpectError.h"
#include "Session/SessionModules.h"
#include "segue/runtime/Device/Device.h"
#include <algorithm>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::test;

static schema::ProgramT &programOf(TestFile &file, const std::string &name) {
  return **std::ranges::find(file.root.programs, name, [](const auto &program) { return program->name; });
}
static schema::ValueT &in(TestFile &file, const std::string &program, const std::string &name) {
  return **std::ranges::find(programOf(file, program).inputs, name, [](const auto &value) { return value->name; });
}
static schema::ValueT &out(TestFile &file, const std::string &program, const std::string &name) {
  return **std::ranges::find(programOf(file, program).outputs, name, [](const auto &value) { return value->name; });
}
/// Keeps the bytes, so that every command still fits.
static void reshape(schema::ValueT &value) { value.desc->shape = {moduleWidth / 2, 2}; }

/// The head with one save point, and a program of a block.
static TestFile goodFile() {
  TestFile file = makeHeadFile();
  schema::ProgramT &forward = programOf(file, "forward");
  auto point = std::make_unique<schema::SavePointT>();
  while (forward.outputs[point->value]->name != "saved.0")
    ++point->value;
  forward.save_points.push_back(std::move(point));
  schema::ProgramT &segment = file.addProgram("segment.0");
  addInput(segment, "v", {moduleWidth}, schema::ElementType::f32, schema::Role::parameter);
  return file;
}

struct NameRule {
  const char *what;
  void (*change)(TestFile &);
  const char *message;
};

static const NameRule nameRules[] = {
    {"evaluation of another parameter", [](TestFile &f) { in(f, "inference", "v").name = "q"; },
     "program \"inference\", input \"q\" (role parameter): forward has no input \"q\" of role parameter"},
    {"evaluation with another role", [](TestFile &f) { in(f, "inference", "v").role = schema::Role::frozen; },
     "input \"v\" (role frozen): forward has no input \"v\" of role frozen"},
    {"evaluation of another shape", [](TestFile &f) { reshape(in(f, "inference", "v")); },
     "input \"v\" (role parameter): is f32[4,2], but f32[8] in forward"},
    {"evaluation with fewer outputs", [](TestFile &f) { out(f, "inference", "loss").role = schema::Role::saved; },
     "output \"loss\" (role output): inference and forward do not have the same outputs"},
    {"evaluation with other outputs", [](TestFile &f) { out(f, "inference", "p").name = "q"; },
     "output \"q\" (role output): inference and forward do not have the same outputs"},
    {"backward of another parameter", [](TestFile &f) { in(f, "backward", "v").name = "q"; },
     "program \"backward\", input \"q\" (role parameter): forward has no input \"q\" of role parameter"},
    {"backward with another role", [](TestFile &f) { in(f, "backward", "v").role = schema::Role::input; },
     "input \"v\" (role input): has the role parameter in forward"},
    {"backward with another shape", [](TestFile &f) { reshape(in(f, "backward", "y")); },
     "input \"y\" (role input): is f32[4,2], but f32[8] in forward"},
    {"gradient of no output", [](TestFile &f) { in(f, "backward", "grad.p").of = "q"; },
     "input \"grad.p\" (role gradient): forward has no output \"q\" of role output"},
    {"gradient of nothing", [](TestFile &f) { in(f, "backward", "grad.p").of.clear(); },
     "input \"grad.p\" (role gradient): forward has no output \"\" of role output"},
    {"gradient of another shape", [](TestFile &f) { reshape(in(f, "backward", "grad.p")); },
     "input \"grad.p\" (role gradient): is f32[4,2], but f32[8] in forward"},
    {"a value that was not saved", [](TestFile &f) { out(f, "forward", "saved.0").role = schema::Role::output; },
     "output \"saved.0\" (role output): save point 0 keeps it"},
    {"saved by another name", [](TestFile &f) { in(f, "backward", "saved.0").name = "saved.1"; },
     "output \"saved.0\" (role saved): save point 0 gives it to backward as \"saved.1\", which is another value"},
    {"saved without a save point",
     [](TestFile &f) {
       programOf(f, "forward").save_points.clear();
       in(f, "backward", "saved.0").name = "saved.1";
     },
     "input \"saved.1\" (role saved): forward has no output \"saved.1\" of role saved"},
    {"a save point of another value", [](TestFile &f) { programOf(f, "forward").save_points[0]->backward_input = 1; },
     "save point 0 gives it to backward as \"v\", which is another value"},
    {"gradient for no input", [](TestFile &f) { out(f, "backward", "grad.v").of = "q"; },
     "output \"grad.v\" (role gradient): forward has no input \"q\" that it is the gradient of"},
    {"gradient of fewer elements", [](TestFile &f) { out(f, "backward", "grad.v").of = "loss"; },
     "output \"grad.v\" (role gradient): forward has no input \"loss\""},
    {"gradient in another shape", [](TestFile &f) { reshape(out(f, "backward", "grad.v")); },
     "output \"grad.v\" (role gradient): is f32[4,2], which is no gradient of f32[8]"},
    {"gradient of integers",
     [](TestFile &f) { out(f, "backward", "grad.v").desc->element = schema::ElementType::i32; },
     "output \"grad.v\" (role gradient): is i32[8], which is no gradient of f32[8]"},
    {"two gradients", [](TestFile &f) { out(f, "backward", "grad.hidden").of = "v"; },
     "output \"grad.hidden\" (role gradient): is a second gradient of \"v\""},
    {"statistics", [](TestFile &f) { out(f, "backward", "grad.hidden").role = schema::Role::statistics; },
     "output \"grad.hidden\" (role statistics): statistics are f32[4]"},
    {"optimizer of no parameter", [](TestFile &f) { in(f, "optimizer", "v").name = "q"; },
     "program \"optimizer\", input \"q\" (role parameter): forward has no input \"q\" of role parameter"},
    {"gradient of no parameter", [](TestFile &f) { in(f, "optimizer", "grad.v").of = "y"; },
     "input \"grad.v\" (role gradient): forward has no input \"y\" of role parameter"},
    {"optimizer's gradient in another shape", [](TestFile &f) { reshape(in(f, "optimizer", "grad.v")); },
     "input \"grad.v\" (role gradient): is f32[4,2], which is no gradient of f32[8]"},
    {"state of no parameter", [](TestFile &f) { in(f, "optimizer", "u.v").of = "q"; },
     "input \"u.v\" (role state): forward has no input \"q\" of role parameter"},
    {"state that was not given", [](TestFile &f) { out(f, "optimizer", "u.v").name = "s.v"; },
     "output \"s.v\" (role state): the program has no such input"},
    {"state of another parameter", [](TestFile &f) { out(f, "optimizer", "u.v").of = "w"; },
     "output \"u.v\" (role state): the program has no such input"},
    {"parameter that was not given", [](TestFile &f) { out(f, "optimizer", "v").name = "w"; },
     "output \"w\" (role parameter): the program has no such input"},
    {"optimizer that gives a gradient", [](TestFile &f) { out(f, "optimizer", "u.v").role = schema::Role::gradient; },
     "output \"u.v\" (role gradient): an optimizer gives parameters and states alone"},
    {"norm of no parameter", [](TestFile &f) { in(f, "grad_norm", "grad.v").of = "q"; },
     "program \"grad_norm\", input \"grad.v\" (role gradient): forward has no input \"q\" of role parameter"},
    {"norm of a state", [](TestFile &f) { in(f, "grad_norm", "grad.v").role = schema::Role::state; },
     "program \"grad_norm\", input \"grad.v\" (role state): a norm of gradients reads no states"},
    {"square of no gradient", [](TestFile &f) { out(f, "grad_norm", "grad_norm_squares.v").name = "grad_norm_squares.q"; },
     "output \"grad_norm_squares.q\" (role output): stands where \"grad_norm_squares.v\" is, one f32"},
    {"square of two numbers", [](TestFile &f) { out(f, "grad_norm", "grad_norm_squares.v").desc->shape = {2}; },
     "output \"grad_norm_squares.v\" (role output): stands where \"grad_norm_squares.v\" is, one f32"},
    {"squares of more gradients than there are",
     [](TestFile &f) { out(f, "grad_norm", "grad_norm_squares.v").name = "grad_norm_squares"; out(f, "grad_norm", "grad_norm_squares").desc->shape = {2}; },
     "output \"grad_norm_squares\" (role output): is no vector of f32 with one square for each gradient"},
    {"squares that are together alone",
     [](TestFile &f) { out(f, "grad_norm", "grad_norm_squares.v").name = "grad_norm_squares"; },
     "program \"grad_norm\" has no output \"grad_norm_squares.v\""},
    {"square of a gradient that does not come in", [](TestFile &f) { in(f, "grad_norm", "grad.v").role = schema::Role::input; },
     "output \"grad_norm_squares.v\" (role output): is the square of no gradient that comes in"},
    {"a forward that updates nothing", [](TestFile &f) { f.addProgram("forward_updating"); },
     "program \"forward_updating\", input \"v\" (role parameter): is not there"},
    {"a forward that updates, of another input",
     [](TestFile &f) { addInput(f.addProgram("forward_updating"), "q", {moduleWidth}, schema::ElementType::f32, schema::Role::input); },
     "program \"forward_updating\", input \"q\" (role input): stands where forward or the optimizer have \"v\""},
    {"a forward that updates by no optimizer",
     [](TestFile &f) {
       programOf(f, "optimizer").name = "none";
       f.addProgram("forward_updating");
     },
     "program \"forward_updating\" is there without \"forward\" and \"optimizer\""},
    {"a block of another parameter", [](TestFile &f) { in(f, "segment.0", "v").name = "q"; },
     "program \"segment.0\", input \"q\" (role parameter): forward has no input \"q\" of role parameter"},
};

TEST(VerifyNames, TheFileItselfLoads) { EXPECT_NO_THROW(Binary::fromMemory(goodFile().serialize())); }

TEST(VerifyNames, EveryRuleIsSaid) {
  for (const NameRule &rule : nameRules) {
    SCOPED_TRACE(rule.what);
    TestFile file = goodFile();
    rule.change(file);
    EXPECT_ERROR(Binary::fromMemory(file.serialize()), FileCorrupt, rule.message);
  }
}

// A name of state is its prefix and the parameter's: two may come to the same key.
TEST(VerifyNames, TwoStatesOfOneKey) {
  TestFile file = makeHeadFile({.parameter = "w"}), other = makeHeadFile({.parameter = "b.w"});
  in(file, "optimizer", "u.w").name = out(file, "optimizer", "u.w").name = "m.b.w";
  in(other, "optimizer", "u.b.w").name = out(other, "optimizer", "u.b.w").name = "m.b.w";
  DeviceRef device = Device::open("cpu");
  auto both = [&] {
    return Session(device, {{"a", Binary::fromMemory(file.serialize())}, {"b", Binary::fromMemory(other.serialize())}});
  };
  EXPECT_ERROR(both(), FileCorrupt, "module \"b\": two optimizer states are called \"m.b.w\"");
}
