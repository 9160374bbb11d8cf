//===- DerivativeCases.cpp - small graphs to differentiate ----------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "DerivativeCases.h"

using namespace segue;

std::string DerivativeCase::module() const {
  std::string text = "func.func @forward(", separator;
  for (const CaseArgument &argument : arguments) {
    bool isFloat = argument.type.find('f') != std::string::npos;
    std::string role = argument.frozen ? "frozen" : isFloat ? "parameter" : "input";
    text += separator + "%" + argument.name + ": " + argument.type + " {segue.name = \"" + argument.name +
            "\", segue.role = #segue.role<" + role + ">}";
    separator = ", ";
  }
  text += ") -> (";
  std::string values, types;
  separator = "";
  for (const auto &[name, type] : results) {
    text += separator + type + " {segue.name = \"" + name + "\", segue.role = #segue.role<output>}";
    values += separator + "%" + name;
    types += separator + type;
    separator = ", ";
  }
  return text + ") {\n" + body + "\n  return " + values + " : " + types + "\n}\n";
}

static std::string tensor(const std::string &shape, const std::string &element = "f32") {
  return "tensor<" + shape + (shape.empty() ? "" : "x") + element + ">";
}

static std::string shapeName(std::string shape) { return shape.empty() ? "scalar" : shape; }

static void addUnary(std::vector<DerivativeCase> &cases) {
  struct Unary {
    std::string name;
    double low = -2, high = 2;
  };
  const std::vector<Unary> ops = {{"neg"},
                                  {"abs"},
                                  {"sign"},
                                  {"floor", 0.1, 0.9},
                                  {"ceil", 0.1, 0.9},
                                  {"trunc", 0.1, 0.9},
                                  {"round", 0.1, 0.4},
                                  {"log1p", -0.5, 2},
                                  {"exp"},
                                  {"expm1"},
                                  {"log", 0.2, 3},
                                  {"sqrt", 0.2, 3},
                                  {"rsqrt", 0.2, 3},
                                  {"sin"},
                                  {"cos"},
                                  {"tanh"},
                                  {"erf"},
                                  {"sigmoid"},
                                  {"silu"},
                                  {"relu"},
                                  {"gelu erf", -4, 4},
                                  {"gelu tanh", -4, 4}};
  for (const Unary &op : ops)
    for (std::string shape : {"", "1", "7", "3x1x5"})
      for (std::string element : {"f32", "bf16"}) {
        if (element == "bf16" && shape != "7")
          continue;
        std::string type = tensor(shape, element), name = op.name;
        for (char &c : name)
          c = c == ' ' ? '_' : c;
        cases.push_back({name + "_" + shapeName(shape) + "_" + element,
                         {{"x", type, op.low, op.high}},
                         "  %y = segue." + op.name + " %x : " + type,
                         {{"y", type}}});
      }
}

