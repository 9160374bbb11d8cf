//===- RandomGraph.cpp - graphs of slices, pads and sums ------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "RandomGraph.h"
#include "RandomModel.h"
#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

using namespace segue::test;
using Shape = std::vector<int64_t>;

namespace {
class Drawing {
public:
  explicit Drawing(uint64_t seed) : random(seed * 0x9E3779B97F4A7C15u + 1), isWide(seed % 8 == 0) {}

  RandomGraph draw() {
    Shape shape = isWide ? Shape{2, 17 + below(8), 64} : drawShape();
    for (int64_t i = 2 + below(2); i-- > 0;)
      argument("input", shape);
    if (isWide) {
      // out[:, i] = f(x[:, i]), gated, projected: what a recurrence looks like.
      size_t out = writeSlices(0, 1, /*all=*/true);
      size_t gate = unary("tanh", 1);
      project(binary("mul", gate, out));
    }
    for (int64_t i = isWide ? below(3) : 3 + below(7); i-- > 0;)
      addSomething();
    return finish();
  }

private:
  struct Value {
    Shape shape;
    bool isArgument;
    bool isRead = false;
  };

  int64_t below(int64_t limit) { return int64_t(random() % uint64_t(limit)); }
  template <typename T> T oneOf(std::initializer_list<T> choices) {
    return choices.begin()[below(int64_t(choices.size()))];
  }

  Shape drawShape() {
    Shape shape;
    int64_t elements = 1;
    for (int64_t rank = 1 + below(4); rank-- > 0;) {
      int64_t extent = oneOf<int64_t>({1, 2, 3, 5, 7, 9, 16, 19, 33});
      if (elements * extent > 700)
        extent = 2;
      shape.push_back(extent);
      elements *= extent;
    }
    return shape;
  }

  //===--- Text ---===//
  static std::string ref(size_t value) { return "%" + valueName(value); }
  std::string type(size_t value) const { return tensorType(values[value].shape, "f32"); }
  static std::string list(const Shape &numbers) {
    std::string text = "[";
    for (size_t i = 0; i < numbers.size(); ++i)
      text += (i ? ", " : "") + std::to_string(numbers[i]);
    return text + "]";
  }

  size_t add(Shape shape, bool isArgument = false) {
    values.push_back({std::move(shape), isArgument});
    int64_t elements = 1;
    for (int64_t extent : values.back().shape)
      elements *= extent;
    graph.elements += elements;
    return values.size() - 1;
  }
  size_t argument(const std::string &role, Shape shape) {
    size_t value = add(std::move(shape), true);
    arguments += (arguments.empty() ? "" : ", ") + ref(value) + ": " + type(value) + " {segue.name = \"" +
                 valueName(value) + "\", segue.role = #segue.role<" + role + ">}";
    return value;
  }
  /// `result = segue.op operands middle : types`
  size_t op(const std::string &name, std::vector<size_t> operands, const std::string &middle, Shape shape,
            bool isFolded = false) {
    std::string words, types;
    for (size_t operand : operands) {
      words += (words.empty() ? "" : ", ") + ref(operand);
      types += (types.empty() ? "" : ", ") + type(operand);
      values[operand].isRead = true;
    }
    size_t result = add(std::move(shape));
    // Elementwise ops of one type name it once.
    body += "  " + ref(result) + " = segue." + name + " " + words + middle + " : " +
            (isFolded ? type(result) : types + " -> " + type(result)) + "\n";
    return result;
  }
  size_t unary(const std::string &name, size_t x) { return op(name, {x}, "", values[x].shape, true); }
  size_t binary(const std::string &name, size_t a, size_t b) { return op(name, {a, b}, "", values[a].shape, true); }
  size_t zeros(const Shape &shape) {
    size_t result = add(shape);
    body += "  " + ref(result) + " = segue.constant dense<0.0> : " + type(result) + "\n";
    return result;
  }
  size_t slice(size_t x, const Shape &starts, const Shape &limits, const Shape &steps) {
    Shape shape;
    for (size_t dim = 0; dim < starts.size(); ++dim)
      shape.push_back((limits[dim] - starts[dim] + steps[dim] - 1) / steps[dim]);
    return op("slice", {x}, " " + list(starts) + " to " + list(limits) + " by " + list(steps), shape);
  }
  /// The part [from, to) of dimension `dim`.
  size_t part(size_t x, size_t dim, int64_t from, int64_t to) {
    Shape starts(values[x].shape.size(), 0), limits = values[x].shape, steps(starts.size(), 1);
    starts[dim] = from;
    limits[dim] = to;
    return slice(x, starts, limits, steps);
  }
  size_t pad(size_t x, const Shape &low, const Shape &high, const Shape &interior, const std::string &value) {
    Shape shape = values[x].shape;
    for (size_t dim = 0; dim < shape.size(); ++dim)
      shape[dim] = low[dim] + shape[dim] + (shape[dim] - 1) * interior[dim] + high[dim];
    return op("pad", {x},
              " low " + list(low) + " high " + list(high) + " interior " + list(interior) + " value " + value + " : f32",
              shape);
  }
  size_t concat(const std::vector<size_t> &parts, size_t dim) {
    Shape shape = values[parts[0]].shape;
    for (size_t i = 1; i < parts.size(); ++i)
      shape[dim] += values[parts[i]].shape[dim];
    return op("concat", parts, " dim " + std::to_string(dim), shape);
  }

