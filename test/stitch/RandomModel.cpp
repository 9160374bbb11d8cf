//===- RandomModel.cpp - small models and their cuts ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RandomModel.h"
#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

using namespace segue::test;
using Shape = std::vector<int64_t>;

int64_t ModelValue::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>());
}

std::string segue::test::valueName(size_t value) { return "v" + std::to_string(value); }

std::string segue::test::tensorType(const Shape &shape, const std::string &element, const std::string &layout) {
  std::string text = "tensor<";
  for (int64_t extent : shape)
    text += std::to_string(extent) + "x";
  return text + element + (layout.empty() ? "" : ", " + layout) + ">";
}

static std::string list(const Shape &numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i)
    text += (i ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

//===----------------------------------------------------------------------===//
// Graphs
//===----------------------------------------------------------------------===//

namespace {
class Builder {
public:
  Builder(std::mt19937_64 &random, int64_t scale) : random(random), scale(scale) {}

  RandomModel build() {
    for (int64_t i = 1 + below(2); i-- > 0;)
      addValue(ModelValue::Kind::Input, {scale * oneOf({1, 2, 3, 5, 8, 12}), oneOf({1, 4, 6, 8, 16, 17})});
    if (below(4) == 0)
      embed();
    for (size_t count = size_t(4 + below(8)); model.ops.size() < count;)
      addSomething();
    std::set<size_t> read;
    for (const ModelOp &op : model.ops)
      read.insert(op.operands.begin(), op.operands.end());
    for (const ModelOp &op : model.ops)
      if (!read.contains(op.result) || below(10) == 0)
        model.outputs.push_back(op.result);
    return std::move(model);
  }

private:
  int64_t below(int64_t limit) { return int64_t(random() % uint64_t(limit)); }
  int64_t oneOf(std::initializer_list<int64_t> choices) { return choices.begin()[below(int64_t(choices.size()))]; }

  size_t addValue(ModelValue::Kind kind, Shape shape, std::string element = "f32", int64_t bound = 0) {
    model.values.push_back({kind, std::move(shape), std::move(element), bound});
    return model.values.size() - 1;
  }
  size_t parameter(Shape shape) {
    // Now and then one that is there already: shared.
    if (below(4) == 0)
      for (size_t i = 0; i < model.values.size(); ++i)
        if (model.values[i].kind == ModelValue::Kind::Parameter && model.values[i].shape == shape)
          return i;
    return addValue(ModelValue::Kind::Parameter, std::move(shape));
  }

  const Shape &shapeOf(size_t value) const { return model.values[value].shape; }
  std::string type(size_t value) const { return tensorType(shapeOf(value), model.values[value].element); }
  static std::string ref(size_t value) { return "%" + valueName(value); }

  /// An op with a result of `shape`: `text` is called with the result.
  template <typename Text>
  size_t addOp(std::vector<size_t> operands, Shape shape, const Text &text, std::string element = "f32") {
    size_t result = addValue(ModelValue::Kind::Result, std::move(shape), std::move(element));
    model.ops.push_back({text(result), std::move(operands), result});
    return result;
  }
  size_t unary(const std::string &name, size_t x) {
    return addOp({x}, shapeOf(x),
                 [&](size_t r) { return ref(r) + " = segue." + name + " " + ref(x) + " : " + type(x); });
  }
  size_t binary(const std::string &name, size_t a, size_t b) {
    return addOp({a, b}, shapeOf(a), [&](size_t r) {
      return ref(r) + " = segue." + name + " " + ref(a) + ", " + ref(b) + " : " + type(a);
    });
  }
  /// `name` operand `middle` : type -> type of the result.
  size_t reshaping(const std::string &name, size_t x, const std::string &middle, Shape shape) {
    return addOp({x}, shape, [&](size_t r) {
      return ref(r) + " = segue." + name + " " + ref(x) + middle + " : " + type(x) + " -> " + type(r);
    });
  }

  /// A value in f32 that is not a parameter, later ones rather than earlier.
  size_t pick() {
    std::vector<size_t> values;
    for (size_t i = 0; i < model.values.size(); ++i)
      if (model.values[i].kind != ModelValue::Kind::Parameter && model.values[i].element == "f32")
        values.push_back(i);
    size_t count = values.size();
    return values[std::max(size_t(below(int64_t(count))), size_t(below(int64_t(count))))];
  }
  /// Another value of the shape of `x`, or a parameter.
  size_t pickLike(size_t x) {
    std::vector<size_t> values;
    for (size_t i = 0; i < model.values.size(); ++i)
      if (i != x && shapeOf(i) == shapeOf(x) && model.values[i].element == "f32")
        values.push_back(i);
    return values.empty() ? parameter(shapeOf(x)) : values[size_t(below(int64_t(values.size())))];
  }

  void embed() {
    int64_t rows = 2 + below(9), width = oneOf({4, 8, 16});
    size_t table = parameter({rows, width});
    size_t indices = addValue(ModelValue::Kind::Input, {scale * oneOf({3, 6, 8})}, "i64", rows);
    addOp({table, indices}, {shapeOf(indices)[0], width}, [&](size_t r) {
      return ref(r) + " = segue.gather " + ref(table) + "[" + ref(indices) + "] : " + type(table) + ", " +
             type(indices) + " -> " + type(r);
    });
  }

  void matmul(size_t x) {
    const Shape shape = shapeOf(x);
    if (shape.empty())
      return;
    int64_t inner = shape.back(), columns = oneOf({1, 3, 4, 8, 16, 17});
    bool transposed = below(2);
    size_t weight = parameter(transposed ? Shape{columns, inner} : Shape{inner, columns});
    Shape result = shape;
    result.back() = columns;
    addOp({x, weight}, result, [&](size_t r) {
      return ref(r) + " = segue.dot_general " + ref(x) + ", " + ref(weight) + " batch [] x [] contract [" +
             std::to_string(shape.size() - 1) + "] x [" + (transposed ? "1" : "0") + "] : " + type(x) + ", " +
             type(weight) + " -> " + type(r);
    });
  }

  void norm(size_t x) {
    const Shape shape = shapeOf(x);
    if (shape.size() < 2 || shape.back() < 3)
      return;
    size_t gamma = parameter({shape.back()});
    Shape rows(shape.begin(), shape.end() - 1);
    std::string stats = tensorType(rows, "f32"), epsilon = " eps 1.0e-3 : ";
    if (below(2)) {
      addOp({x, gamma}, shape, [&](size_t r) {
        return ref(r) + ", " + ref(r) + "_r = segue.rms_norm " + ref(x) + " gamma " + ref(gamma) + " : " + type(gamma) +
               epsilon + type(x) + " -> " + stats;
      });
      return;
    }
    size_t beta = parameter({shape.back()});
    addOp({x, gamma, beta}, shape, [&](size_t r) {
      return ref(r) + ", " + ref(r) + "_m, " + ref(r) + "_r = segue.layer_norm " + ref(x) + " gamma " + ref(gamma) +
             " : " + type(gamma) + " beta " + ref(beta) + " : " + type(beta) + epsilon + type(x) + " -> " + stats;
    });
  }

  void reshape(size_t x) {
    Shape shape = shapeOf(x);
    if (shape.size() > 1 && below(2)) {
      size_t at = size_t(below(int64_t(shape.size()) - 1));
      shape[at] *= shape[at + 1];
      shape.erase(shape.begin() + std::ptrdiff_t(at) + 1);
    } else if (shape.size() < 4) {
      size_t at = shape.empty() ? 0 : size_t(below(int64_t(shape.size())));
      int64_t factor = !shape.empty() && shape[at] % 2 == 0 ? 2 : 1;
      if (!shape.empty())
        shape[at] /= factor;
      shape.insert(shape.begin() + std::ptrdiff_t(at), factor);
    }
    reshaping("reshape", x, "", shape);
  }

  void transpose(size_t x) {
    const Shape shape = shapeOf(x);
    if (shape.size() < 2)
      return;
    Shape permutation(shape.size()), result;
    std::iota(permutation.begin(), permutation.end(), 0);
    std::shuffle(permutation.begin(), permutation.end(), random);
    for (int64_t dim : permutation)
      result.push_back(shape[size_t(dim)]);
    reshaping("transpose", x, " " + list(permutation), result);
  }

  void reduce(size_t x) {
    Shape shape = shapeOf(x), dims;
    if (shape.empty())
      return;
    Shape result;
    for (size_t dim = 0; dim < shape.size(); ++dim)
      if (dims.empty() && (below(2) || dim + 1 == shape.size()))
        dims.push_back(int64_t(dim));
      else
        result.push_back(shape[dim]);
    const char *kinds[] = {"sum", "mean", "max"};
    reshaping(std::string("reduce ") + kinds[below(3)], x, " dims " + list(dims), result);
  }

  /// Adds a vector to the last dimension.
  void bias(size_t x) {
    const Shape shape = shapeOf(x);
    if (shape.empty())
      return;
    size_t vector = parameter({shape.back()});
    size_t wide = reshaping("broadcast", vector, " dims [" + std::to_string(shape.size() - 1) + "]", shape);
    binary("add", x, wide);
  }

  void slice(size_t x) {
    const Shape shape = shapeOf(x);
    Shape starts, limits, steps, result;
    for (int64_t extent : shape) {
      starts.push_back(below(extent));
      limits.push_back(starts.back() + 1 + below(extent - starts.back()));
      steps.push_back(1 + below(2));
      result.push_back((limits.back() - starts.back() + steps.back() - 1) / steps.back());
    }
    if (shape.empty() || result == shape)
      return;
    reshaping("slice", x, " " + list(starts) + " to " + list(limits) + " by " + list(steps), result);
  }

  void concat(size_t x) {
    Shape shape = shapeOf(x);
    if (shape.empty() || model.values[x].elements() > 1024)
      return;
    size_t y = pickLike(x), dim = size_t(below(int64_t(shape.size())));
    shape[dim] *= 2;
    addOp({x, y}, shape, [&](size_t r) {
      return ref(r) + " = segue.concat " + ref(x) + ", " + ref(y) + " dim " + std::to_string(dim) + " : " + type(x) +
             ", " + type(y) + " -> " + type(r);
    });
  }

  void narrowAndWiden(size_t x) {
    size_t narrow = addOp(
        {x}, shapeOf(x),
        [&](size_t r) { return ref(r) + " = segue.cast " + ref(x) + " : " + type(x) + " -> " + type(r); }, "bf16");
    reshaping("cast", narrow, "", shapeOf(x));
  }

  void attention(size_t x) {
    const Shape shape = shapeOf(x);
    if (shape.size() != 2 || shape[1] % 2)
      return;
    size_t heads = reshaping("reshape", x, "", {1, shape[0], 2, shape[1] / 2});
    size_t q = reshaping("transpose", heads, " [0, 2, 1, 3]", {1, 2, shape[0], shape[1] / 2});
    size_t k = below(2) ? q : unary("tanh", q);
    addOp({q, k}, shapeOf(q), [&](size_t r) {
      return ref(r) + ", " + ref(r) + "_l = segue.attention " + ref(q) + ", " + ref(k) + ", " + ref(k) +
             (below(2) ? " causal" : "") + " scale 0.5 : " + type(q) + ", " + type(k) + " -> " +
             tensorType({1, 2, shape[0]}, "f32");
    });
  }

  void choose(size_t a) {
    size_t b = pickLike(a);
    if (a == b)
      return;
    addOp({a, b}, shapeOf(a), [&](size_t r) {
      std::string flags = tensorType(shapeOf(a), "i1"), flag = ref(r) + "_c";
      return flag + " = segue.compare lt " + ref(a) + ", " + ref(b) + " : " + type(a) + " -> " + flags + "\n  " +
             ref(r) + " = segue.select " + flag + ", " + ref(a) + ", " + ref(b) + " : " + flags + ", " + type(a);
    });
  }

  void loss(size_t x) {
    const Shape shape = shapeOf(x);
    if (shape.size() != 2)
      return;
    size_t targets = addValue(ModelValue::Kind::Input, {shape[0]}, "i64", shape[1]);
    addOp({x, targets}, {shape[0]}, [&](size_t r) {
      return ref(r) + ", " + ref(r) + "_l = segue.cross_entropy " + ref(x) + ", " + ref(targets) +
             " ignore_index -100 : " + type(x) + ", " + type(targets) + " -> " + type(r);
    });
  }

  void addSomething() {
    size_t x = pick();
    static const char *unaries[] = {"tanh", "sigmoid", "silu", "gelu tanh", "gelu erf", "relu", "neg", "sin", "abs"};
    static const char *binaries[] = {"add", "sub", "mul", "max"};
    switch (below(20)) {
    case 0:
    case 1:
    case 2:
      unary(unaries[below(std::size(unaries))], x);
      return;
    case 3:
    case 4:
    case 5: {
      size_t other = pickLike(x); // one draw after the other: compilers differ in the order of arguments
      binary(binaries[below(std::size(binaries))], x, other);
      return;
    }
    case 6:
    case 7:
    case 8:
      return matmul(x);
    case 9:
      return norm(x);
    case 10:
      if (size_t rank = shapeOf(x).size(); rank > 0)
        unary(below(2) ? "softmax" : "log_softmax", x), addDim(int64_t(rank));
      return;
    case 11:
      return reshape(x);
    case 12:
      return transpose(x);
    case 13:
      return reduce(x);
    case 14:
      return bias(x);
    case 15:
      return slice(x);
    case 16:
      return concat(x);
    case 17:
      return narrowAndWiden(x);
    case 18:
      return attention(x);
    default:
      return below(2) ? choose(x) : loss(x);
    }
  }

  /// Gives the op that was added last a dimension: ` dim N` before its type.
  void addDim(int64_t rank) {
    std::string &text = model.ops.back().text;
    text.insert(text.find(" : "), " dim " + std::to_string(below(rank)));
  }

  std::mt19937_64 &random;
  int64_t scale;
  RandomModel model;
};
} // namespace

RandomModel RandomModel::make(std::mt19937_64 &random, int64_t scale) { return Builder(random, scale).build(); }

//===----------------------------------------------------------------------===//
// Cuts
//===----------------------------------------------------------------------===//

std::vector<size_t> RandomModel::cut(std::mt19937_64 &random, size_t pieces) const {
  std::set<size_t> ends = {ops.size()};
  for (size_t tries = 0; tries < 20 && ends.size() < pieces; ++tries)
    ends.insert(1 + random() % ops.size());
  return {ends.begin(), ends.end()};
}

ModelPiece::ModelPiece(const RandomModel &model, size_t begin, size_t end) : begin(begin), end(end) {
  std::set<size_t> made, read, readLater(model.outputs.begin(), model.outputs.end());
  for (size_t i = begin; i < end; ++i) {
    for (size_t operand : model.ops[i].operands)
      if (!made.contains(operand))
        read.insert(operand);
    made.insert(model.ops[i].result);
  }
  for (size_t i = end; i < model.ops.size(); ++i)
    readLater.insert(model.ops[i].operands.begin(), model.ops[i].operands.end());
  arguments.assign(read.begin(), read.end());
  std::ranges::set_intersection(made, readLater, std::back_inserter(results));
}

std::string ModelPiece::text(const RandomModel &model, const std::map<size_t, std::string> &layouts) const {
  std::ostringstream os;
  auto plain = [&](size_t value) { return tensorType(model.values[value].shape, model.values[value].element); };
  auto declared = [&](size_t value) {
    auto found = layouts.find(value);
    return tensorType(model.values[value].shape, model.values[value].element,
                      found == layouts.end() ? "" : found->second);
  };
  auto attributes = [](size_t value, const char *role) {
    return " {segue.name = \"" + valueName(value) + "\", segue.role = #segue.role<" + role + ">}";
  };
  os << "func.func @forward(";
  for (const char *comma = ""; size_t value : arguments) {
    bool isParameter = model.values[value].kind == ModelValue::Kind::Parameter;
    os << std::exchange(comma, ", ") << "%" << valueName(value) << (layouts.contains(value) ? "_in" : "") << ": "
       << declared(value) << attributes(value, isParameter ? "parameter" : "input");
  }
  os << ") -> (";
  for (const char *comma = ""; size_t value : results)
    os << std::exchange(comma, ", ") << declared(value) << attributes(value, "output");
  os << ") {\n";
  for (size_t value : arguments)
    if (layouts.contains(value))
      os << "  %" << valueName(value) << " = segue.to_layout %" << valueName(value) << "_in : " << declared(value)
         << " -> " << plain(value) << "\n";
  for (size_t i = begin; i < end; ++i)
    os << "  " << model.ops[i].text << "\n";
  for (size_t value : results)
    if (layouts.contains(value))
      os << "  %" << valueName(value) << "_out = segue.to_layout %" << valueName(value) << " : " << plain(value)
         << " -> " << declared(value) << "\n";
  os << "  return ";
  for (const char *comma = ""; size_t value : results)
    os << std::exchange(comma, ", ") << "%" << valueName(value) << (layouts.contains(value) ? "_out" : "");
  os << " : ";
  for (const char *comma = ""; size_t value : results)
    os << std::exchange(comma, ", ") << declared(value);
  os << "\n}\n";
  return os.str();
}

std::string segue::test::sumText(const Shape &shape, const std::string &element) {
  std::string type = tensorType(shape, element);
  return "func.func @forward(%a: " + type + " {segue.name = \"a\"}, %b: " + type + " {segue.name = \"b\"}) -> (" +
         type + " {segue.name = \"sum\"}) {\n  %sum = segue.add %a, %b : " + type + "\n  return %sum : " + type +
         "\n}\n";
}