static void addBinary(std::vector<DerivativeCase> &cases) {
  for (std::string op : {"add", "sub", "mul", "div", "max", "min", "pow", "rem"})
    for (std::string shape : {"", "1", "3x5"})
      for (std::string element : {"f32", "f16"}) {
        if (element == "f16" && shape != "3x5")
          continue;
        std::string type = tensor(shape, element);
        cases.push_back({op + "_" + shapeName(shape) + "_" + element,
                         {{"a", type, 0.3, 2}, {"b", type, op == "pow" ? -2 : 0.3, 2}},
                         "  %y = segue." + op + " %a, %b : " + type,
                         {{"y", type}}});
      }
  std::string type = tensor("3x5");
  // One operand alone, each side; and one value as both.
  for (std::string op : {"sub", "mul", "div", "max", "min", "pow", "rem"}) {
    cases.push_back({op + "_left",
                     {{"a", type, 0.3, 2}, {"b", type, 0.3, 2, true}},
                     "  %y = segue." + op + " %a, %b : " + type,
                     {{"y", type}}});
    cases.push_back({op + "_right",
                     {{"a", type, 0.3, 2, true}, {"b", type, 0.3, 2}},
                     "  %y = segue." + op + " %a, %b : " + type,
                     {{"y", type}}});
  }
  // What is detached is constant anyway where the difference is taken.
  cases.push_back({"detach",
                   {{"a", type}},
                   "  %f = segue.floor %a : " + type + "\n  %d = segue.detach %f : " + type +
                       "\n  %y = segue.mul %a, %d : " + type,
                   {{"y", type}}});
  cases.push_back({"mul_square", {{"a", type}}, "  %y = segue.mul %a, %a : " + type, {{"y", type}}});
  cases.push_back({"select",
                   {{"c", tensor("3x5", "i1"), 0, 2}, {"a", type}, {"b", type}},
                   "  %y = segue.select %c, %a, %b : tensor<3x5xi1>, " + type,
                   {{"y", type}}});
  // The condition depends on the value, the gradient does not pass through it.
  cases.push_back({"select_by_compare",
                   {{"a", type}, {"b", type}},
                   "  %c = segue.compare gt %a, %b : " + type +
                       " -> tensor<3x5xi1>\n"
                       "  %y = segue.select %c, %a, %b : tensor<3x5xi1>, " +
                       type,
                   {{"y", type}}});
  cases.push_back({"cast_down",
                   {{"a", type}},
                   "  %y = segue.cast %a : " + type + " -> tensor<3x5xbf16>",
                   {{"y", "tensor<3x5xbf16>"}}});
  cases.push_back(
      {"cast_up", {{"a", "tensor<3x5xf16>"}}, "  %y = segue.cast %a : tensor<3x5xf16> -> " + type, {{"y", type}}});
}

static void addShape(std::vector<DerivativeCase> &cases) {
  auto add = [&](std::string name, std::string from, std::string op, std::string to) {
    cases.push_back({name,
                     {{"x", tensor(from)}},
                     "  %y = segue." + op + " : " + tensor(from) + " -> " + tensor(to),
                     {{"y", tensor(to)}}});
  };
  add("reshape", "3x4", "reshape %x", "2x1x6");
  add("reshape_to_scalar", "1x1", "reshape %x", "");
  add("transpose", "2x3x5", "transpose %x [2, 0, 1]", "5x2x3");
  add("transpose_unit", "1x3", "transpose %x [1, 0]", "3x1");
  add("broadcast_new_dims", "5", "broadcast %x dims [1]", "3x5x2");
  add("broadcast_unit", "3x1", "broadcast %x dims [0, 1]", "3x4");
  add("broadcast_both", "1x4", "broadcast %x dims [1, 2]", "2x3x4");
  add("broadcast_scalar", "", "broadcast %x dims []", "2x3");
  add("broadcast_unit_stays", "1x3", "broadcast %x dims [0, 2]", "1x2x3");
  add("slice", "5x6", "slice %x [1, 2] to [4, 6] by [1, 1]", "3x4");
  add("slice_steps", "7x8", "slice %x [1, 0] to [7, 8] by [3, 2]", "2x4");
  add("slice_ragged", "8", "slice %x [1] to [6] by [3]", "2");
  add("slice_one", "3x3", "slice %x [2, 1] to [3, 2] by [1, 1]", "1x1");
  add("pad", "2x3", "pad %x low [1, 0] high [0, 2] interior [0, 0] value 0.5 : f32", "3x5");
  add("pad_interior", "3x2", "pad %x low [0, 1] high [2, 0] interior [2, 1] value 0.0 : f32", "9x4");
  cases.push_back({"concat",
                   {{"a", tensor("2x3")}, {"b", tensor("2x1")}, {"c", tensor("2x4"), -1, 1, true}},
                   "  %y = segue.concat %a, %c, %b dim 1 : tensor<2x3xf32>, tensor<2x4xf32>, tensor<2x1xf32> -> "
                   "tensor<2x8xf32>",
                   {{"y", tensor("2x8")}}});
  cases.push_back({"concat_twice",
                   {{"a", tensor("2x3")}},
                   "  %y = segue.concat %a, %a dim 0 : tensor<2x3xf32>, tensor<2x3xf32> -> tensor<4x3xf32>",
                   {{"y", tensor("4x3")}}});
  cases.push_back({"to_layout",
                   {{"a", tensor("2x3")}},
                   "  %y = segue.to_layout %a : tensor<2x3xf32> -> tensor<2x3xf32, #segue.layout<strides = [1, 2]>>",
                   {{"y", "tensor<2x3xf32, #segue.layout<strides = [1, 2]>>"}}});
  // Slices that tile, in another order than they lie, and ones that overlap.
  cases.push_back({"slices_tile",
                   {{"x", tensor("2x6")}},
                   "  %a = segue.slice %x [0, 0] to [2, 1] by [1, 1] : tensor<2x6xf32> -> tensor<2x1xf32>\n"
                   "  %c = segue.slice %x [0, 3] to [2, 6] by [1, 1] : tensor<2x6xf32> -> tensor<2x3xf32>\n"
                   "  %b = segue.slice %x [0, 1] to [2, 3] by [1, 1] : tensor<2x6xf32> -> tensor<2x2xf32>\n"
                   "  %u = segue.exp %a : tensor<2x1xf32>\n  %v = segue.sin %b : tensor<2x2xf32>\n"
                   "  %w = segue.tanh %c : tensor<2x3xf32>",
                   {{"w", tensor("2x3")}, {"u", tensor("2x1")}, {"v", tensor("2x2")}}});
  cases.push_back({"slices_overlap",
                   {{"x", tensor("6")}},
                   "  %a = segue.slice %x [0] to [4] by [1] : tensor<6xf32> -> tensor<4xf32>\n"
                   "  %b = segue.slice %x [2] to [6] by [1] : tensor<6xf32> -> tensor<4xf32>\n"
                   "  %y = segue.mul %a, %b : tensor<4xf32>",
                   {{"y", tensor("4")}}});
  for (std::string kind : {"sum", "mean", "max", "min"}) {
    add("reduce_" + kind + "_all", "3x4", "reduce " + kind + " %x dims [0, 1]", "");
    add("reduce_" + kind + "_last", "3x5", "reduce " + kind + " %x dims [1]", "3");
    add("reduce_" + kind + "_first", "3x1x5", "reduce " + kind + " %x dims [0, 1]", "5");
    add("reduce_" + kind + "_unit", "1", "reduce " + kind + " %x dims [0]", "");
  }
  cases.push_back({"reduce_max_bf16",
                   {{"x", tensor("3x5", "bf16")}},
                   "  %y = segue.reduce max %x dims [1] : tensor<3x5xbf16> -> tensor<3xbf16>",
                   {{"y", tensor("3", "bf16")}}});
}