  //===--- Graphs ---===//
  size_t smooth(size_t x) {
    if (below(5) == 0)
      return unary("exp", unary("sin", x));
    return unary(oneOf({"tanh", "sigmoid", "silu", "gelu tanh", "sin", "neg"}), x);
  }

  /// Values of `shape`, arguments among them.
  std::vector<size_t> alike(const Shape &shape) const {
    std::vector<size_t> found;
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i].shape == shape)
        found.push_back(i);
    return found;
  }
  size_t another(size_t x) {
    std::vector<size_t> found = alike(values[x].shape);
    return found[size_t(below(int64_t(found.size())))];
  }
  /// Later ones rather than earlier.
  size_t pick() {
    int64_t count = int64_t(values.size());
    return size_t(std::max(below(count), below(count)));
  }

  /// A tensor of the shape of `x` whose slices along `dim` are written one by
  /// one, as out[:, i] = f(x[:, i]) comes from PyTorch: under a mask, or by
  /// joining what lies before and after.
  size_t writeSlices(size_t x, size_t dim, bool all) {
    const Shape shape = values[x].shape;
    int64_t extent = shape[dim];
    bool masked = isWide || below(2), own = below(3) == 0;
    size_t out = own ? smooth(another(x)) : zeros(shape);
    int64_t width = isWide ? 1 : 1 + below(2);
    for (int64_t at = 0, written = 0; at + width <= extent && written < 24; at += width) {
      if (!all && below(3) == 0)
        continue;
      ++written;
      size_t value = part(x, dim, at, at + width);
      value = isWide ? unary("exp", value) : smooth(value);
      if (below(6) == 0)
        value = binary("add", value, part(out, dim, at, at + width));
      if (masked) {
        Shape low(shape.size(), 0), high(shape.size(), 0), none(shape.size(), 0);
        low[dim] = at;
        high[dim] = extent - at - width;
        size_t wide = pad(value, low, high, none, "0.0");
        out = select(dim, at, width, wide, out);
        continue;
      }
      std::vector<size_t> parts;
      if (at > 0)
        parts.push_back(part(out, dim, 0, at));
      parts.push_back(value);
      if (at + width < extent)
        parts.push_back(part(out, dim, at + width, extent));
      if (parts.size() > 1)
        out = concat(parts, dim);
    }
    return out;
  }

  /// `inside` where `at` <= index < `at` + `width`, else `outside`.
  size_t select(size_t dim, int64_t at, int64_t width, size_t inside, size_t outside) {
    const Shape shape = values[inside].shape;
    std::string counts = tensorType(shape, "i32"), flags = tensorType(shape, "i1"), name = "m" + std::to_string(masks++);
    auto line = [&](const std::string &result, const std::string &text) {
      body += "  %" + name + result + " = segue." + text + "\n";
    };
    std::string m = "%" + name;
    line("i", "iota dim " + std::to_string(dim) + " : " + counts);
    line("l", "constant dense<" + std::to_string(at) + "> : " + counts);
    line("h", "constant dense<" + std::to_string(at + width) + "> : " + counts);
    line("a", "compare ge " + m + "i, " + m + "l : " + counts + " -> " + flags);
    line("b", "compare lt " + m + "i, " + m + "h : " + counts + " -> " + flags);
    line("c", "and " + m + "a, " + m + "b : " + flags);
    values[inside].isRead = values[outside].isRead = true;
    size_t result = add(shape);
    body += "  " + ref(result) + " = segue.select " + m + "c, " + ref(inside) + ", " + ref(outside) + " : " + flags +
            ", " + type(result) + "\n";
    return result;
  }

  void addAddends(size_t x) {
    const Shape shape = values[x].shape;
    size_t dim = size_t(below(int64_t(shape.size()))), sum = x;
    for (int64_t i = 3 + below(12); i-- > 0;) {
      size_t addend = another(x);
      int64_t from = below(shape[dim]), to = from + 1 + below(shape[dim] - from);
      if (below(2)) {
        Shape low(shape.size(), 0), high(shape.size(), 0), none(shape.size(), 0);
        low[dim] = from;
        high[dim] = shape[dim] - to;
        addend = pad(part(addend, dim, from, to), low, high, none, below(3) ? "0.0" : "0.25");
      }
      sum = binary(oneOf({"add", "sub"}), sum, addend);
    }
    unary("tanh", sum);
  }

  void project(size_t x) {
    const Shape shape = values[x].shape;
    int64_t depth = shape.back(), columns = isWide ? depth : 1 + below(9);
    size_t weight = argument("parameter", {depth, columns});
    Shape result = shape;
    result.back() = columns;
    op("dot_general", {x, weight},
       " batch [] x [] contract [" + std::to_string(shape.size() - 1) + "] x [0]", result);
  }

  void reduceAndBroadcast(size_t x) {
    const Shape shape = values[x].shape;
    Shape dims, kept, rest;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      bool reduced = below(2) == 0;
      (reduced ? dims : kept).push_back(int64_t(dim));
      if (!reduced)
        rest.push_back(shape[dim]);
    }
    if (dims.empty())
      return;
    size_t sum = op(below(2) ? "reduce mean" : "reduce sum", {x}, " dims " + list(dims), rest);
    size_t wide = op("broadcast", {unary("tanh", sum)}, " dims " + list(kept), shape);
    size_t y = below(2) ? x : another(x);
    binary(oneOf({"mul", "sub", "add"}), y, wide);
  }

  void addSomething() {
    size_t x = pick();
    const Shape shape = values[x].shape;
    if (shape.empty()) {
      unary("tanh", x);
      return;
    }
    size_t rank = shape.size(), dim = size_t(below(int64_t(rank)));
    switch (below(isWide ? 4 : 12)) {
    case 0:
      smooth(x);
      return;
    case 1: {
      size_t y = another(x), z = smooth(x);
      binary(oneOf({"add", "mul", "sub"}), z, y);
      return;
    }
    case 2:
      reduceAndBroadcast(x);
      return;
    case 3:
    case 4:
      addAddends(x);
      return;
    case 5:
    case 6:
      writeSlices(x, dim, below(2));
      return;
    case 7: {
      Shape low, high, interior;
      for (int64_t extent : shape) {
        bool isSmall = extent < 20;
        low.push_back(isSmall ? below(3) : 0);
        high.push_back(isSmall ? below(3) : 0);
        interior.push_back(isSmall && below(4) == 0 ? 1 : 0);
      }
      unary("sin", pad(x, low, high, interior, below(2) ? "0.0" : "0.5"));
      return;
    }
    case 8: {
      std::vector<size_t> parts = {x};
      for (int64_t i = 1 + below(3); i-- > 0;) {
        size_t y = another(x);
        int64_t from = below(shape[dim]);
        parts.push_back(below(2) ? y : part(y, dim, from, from + 1 + below(shape[dim] - from)));
      }
      if (shape[dim] < 40) {
        size_t joined = concat(parts, dim);
        binary("mul", joined, joined);
      }
      return;
    }
    case 9: {
      Shape starts, limits, steps, permutation, turned;
      for (int64_t extent : shape) {
        starts.push_back(below(extent));
        limits.push_back(starts.back() + 1 + below(extent - starts.back()));
        steps.push_back(1 + below(2));
      }
      size_t y = smooth(slice(x, starts, limits, steps));
      for (size_t i = 0; i < rank; ++i)
        permutation.push_back(int64_t(i));
      std::ranges::shuffle(permutation, random);
      for (int64_t from : permutation)
        turned.push_back(values[y].shape[size_t(from)]);
      op("transpose", {y}, " " + list(permutation), turned);
      return;
    }
    case 10:
      op(below(2) ? "softmax" : "log_softmax", {x}, " dim " + std::to_string(dim), shape, true);
      return;
    case 11:
      if (rank > 1)
        project(x);
      return;
    }
  }

  RandomGraph finish() {
    std::string results, types, words;
    for (size_t value = 0; value < values.size(); ++value) {
      if (values[value].isArgument || (values[value].isRead && below(12)))
        continue;
      const char *comma = words.empty() ? "" : ", ";
      words += comma + ref(value);
      types += comma + type(value);
      results += comma + type(value) + " {segue.name = \"" + valueName(value) + "\", segue.role = #segue.role<output>}";
    }
    graph.text = "func.func @forward(" + arguments + ") -> (" + results + ") {\n" + body + "  return " + words + " : " +
                 types + "\n}\n";
    return std::move(graph);
  }

  std::mt19937_64 random;
  bool isWide;
  std::vector<Value> values;
  std::string arguments, body;
  int64_t masks = 0;
  RandomGraph graph;
};
} // namespace

RandomGraph segue::test::drawGraph(uint64_t seed) { return Drawing(seed).draw(); }