static void addContractions(std::vector<DerivativeCase> &cases) {
  auto dot = [&](std::string name, std::string lhs, std::string rhs, std::string how, std::string to,
                 std::string element = "f32", std::string result = "f32") {
    cases.push_back({"dot_" + name,
                     {{"a", tensor(lhs, element)}, {"b", tensor(rhs, element)}},
                     "  %y = segue.dot_general %a, %b " + how + " : " + tensor(lhs, element) + ", " +
                         tensor(rhs, element) + " -> " + tensor(to, result),
                     {{"y", tensor(to, result)}}});
  };
  dot("matmul", "3x4", "4x5", "batch [] x [] contract [1] x [0]", "3x5");
  dot("linear", "2x3x4", "5x4", "batch [] x [] contract [2] x [1]", "2x3x5");
  dot("transposed_both", "4x3", "5x4", "batch [] x [] contract [0] x [1]", "3x5");
  dot("transposed_left", "4x3", "4x5", "batch [] x [] contract [0] x [0]", "3x5");
  dot("batched", "2x3x4", "2x4x5", "batch [0] x [0] contract [2] x [1]", "2x3x5");
  dot("batch_inside", "3x2x4", "4x5x2", "batch [1] x [2] contract [2] x [0]", "2x3x5");
  dot("two_batches_swapped", "2x3x4x1", "3x1x2x5", "batch [0, 1] x [2, 0] contract [3] x [1]", "2x3x4x5");
  dot("two_contracted_swapped", "2x3x4", "4x2x5", "batch [] x [] contract [0, 2] x [1, 0]", "3x5");
  dot("inner", "4", "4", "batch [] x [] contract [0] x [0]", "");
  dot("outer", "3", "4", "batch [] x [] contract [] x []", "3x4");
  dot("ones", "1x1", "1x1", "batch [] x [] contract [1] x [0]", "1x1");
  dot("bf16", "3x4", "4x5", "batch [] x [] contract [1] x [0]", "3x5", "bf16", "bf16");
  dot("bf16_to_f32", "3x4", "4x5", "batch [] x [] contract [1] x [0]", "3x5", "bf16", "f32");
  cases.push_back({"dot_bias",
                   {{"a", tensor("3x4")}, {"b", tensor("4x5")}, {"c", tensor("5")}},
                   "  %y = segue.dot_general %a, %b bias %c : tensor<5xf32> batch [] x [] contract [1] x [0] : "
                   "tensor<3x4xf32>, tensor<4x5xf32> -> tensor<3x5xf32>",
                   {{"y", tensor("3x5")}}});
  cases.push_back({"dot_square",
                   {{"a", tensor("3x3")}},
                   "  %y = segue.dot_general %a, %a batch [] x [] contract [1] x [0] : tensor<3x3xf32>, "
                   "tensor<3x3xf32> -> tensor<3x3xf32>",
                   {{"y", tensor("3x3")}}});

  auto attention = [&](std::string name, std::string options, std::vector<CaseArgument> others, bool lse,
                       std::string element = "f32") {
    std::string q = tensor("2x1x3x4", element), k = tensor("2x1x5x4", element);
    std::vector<CaseArgument> arguments{{"q", q}, {"k", k}, {"v", k}};
    arguments.insert(arguments.end(), others.begin(), others.end());
    std::vector<std::pair<std::string, std::string>> results{{"o", q}};
    if (lse)
      results.push_back({"l", tensor("2x1x3")});
    cases.push_back(
        {"attention_" + name, arguments,
         "  %o, %l = segue.attention %q, %k, %v " + options + " scale 0.5 : " + q + ", " + k + " -> tensor<2x1x3xf32>",
         results});
  };
  attention("plain", "", {}, false);
  attention("causal", "causal", {}, false);
  attention("bf16", "causal", {}, false, "bf16");
  attention("lse", "", {}, true);
  attention("causal_lse", "causal", {}, true);
  attention("bool_mask", "mask %m : tensor<1x1x3x5xi1>", {{"m", "tensor<1x1x3x5xi1>", 0, 2}}, true);
  attention("float_mask", "mask %m : tensor<2x1x3x5xf32>", {{"m", "tensor<2x1x3x5xf32>"}}, false);
  CaseArgument seed{"seed", "tensor<i64>", 0, 1000}, step{"step", "tensor<i64>", 0, 9};
  attention("dropout", "dropout 0.4 by %seed, %step id 3 causal", {seed, step}, true);
  attention("dropout_bf16", "dropout 0.4 by %seed, %step id 3", {seed, step}, false, "bf16");
  attention("dropout_bool_mask", "mask %m : tensor<1x1x3x5xi1> dropout 0.4 by %seed, %step id 3",
            {{"m", "tensor<1x1x3x5xi1>", 0, 2}, seed, step}, false);
  attention("dropout_float_mask", "mask %m : tensor<2x1x3x5xf32> dropout 0.4 by %seed, %step id 3",
            {{"m", "tensor<2x1x3x5xf32>"}, seed, step}, true);
  attention("float_mask_repeated", "mask %m : tensor<1x1x1x5xf32> causal", {{"m", "tensor<1x1x1x5xf32>"}}, true);
  for (std::string element : {"f32", "bf16"}) {
    std::string x = tensor("2x4x5x4", element), w = tensor("6x2x3x2", element), y = tensor("2x6x3x5", element);
    std::string window = " strides [2, 1] low [1, 0] high [1, 3] dilations [1, 2] groups 2 : ";
    cases.push_back({"conv2d_" + element,
                     {{"x", x}, {"w", w}, {"b", tensor("6", element)}},
                     "  %y = segue.conv2d %x, %w bias %b : " + tensor("6", element) + window + x + ", " + w + " -> " + y,
                     {{"y", y}}});
    cases.push_back({"conv2d_input_grad_" + element,
                     {{"g", y}, {"w", w}},
                     "  %y = segue.conv2d_input_grad %g, %w" + window + y + ", " + w + " -> " + x,
                     {{"y", x}}});
    cases.push_back({"conv2d_weight_grad_" + element,
                     {{"g", y}, {"x", x}},
                     "  %y = segue.conv2d_weight_grad %g, %x" + window + y + ", " + x + " -> " + w,
                     {{"y", w}}});
  }
  std::string window = " strides [2, 1, 1] low [1, 0, 1] high [0, 2, 0] dilations [1, 2, 1] groups 2 : ";
  std::string x = tensor("2x2x3x4x2"), w = tensor("4x1x2x2x2"), y = tensor("2x4x2x4x2");
  cases.push_back({"conv3d",
                   {{"x", x}, {"w", w}, {"b", tensor("4")}},
                   "  %y = segue.conv3d %x, %w bias %b : " + tensor("4") + window + x + ", " + w + " -> " + y,
                   {{"y", y}}});
  cases.push_back({"conv3d_input_grad",
                   {{"g", y}, {"w", w}},
                   "  %y = segue.conv3d_input_grad %g, %w" + window + y + ", " + w + " -> " + x,
                   {{"y", x}}});
  cases.push_back({"conv3d_weight_grad",
                   {{"g", y}, {"x", x}},
                   "  %y = segue.conv3d_weight_grad %g, %x" + window + y + ", " + x + " -> " + w,
                   {{"y", w}}});
  // One group has no row, and one row no group.
  std::string ends = "  %e = segue.constant dense<[2, 2, 5]> : tensor<3xi32>\n", r = tensor("6x3"), g = tensor("6x2");
  for (std::string order : {"", "transposed "}) {
    std::string matrices = tensor(order.empty() ? "3x3x2" : "3x2x3");
    cases.push_back({"grouped_dot" + order.substr(0, 5),
                     {{"r", r}, {"m", matrices}},
                     ends + "  %y = segue.grouped_dot %r, %m " + order + "by %e : " + r + ", " + matrices +
                         ", tensor<3xi32> -> " + g,
                     {{"y", g}}});
  }
  cases.push_back({"grouped_outer",
                   {{"a", r}, {"b", g}},
                   ends + "  %y = segue.grouped_outer %a, %b by %e : " + r + ", " + g + ", tensor<3xi32> -> " +
                       tensor("3x3x2"),
                   {{"y", tensor("3x3x2")}}});
  attention("frozen_mask", "mask %m : tensor<1x1x3x5xf32>", {{"m", "tensor<1x1x3x5xf32>", -1, 1, true}}, false);
}

static void addNormalizations(std::vector<DerivativeCase> &cases) {
  struct Rows {
    std::string shape, statistics, columns;
  };
  for (Rows rows : {Rows{"3x5", "3", "5"}, {"2x1x7", "2x1", "7"}, {"5", "", "5"}})
    for (std::string element : {"f32", "bf16"}) {
      std::string x = tensor(rows.shape, element), s = tensor(rows.statistics), g = tensor(rows.columns, element);
      std::string suffix = rows.shape + "_" + element;
      cases.push_back(
          {"layer_norm_" + suffix,
           {{"x", x}, {"g", g}, {"b", g}},
           "  %y, %m, %r = segue.layer_norm %x gamma %g : " + g + " beta %b : " + g + " eps 1.0e-2 : " + x + " -> " + s,
           {{"y", x}}});
      cases.push_back({"layer_norm_statistics_" + suffix,
                       {{"x", x}, {"g", g}},
                       "  %y, %m, %r = segue.layer_norm %x gamma %g : " + g + " eps 1.0e-2 : " + x + " -> " + s,
                       {{"y", x}, {"m", s}, {"r", s}}});
      cases.push_back({"rms_norm_" + suffix,
                       {{"x", x}, {"g", g}},
                       "  %y, %r = segue.rms_norm %x gamma %g : " + g + " eps 1.0e-2 : " + x + " -> " + s,
                       {{"y", x}}});
      cases.push_back({"rms_norm_statistics_" + suffix,
                       {{"x", x}},
                       "  %y, %r = segue.rms_norm %x eps 1.0e-2 : " + x + " -> " + s,
                       {{"y", x}, {"r", s}}});
    }
  std::string x = tensor("3x5"), g = tensor("5");
  cases.push_back({"layer_norm_bare",
                   {{"x", x}},
                   "  %y, %m, %r = segue.layer_norm %x eps 1.0e-2 : " + x + " -> tensor<3xf32>",
                   {{"y", x}}});
  cases.push_back({"layer_norm_beta_alone",
                   {{"x", x}, {"b", g}},
                   "  %y, %m, %r = segue.layer_norm %x beta %b : " + g + " eps 1.0e-2 : " + x + " -> tensor<3xf32>",
                   {{"y", x}}});
  cases.push_back({"layer_norm_frozen_input",
                   {{"x", x, -1, 1, true}, {"g", g}, {"b", g}},
                   "  %y, %m, %r = segue.layer_norm %x gamma %g : " + g + " beta %b : " + g + " eps 1.0e-2 : " + x +
                       " -> tensor<3xf32>",
                   {{"y", x}}});
  cases.push_back({"layer_norm_frozen_scale",
                   {{"x", x}, {"g", g, -1, 1, true}},
                   "  %y, %m, %r = segue.layer_norm %x gamma %g : " + g + " eps 1.0e-2 : " + x + " -> tensor<3xf32>",
                   {{"y", x}}});
  for (std::string direction : {"dim 0", "dim 1 reverse", "dim 2"})
    cases.push_back({"cumsum_" + direction.substr(0, 3) + direction.substr(4, 1),
                     {{"x", tensor("3x4x5")}},
                     "  %y = segue.cumsum %x " + direction + " : tensor<3x4x5xf32>",
                     {{"y", tensor("3x4x5")}}});
  for (std::string dim : {"0", "1", "2"})
    cases.push_back({"cummax_" + dim,
                     {{"x", tensor("3x4x5")}},
                     "  %y = segue.cummax %x dim " + dim + " : tensor<3x4x5xf32>",
                     {{"y", tensor("3x4x5")}}});
  for (std::string direction : {"0", "1 reverse", "2"})
    for (std::string element : {"f32", "bf16"})
      cases.push_back({"recurrence_" + direction.substr(0, 1) + "_" + element,
                       {{"a", tensor("3x4x5", element)}, {"x", tensor("3x4x5", element)}},
                       "  %y = segue.recurrence %a, %x dim " + direction + " : " + tensor("3x4x5", element),
                       {{"y", tensor("3x4x5", element)}}});
  for (std::string op : {"softmax", "log_softmax"}) {
    for (std::string dim : {"0", "1", "2"})
      cases.push_back({op + "_dim_" + dim,
                       {{"x", tensor("3x1x5"), -3, 3}},
                       "  %y = segue." + op + " %x dim " + dim + " : tensor<3x1x5xf32>",
                       {{"y", tensor("3x1x5")}}});
    cases.push_back({op + "_bf16",
                     {{"x", tensor("3x5", "bf16"), -3, 3}},
                     "  %y = segue." + op + " %x dim 1 : tensor<3x5xbf16>",
                     {{"y", tensor("3x5", "bf16")}}});
  }
  // Targets from 0 to 4; those that are 2 are ignored in the second.
  for (std::string index : {"i32", "i64"})
    for (std::string ignored : {"-100", "2"})
      for (bool lse : {false, true}) {
        std::vector<std::pair<std::string, std::string>> results{{"l", tensor("7")}};
        if (lse)
          results.push_back({"s", tensor("7")});
        cases.push_back({"cross_entropy_" + index + (ignored == "2" ? "_ignored" : "") + (lse ? "_lse" : ""),
                         {{"x", tensor("7x5"), -3, 3}, {"t", tensor("7", index), 0, 5}},
                         "  %l, %s = segue.cross_entropy %x, %t ignore_index " + ignored + " : tensor<7x5xf32>, " +
                             tensor("7", index) + " -> tensor<7xf32>",
                         results});
      }
  cases.push_back({"cross_entropy_bf16",
                   {{"x", tensor("1x3", "bf16")}, {"t", tensor("1", "i64"), 0, 3}},
                   "  %l, %s = segue.cross_entropy %x, %t ignore_index -100 : tensor<1x3xbf16>, tensor<1xi64> -> "
                   "tensor<1xf32>",
                   {{"l", tensor("1")}}});
}

static void addIndexing(std::vector<DerivativeCase> &cases) {
  for (std::string element : {"f32", "bf16"}) {
    std::string table = tensor("4x3", element), rows = tensor("2x5x3", element);
    cases.push_back({"gather_" + element,
                     {{"t", table}, {"i", tensor("2x5", "i64"), 0, 4}},
                     "  %y = segue.gather %t[%i] : " + table + ", tensor<2x5xi64> -> " + rows,
                     {{"y", rows}}});
    cases.push_back({"scatter_add_" + element,
                     {{"u", rows}, {"i", tensor("2x5", "i32"), 0, 4}},
                     "  %y = segue.scatter_add %u[%i] : " + rows + ", tensor<2x5xi32> -> " + table,
                     {{"y", table}}});
    cases.push_back({"scatter_add_into_" + element,
                     {{"u", rows}, {"i", tensor("2x5", "i32"), 0, 4}, {"t", table}},
                     "  %y = segue.scatter_add %u[%i] into %t : " + rows + ", tensor<2x5xi32> -> " + table,
                     {{"y", table}}});
  }
  cases.push_back({"gather_numbers",
                   {{"t", tensor("5")}, {"i", tensor("3", "i32"), 0, 5}},
                   "  %y = segue.gather %t[%i] : tensor<5xf32>, tensor<3xi32> -> tensor<3xf32>",
                   {{"y", tensor("3")}}});
}

/// Whole graphs: branches that join, tied weights, dropout, several outputs.
static void addGraphs(std::vector<DerivativeCase> &cases) {
  cases.push_back({"graph_residual_mlp",
                   {{"x", tensor("3x4")}, {"w1", tensor("6x4")}, {"b1", tensor("6")}, {"w2", tensor("4x6")}},
                   R"(
  %h0 = segue.dot_general %x, %w1 batch [] x [] contract [1] x [1] : tensor<3x4xf32>, tensor<6x4xf32> -> tensor<3x6xf32>
  %b = segue.broadcast %b1 dims [1] : tensor<6xf32> -> tensor<3x6xf32>
  %h = segue.add %h0, %b : tensor<3x6xf32>
  %a = segue.gelu tanh %h : tensor<3x6xf32>
  %m = segue.dot_general %a, %w2 batch [] x [] contract [1] x [1] : tensor<3x6xf32>, tensor<4x6xf32> -> tensor<3x4xf32>
  %y = segue.add %x, %m : tensor<3x4xf32>)",
                   {{"y", tensor("3x4")}}});
  cases.push_back({"graph_tied_embedding_loss",
                   {{"wte", tensor("5x4")}, {"ids", tensor("3", "i64"), 0, 5}, {"targets", tensor("3", "i64"), 0, 5}},
                   R"(
  %e = segue.gather %wte[%ids] : tensor<5x4xf32>, tensor<3xi64> -> tensor<3x4xf32>
  %t = segue.tanh %e : tensor<3x4xf32>
  %logits = segue.dot_general %t, %wte batch [] x [] contract [1] x [1] : tensor<3x4xf32>, tensor<5x4xf32> -> tensor<3x5xf32>
  %l, %s = segue.cross_entropy %logits, %targets ignore_index -100 : tensor<3x5xf32>, tensor<3xi64> -> tensor<3xf32>
  %loss = segue.reduce mean %l dims [0] : tensor<3xf32> -> tensor<f32>)",
                   {{"loss", tensor("")}}});
  cases.push_back({"graph_dropout",
                   {{"x", tensor("4x5")}, {"seed", tensor("", "i64"), 3, 4}, {"step", tensor("", "i64"), 1, 2}},
                   R"(
  %u = segue.random %seed, %step id 3 : tensor<4x5xf32>
  %p = segue.constant dense<0.25> : tensor<4x5xf32>
  %k = segue.compare ge %u, %p : tensor<4x5xf32> -> tensor<4x5xi1>
  %scale = segue.constant dense<1.5> : tensor<4x5xf32>
  %zero = segue.constant dense<0.0> : tensor<4x5xf32>
  %s = segue.mul %x, %scale : tensor<4x5xf32>
  %d = segue.select %k, %s, %zero : tensor<4x5xi1>, tensor<4x5xf32>
  %y = segue.exp %d : tensor<4x5xf32>)",
                   {{"y", tensor("4x5")}}});
  cases.push_back({"graph_attention_block",
                   {{"x", tensor("2x3x4")}, {"g", tensor("4"), 0.5, 1.5}, {"b", tensor("4")}, {"w", tensor("12x4")}},
                   R"(
  %n, %mean, %rstd = segue.layer_norm %x gamma %g : tensor<4xf32> beta %b : tensor<4xf32> eps 1.0e-2 : tensor<2x3x4xf32> -> tensor<2x3xf32>
  %qkv = segue.dot_general %n, %w batch [] x [] contract [2] x [1] : tensor<2x3x4xf32>, tensor<12x4xf32> -> tensor<2x3x12xf32>
  %q0 = segue.slice %qkv [0, 0, 0] to [2, 3, 4] by [1, 1, 1] : tensor<2x3x12xf32> -> tensor<2x3x4xf32>
  %k0 = segue.slice %qkv [0, 0, 4] to [2, 3, 8] by [1, 1, 1] : tensor<2x3x12xf32> -> tensor<2x3x4xf32>
  %v0 = segue.slice %qkv [0, 0, 8] to [2, 3, 12] by [1, 1, 1] : tensor<2x3x12xf32> -> tensor<2x3x4xf32>
  %q1 = segue.reshape %q0 : tensor<2x3x4xf32> -> tensor<2x3x2x2xf32>
  %k1 = segue.reshape %k0 : tensor<2x3x4xf32> -> tensor<2x3x2x2xf32>
  %v1 = segue.reshape %v0 : tensor<2x3x4xf32> -> tensor<2x3x2x2xf32>
  %q = segue.transpose %q1 [0, 2, 1, 3] : tensor<2x3x2x2xf32> -> tensor<2x2x3x2xf32>
  %k = segue.transpose %k1 [0, 2, 1, 3] : tensor<2x3x2x2xf32> -> tensor<2x2x3x2xf32>
  %v = segue.transpose %v1 [0, 2, 1, 3] : tensor<2x3x2x2xf32> -> tensor<2x2x3x2xf32>
  %o, %lse = segue.attention %q, %k, %v causal scale 0.7 : tensor<2x2x3x2xf32>, tensor<2x2x3x2xf32> -> tensor<2x2x3xf32>
  %o1 = segue.transpose %o [0, 2, 1, 3] : tensor<2x2x3x2xf32> -> tensor<2x3x2x2xf32>
  %o2 = segue.reshape %o1 : tensor<2x3x2x2xf32> -> tensor<2x3x4xf32>
  %y = segue.add %x, %o2 : tensor<2x3x4xf32>)",
                   {{"y", tensor("2x3x4")}}});
  cases.push_back({"graph_several_outputs",
                   {{"x", tensor("4")}, {"w", tensor("4"), 0.5, 2}},
                   "  %y = segue.mul %x, %w : tensor<4xf32>\n  %z = segue.log %w : tensor<4xf32>\n"
                   "  %v = segue.mul %y, %z : tensor<4xf32>",
                   {{"y", tensor("4")}, {"z", tensor("4")}, {"v", tensor("4")}, {"again", tensor("4")}}});
  cases.back().body += "\n  %again = segue.exp %y : tensor<4xf32>";
}

std::vector<DerivativeCase> segue::derivativeCases() {
  std::vector<DerivativeCase> cases;
  addUnary(cases);
  addBinary(cases);
  addShape(cases);
  addContractions(cases);
  addNormalizations(cases);
  addIndexing(cases);
  addGraphs(cases);
  return cases;
}
