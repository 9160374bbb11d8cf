//===- OptimizerRules.cpp - what each optimizer does ----------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The optimizers, one rule each, and the list of them. Each computes in f32, as that of
// torch.optim with this name does where there is one; a comment says where it does not.
//
// Decisions by the number of a step are made among scalars. LLVM makes two loops of one
// whose elements are selected by a scalar, and rounds products differently in them, by what
// else is in the kernel: a step in backward would have other bits than one after it.
//
//===----------------------------------------------------------------------===//

#include "OptimizerRules.h"
#include "WholeReduction.h"
#include "segue/Dialect/Segue/Transforms/Passes.h"
#include "llvm/ADT/StringExtras.h"
#include <algorithm>
#include <cmath>

using namespace mlir;
using namespace segue;

using Range = ConstantRange;
using States = SmallVector<OptimizerState>;
using Values = SmallVector<Value>;
using Shape = ArrayRef<int64_t>;

//===----------------------------------------------------------------------===//
// Parts that formulas share
//===----------------------------------------------------------------------===//

Value OptimizerStep::biasCorrection(double beta) {
  return beta == 0 ? splat(step, 1.0) : neg(expm1(mul(step, std::log(beta))));
}

Value OptimizerStep::mean(Value old, Value now, double beta) { return add(mul(old, beta), mul(now, 1 - beta)); }

void OptimizerStep::decayGradient() {
  if (decay != 0)
    gradient = add(gradient, mul(parameter, decay));
}

void OptimizerStep::decayParameter() {
  if (decay != 0)
    parameter = mul(parameter, sub(1.0, mul(rate, decay)));
}

namespace {
/// A state of the parameter's shape, and the code that it may be kept in. None is for what grows by less than a code
/// can tell apart, and for what a small difference is taken of.
struct Kept {
  StringRef name;
  StateCode code = StateCode::None;
};
} // namespace

static States ofItsShape(Shape shape, std::initializer_list<Kept> all) {
  return llvm::map_to_vector(all, [&](const Kept &state) {
    return OptimizerState{state.name, SmallVector<int64_t>(shape), state.code};
  });
}

static constexpr Kept kFirstMoment = {"m", StateCode::Signed}, kSecondMoment = {"v", StateCode::Square},
                      kVelocity = {"u", StateCode::Signed};

//===----------------------------------------------------------------------===//
// SGD
//===----------------------------------------------------------------------===//

/// Without momentum nothing is kept, and a dampening has nothing to dampen.
static States statesOfSgd(const OptimizerSpec &spec, Shape shape) {
  return spec.is("momentum") ? ofItsShape(shape, {kVelocity}) : States{};
}

static std::string checkSgd(const OptimizerSpec &spec) {
  return spec.is("nesterov") && !(spec["momentum"] > 0 && spec["dampening"] == 0)
             ? "`nesterov`, which needs a momentum above 0 and dampening 0"
             : "";
}

static Values writeSgd(OptimizerStep &s) {
  s.decayGradient();
  double momentum = s.spec["momentum"];
  if (momentum == 0)
    return {s.sub(s.parameter, s.mul(s.rate, s.gradient))};
  Value fresh = s.gradient; // the first step is not dampened
  if (double dampening = s.spec["dampening"]; dampening != 0)
    fresh = s.mul(fresh, s.select(s.isFirst(), s.splat(s.step, 1.0), s.splat(s.step, 1 - dampening)));
  Value velocity = s.add(s.mul(s.states[0], momentum), fresh);
  Value direction = s.spec.is("nesterov") ? s.add(s.gradient, s.mul(velocity, momentum)) : velocity;
  return {s.sub(s.parameter, s.mul(s.rate, direction)), velocity};
}

//===----------------------------------------------------------------------===//
// Adam and AdamW (Loshchilov and Hutter, arXiv:1711.05101)
//===----------------------------------------------------------------------===//

static States statesOfAdam(const OptimizerSpec &spec, Shape shape) {
  States states = ofItsShape(shape, {kFirstMoment, kSecondMoment});
  if (spec.is("amsgrad"))
    states.append(ofItsShape(shape, {{"vmax", StateCode::Square}}));
  return states;
}

static Values writeAdam(OptimizerStep &s, bool isDecoupled) {
  if (!isDecoupled)
    s.decayGradient();
  double beta1 = s.spec["beta1"], beta2 = s.spec["beta2"];
  Value rate = s.div(s.rate, s.biasCorrection(beta1)), scale = s.div(1.0, s.sqrt(s.biasCorrection(beta2)));
  Value m = s.mean(s.states[0], s.gradient, beta1), v = s.mean(s.states[1], s.mul(s.gradient, s.gradient), beta2);
  Value largest = s.spec.is("amsgrad") ? s.max(s.states[2], v) : v;
  if (isDecoupled)
    s.decayParameter();
  Value denominator = s.add(s.mul(s.sqrt(largest), scale), s.spec["eps"]);
  Values results = {s.sub(s.parameter, s.div(s.mul(rate, m), denominator)), m, v};
  if (largest != v)
    results.push_back(largest);
  return results;
}

static Values writeCoupledAdam(OptimizerStep &s) { return writeAdam(s, /*isDecoupled=*/false); }
static Values writeAdamW(OptimizerStep &s) { return writeAdam(s, /*isDecoupled=*/true); }

//===----------------------------------------------------------------------===//
// Adamax (Kingma and Ba, arXiv:1412.6980): Adam by the largest gradient
//===----------------------------------------------------------------------===//

/// "largest" is divided by, and is no square: a code that rounds it down would make steps larger.
static States statesOfAdamax(const OptimizerSpec &, Shape shape) {
  return ofItsShape(shape, {kFirstMoment, {"largest"}});
}

static Values writeAdamax(OptimizerStep &s) {
  s.decayGradient();
  double beta1 = s.spec["beta1"];
  Value m = s.mean(s.states[0], s.gradient, beta1);
  Value largest = s.max(s.mul(s.states[1], s.spec["beta2"]), s.add(s.abs(s.gradient), s.spec["eps"]));
  Value rate = s.div(s.rate, s.biasCorrection(beta1));
  return {s.sub(s.parameter, s.div(s.mul(rate, m), largest)), m, largest};
}

//===----------------------------------------------------------------------===//
// NAdam (Dozat): Adam with Nesterov's momentum
//===----------------------------------------------------------------------===//

/// "mu" is the product of the momenta of all steps, which has no closed form.
static States statesOfNAdam(const OptimizerSpec &, Shape shape) {
  States states = ofItsShape(shape, {kFirstMoment, kSecondMoment});
  states.push_back({"mu", {}});
  return states;
}

static Values writeNAdam(OptimizerStep &s) {
  bool isDecoupled = s.spec.is("decoupled-weight-decay");
  isDecoupled ? s.decayParameter() : s.decayGradient();
  double beta1 = s.spec["beta1"], beta2 = s.spec["beta2"];
  auto momentumAt = [&](Value step) {
    Value share = s.exp(s.mul(step, s.spec["momentum-decay"] * std::log(0.96)));
    return s.mul(s.sub(1.0, s.mul(share, 0.5)), beta1);
  };
  Value momentum = momentumAt(s.step), next = momentumAt(s.add(s.step, 1.0));
  Value product = s.select(s.isFirst(), momentum, s.mul(s.states[2], momentum));
  Value m = s.mean(s.states[0], s.gradient, beta1), v = s.mean(s.states[1], s.mul(s.gradient, s.gradient), beta2);
  Value denominator = s.add(s.sqrt(s.div(v, s.biasCorrection(beta2))), s.spec["eps"]);
  Value ofGradient = s.div(s.mul(s.rate, s.sub(1.0, momentum)), s.sub(1.0, product));
  Value ofMean = s.div(s.mul(s.rate, next), s.sub(1.0, s.mul(product, next)));
  Value change = s.div(s.add(s.mul(ofGradient, s.gradient), s.mul(ofMean, m)), denominator);
  return {s.sub(s.parameter, change), m, v, product};
}

//===----------------------------------------------------------------------===//
// RAdam (Liu et al., arXiv:1908.03265)
//===----------------------------------------------------------------------===//

/// The length of the moving average at `step`, which is 2 / (1 - b) - 1 - 2 t b^t / (1 - b^t) for b =
/// beta2 and t = step. In f32 the difference of these terms, each near 2 / (1 - b), has no digits left
/// at the first steps. With y = t log(1 / b) / 2 and coth(x) = 1 / x + L(x) the large terms cancel by
/// themselves: t (1 - L(y)) + L(y / t).
static Value lengthOfAverage(OptimizerStep &s, double beta2) {
  double half = -std::log(beta2) / 2;
  Value y = s.mul(s.step, half), square = s.mul(y, y);
  // 1 - L(y), for a small y by its series: 1 - y/3 + y^3/45 - 2 y^5/945 + y^7/4725.
  Value series = s.add(s.mul(square, 1.0 / 4725), -2.0 / 945);
  series = s.add(s.mul(series, square), 1.0 / 45);
  series = s.add(s.mul(series, square), -1.0 / 3);
  series = s.add(s.mul(series, y), 1.0);
  Value closed = s.sub(s.div(1.0, y), s.div(2.0, s.expm1(s.mul(y, 2.0))));
  Value share = s.select(s.compare(Predicate::Lt, y, s.splat(y, 0.5)), series, closed);
  return s.add(s.mul(s.step, share), 1 / std::tanh(half) - 1 / half);
}

static Values writeRAdam(OptimizerStep &s) {
  s.spec.is("decoupled-weight-decay") ? s.decayParameter() : s.decayGradient();
  double beta1 = s.spec["beta1"], beta2 = s.spec["beta2"];
  Value m = s.mean(s.states[0], s.gradient, beta1), v = s.mean(s.states[1], s.mul(s.gradient, s.gradient), beta2);
  Value rate = s.div(s.rate, s.biasCorrection(beta1));
  double longest = 2 / (1 - beta2) - 1;
  if (longest <= 5) // no average is long enough to be rectified
    return {s.sub(s.parameter, s.mul(rate, m)), m, v};
  Value length = lengthOfAverage(s, beta2), one = s.splat(length, 1.0), zero = s.splat(length, 0.0);
  Value square = s.div(s.mul(s.add(length, -4.0), s.add(length, -2.0)), length);
  square = s.mul(s.max(square, 0.0), longest / ((longest - 4) * (longest - 2)));
  Value scale = s.sqrt(s.mul(square, s.biasCorrection(beta2)));
  // Scalars are chosen, and m is divided by 1 until then.
  Value isRectified = s.compare(Predicate::Gt, length, s.splat(length, 5.0));
  Value numerator = s.mul(s.mul(rate, s.select(isRectified, scale, one)), m);
  Value denominator = s.add(s.mul(s.sqrt(v), s.select(isRectified, one, zero)),
                            s.select(isRectified, s.splat(length, s.spec["eps"]), one));
  return {s.sub(s.parameter, s.div(numerator, denominator)), m, v};
}

//===----------------------------------------------------------------------===//
// Adagrad (Duchi et al.)
//===----------------------------------------------------------------------===//

static States statesOfAdagrad(const OptimizerSpec &, Shape shape) { return ofItsShape(shape, {{"v"}}); }

static Values writeAdagrad(OptimizerStep &s) {
  s.decayGradient();
  Value sum = s.states[0];
  if (double initial = s.spec["initial-accumulator-value"]; initial != 0)
    sum = s.add(sum, s.select(s.isFirst(), s.splat(s.step, initial), s.splat(s.step, 0.0)));
  sum = s.add(sum, s.mul(s.gradient, s.gradient));
  Value rate = s.rate;
  if (double decay = s.spec["lr-decay"]; decay != 0)
    rate = s.div(rate, s.add(s.mul(s.add(s.step, -1.0), decay), 1.0));
  return {s.sub(s.parameter, s.div(s.mul(rate, s.gradient), s.add(s.sqrt(sum), s.spec["eps"]))), sum};
}

//===----------------------------------------------------------------------===//
// Adadelta (Zeiler, arXiv:1212.5701)
//===----------------------------------------------------------------------===//

/// Means of the squares of gradients and of steps. Steps grow out of `eps` alone: neither mean has a code.
static States statesOfAdadelta(const OptimizerSpec &, Shape shape) { return ofItsShape(shape, {{"v"}, {"delta"}}); }

static Values writeAdadelta(OptimizerStep &s) {
  s.decayGradient();
  double rho = s.spec["rho"], eps = s.spec["eps"];
  auto root = [&](Value mean) { return s.sqrt(s.add(mean, eps)); };
  Value v = s.mean(s.states[0], s.mul(s.gradient, s.gradient), rho);
  Value change = s.mul(s.div(root(s.states[1]), root(v)), s.gradient);
  Value delta = s.mean(s.states[1], s.mul(change, change), rho);
  return {s.sub(s.parameter, s.mul(s.rate, change)), v, delta};
}

//===----------------------------------------------------------------------===//
// RMSprop (Tieleman and Hinton)
//===----------------------------------------------------------------------===//

static States statesOfRmsprop(const OptimizerSpec &spec, Shape shape) {
  States states = spec.is("centered") ? ofItsShape(shape, {{"v"}, {"m"}}) : ofItsShape(shape, {kSecondMoment});
  if (spec.is("momentum"))
    states.append(ofItsShape(shape, {kVelocity}));
  return states;
}

static Values writeRmsprop(OptimizerStep &s) {
  s.decayGradient();
  double alpha = s.spec["alpha"], momentum = s.spec["momentum"];
  Value square = s.mean(s.states[0], s.mul(s.gradient, s.gradient), alpha), variance = square;
  Values results = {Value(), square};
  if (s.spec.is("centered")) {
    Value m = s.mean(s.states[1], s.gradient, alpha);
    // Rounding may take it below zero, where PyTorch's root is no number.
    variance = s.max(s.sub(square, s.mul(m, m)), 0.0);
    results.push_back(m);
  }
  Value direction = s.div(s.gradient, s.add(s.sqrt(variance), s.spec["eps"]));
  if (momentum != 0) {
    direction = s.add(s.mul(s.states.back(), momentum), direction);
    results.push_back(direction);
  }
  results[0] = s.sub(s.parameter, s.mul(s.rate, direction));
  return results;
}

//===----------------------------------------------------------------------===//
// Lion (Chen et al., arXiv:2302.06675), which torch.optim does not have
//===----------------------------------------------------------------------===//

static States statesOfLion(const OptimizerSpec &, Shape shape) { return ofItsShape(shape, {kFirstMoment}); }

static Values writeLion(OptimizerStep &s) {
  Value direction = s.sign(s.mean(s.states[0], s.gradient, s.spec["beta1"]));
  Value m = s.mean(s.states[0], s.gradient, s.spec["beta2"]);
  s.decayParameter();
  return {s.sub(s.parameter, s.mul(s.rate, direction)), m};
}

//===----------------------------------------------------------------------===//
// Adafactor (Shazeer and Stern, arXiv:1804.04235)
//===----------------------------------------------------------------------===//

/// Means of rows and columns stand for the squares of all elements of a matrix, or of each of several.
static States statesOfAdafactor(const OptimizerSpec &, Shape shape) {
  if (shape.size() < 2)
    return ofItsShape(shape, {{"v"}});
  SmallVector<int64_t> columns(shape.drop_back(2));
  columns.push_back(shape.back());
  return {{"row", SmallVector<int64_t>(shape.drop_back())}, {"col", columns}};
}

/// The root of the mean of the squares of all elements.
static Value rootMeanSquare(OptimizerStep &s, Value x) {
  double share = 1.0 / static_cast<double>(Formula::typeOf(x).getNumElements());
  return s.sqrt(s.mul(sumOfSquares(s.b, s.loc, x), share));
}

static Values writeAdafactor(OptimizerStep &s) {
  double eps1 = s.spec["eps1"] != 0 ? s.spec["eps1"] : s.epsilon;
  Value fresh = s.exp(s.mul(s.log(s.step), s.spec["beta2-decay"]));
  Value square = s.mul(s.gradient, s.gradient), estimate;
  Values states;
  auto approach = [&](Value now) { // which the state is at the first step, whose share of what is new is 1
    Value old = s.states[states.size()];
    return states.emplace_back(s.add(old, s.mul(s.sub(now, old), fresh)));
  };
  int64_t rank = Formula::typeOf(square).getRank();
  if (rank < 2) {
    estimate = approach(square);
  } else {
    Value rows = approach(s.reduce(ReduceKind::Mean, square, rank - 1));
    Value columns = approach(s.reduce(ReduceKind::Mean, square, rank - 2));
    Value mean = s.max(s.reduce(ReduceKind::Mean, rows, rank - 2), eps1);
    Value share = s.div(rows, s.along(mean, rank - 2, rows));
    estimate = s.mul(s.along(share, rank - 1, square), s.along(columns, rank - 2, square));
  }
  Value update = s.mul(s.rsqrt(s.max(estimate, eps1 * eps1)), s.gradient);
  Value size = s.max(rootMeanSquare(s, s.parameter), s.spec["eps2"]);
  Value rate = s.mul(size, s.min(s.rate, s.rsqrt(s.step)));
  rate = s.div(rate, s.max(s.mul(rootMeanSquare(s, update), 1 / s.spec["d"]), 1.0));
  s.decayParameter();
  states.insert(states.begin(), s.sub(s.parameter, s.mul(rate, update)));
  return states;
}

//===----------------------------------------------------------------------===//
// Muon (Jordan et al.): momentum whose singular values are brought near 1
//===----------------------------------------------------------------------===//

static States statesOfMuon(const OptimizerSpec &, Shape shape) { return ofItsShape(shape, {kVelocity}); }

static std::string checkMuon(const OptimizerSpec &spec) {
  double steps = spec["ns-steps"];
  return steps != std::floor(steps) || steps >= 100 ? "`ns-steps`, which must be a whole number below 100" : "";
}

static std::string misfitOfMuon(Shape shape) {
  return shape.size() == 2 ? "" : "muon is for matrices, of two dimensions";
}

/// The product of matrices over dimension `dim` of `l` and `otherDim` of `r`, in f32.
static Value product(OptimizerStep &s, Value l, int64_t dim, Value r, int64_t otherDim) {
  SmallVector<int64_t> shape = {Formula::typeOf(l).getDimSize(1 - dim), Formula::typeOf(r).getDimSize(1 - otherDim)};
  auto type = RankedTensorType::get(shape, s.b.getF32Type());
  return DotGeneralOp::create(s.b, s.loc, type, l, r, Value(), ArrayRef<int64_t>(), ArrayRef<int64_t>(),
                              ArrayRef<int64_t>(dim), ArrayRef<int64_t>(otherDim));
}

/// Newton and Schulz's iteration by an odd polynomial of degree five, with what is kept between products in bf16. The
/// products are taken over the longer dimension first, so that the matrix in between is the smaller one.
static Value orthogonalize(OptimizerStep &s, Value matrix) {
  Type bf16 = s.b.getBF16Type();
  auto round = [&](Value x) { return s.f32(s.to(x, bf16)); };
  double a = s.spec["ns-a"], b = s.spec["ns-b"], c = s.spec["ns-c"];
  auto shape = Formula::typeOf(matrix).getShape();
  int64_t longer = shape[0] > shape[1] ? 0 : 1;
  Value x = round(matrix);
  Value norm = s.max(round(s.sqrt(sumOfSquares(s.b, s.loc, x))), s.spec["eps"]);
  x = s.to(s.div(x, norm), bf16);
  for (int step = 0; step < static_cast<int>(s.spec["ns-steps"]); ++step) {
    Value gram = s.to(product(s, x, longer, x, longer), bf16);
    Value update = s.add(s.mul(s.f32(gram), b), s.mul(product(s, gram, 1, gram, 0), c));
    update = s.to(update, bf16);
    Value moved = longer == 1 ? product(s, update, 1, x, 0) : product(s, x, 1, update, 1);
    x = s.to(s.add(s.mul(s.f32(x), a), moved), bf16);
  }
  return s.f32(x);
}

static Values writeMuon(OptimizerStep &s) {
  double momentum = s.spec["momentum"];
  Value velocity = s.mean(s.states[0], s.gradient, momentum);
  Value direction = s.spec.is("nesterov") ? s.mean(velocity, s.gradient, momentum) : velocity;
  auto shape = Formula::typeOf(s.parameter).getShape();
  double rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
  double share = s.spec.is("match-rms-adamw") ? 0.2 * std::sqrt(std::max(rows, columns))
                                              : std::sqrt(std::max(1.0, rows / columns));
  Value update = orthogonalize(s, direction);
  s.decayParameter();
  return {s.sub(s.parameter, s.mul(s.mul(s.rate, share), update)), velocity};
}

//===----------------------------------------------------------------------===//
// All of them
//===----------------------------------------------------------------------===//

static SmallVector<OptimizerConstant> ofAdam(double beta2, double eps, ArrayRef<OptimizerConstant> more) {
  SmallVector<OptimizerConstant> constants = {{"beta1", 0.9, Range::BelowOne}, {"beta2", beta2, Range::BelowOne}};
  if (eps != 0)
    constants.push_back({"eps", eps});
  llvm::append_range(constants, more);
  return constants;
}

static ArrayRef<OptimizerRule> allRules() {
  static constexpr OptimizerConstant amsgrad = {"amsgrad", 0, Range::Flag};
  static constexpr OptimizerConstant decoupled = {"decoupled-weight-decay", 0, Range::Flag};
  static const SmallVector<OptimizerRule, 0> rules = {
      {"adamw", ofAdam(0.999, 1e-8, {amsgrad}), statesOfAdam, writeAdamW},
      {"adam", ofAdam(0.999, 1e-8, {amsgrad}), statesOfAdam, writeCoupledAdam},
      {"adamax", ofAdam(0.999, 1e-8, {}), statesOfAdamax, writeAdamax},
      {"nadam", ofAdam(0.999, 1e-8, {{"momentum-decay", 4e-3}, decoupled}), statesOfNAdam, writeNAdam},
      {"radam", ofAdam(0.999, 1e-8, {decoupled}), statesOfAdam, writeRAdam},
      {"lion", ofAdam(0.99, 0, {}), statesOfLion, writeLion},
      {"adagrad", {{"lr-decay", 0}, {"initial-accumulator-value", 0}, {"eps", 1e-10}}, statesOfAdagrad, writeAdagrad},
      {"adadelta", {{"rho", 0.9, Range::BelowOne}, {"eps", 1e-6}}, statesOfAdadelta, writeAdadelta},
      {"rmsprop",
       {{"alpha", 0.99, Range::BelowOne}, {"eps", 1e-8}, {"momentum", 0}, {"centered", 0, Range::Flag}},
       statesOfRmsprop,
       writeRmsprop},
      {"adafactor",
       {{"beta2-decay", -0.8, Range::NotPositive}, {"eps1", 0}, {"eps2", 1e-3}, {"d", 1, Range::AtLeastOne}},
       statesOfAdafactor,
       writeAdafactor},
      {"sgd",
       {{"momentum", 0}, {"dampening", 0, Range::Finite}, {"nesterov", 0, Range::Flag}},
       statesOfSgd,
       writeSgd,
       checkSgd},
      {"muon",
       {{"momentum", 0.95},
        {"nesterov", 1, Range::Flag},
        {"ns-a", 3.4445, Range::Finite},
        {"ns-b", -4.775, Range::Finite},
        {"ns-c", 2.0315, Range::Finite},
        {"eps", 1e-7},
        {"ns-steps", 5},
        {"match-rms-adamw", 0, Range::Flag}},
       statesOfMuon,
       writeMuon,
       checkMuon,
       misfitOfMuon},
  };
  return rules;
}

//===----------------------------------------------------------------------===//
// Specs
//===----------------------------------------------------------------------===//

/// The constants that every optimizer has: the weight decay, the bound of the elements of gradients, and the decay of a
/// moving average of the parameter, of which 0 are none; whether rate groups count their own steps; and the bits of an
/// element of a state.
static constexpr OptimizerConstant kCommon[] = {{"decay", 0},
                                                {"clip-value", 0},
                                                {"ema", 0, Range::BelowOne},
                                                {"own-steps", 0, Range::Flag},
                                                {"state-bits", 32, Range::Bits}};

static const OptimizerConstant *findConstant(const OptimizerRule &rule, StringRef name) {
  for (ArrayRef<OptimizerConstant> constants : {ArrayRef(rule.constants), ArrayRef(kCommon)})
    for (const OptimizerConstant &constant : constants)
      if (constant.name == name)
        return &constant;
  return nullptr;
}

double OptimizerSpec::operator[](StringRef constant) const {
  auto found = given.find(constant);
  if (found != given.end())
    return found->second;
  const OptimizerConstant *known = findConstant(*rule, constant);
  return known ? known->fallback : 0;
}

/// Reads a number or truth value; nothing where `text` is neither.
static std::optional<double> parseValue(StringRef text, Range range) {
  double value = 0;
  if (range == Range::Flag)
    return text.empty() || text == "true" || text == "1"    ? std::optional(1.0)
           : text == "false" || text == "0" ? std::optional(0.0)
                                             : std::nullopt;
  return llvm::to_float(text, value) ? std::optional(value) : std::nullopt;
}

static bool isInRange(double value, Range range) {
  switch (range) {
  case Range::NotNegative:
    return value >= 0 && std::isfinite(value);
  case Range::NotPositive:
    return value <= 0 && std::isfinite(value);
  case Range::AtLeastOne:
    return value >= 1 && std::isfinite(value);
  case Range::BelowOne:
    return value >= 0 && value < 1;
  case Range::Finite:
    return std::isfinite(value);
  case Range::Bits:
    return value == 8 || value == 32;
  case Range::Flag:
    break;
  }
  return true;
}

static StringRef describe(Range range) {
  switch (range) {
  case Range::NotNegative:
    return "0 or more, and finite";
  case Range::NotPositive:
    return "0 or less, and finite";
  case Range::AtLeastOne:
    return "1 or more, and finite";
  case Range::BelowOne:
    return "in [0, 1)";
  case Range::Finite:
    return "finite";
  case Range::Bits:
    return "32 or 8";
  case Range::Flag:
    break;
  }
  return "true or false";
}

template <typename Items> static std::string namesOf(const Items &items) {
  return llvm::join(llvm::map_range(items, [](const auto &item) { return item.name.str(); }), ", ");
}

SmallVector<OptimizerState> OptimizerSpec::states(ArrayRef<int64_t> shape) const {
  States all = rule->states(*this, shape);
  if (is("ema"))
    all.append(ofItsShape(shape, {{"ema"}}));
  if ((*this)["state-bits"] == 8)
    for (OptimizerState &state : all)
      state.block = state.code == StateCode::None ? 0 : blockOfCodes(state.shape);
  return all;
}

SmallVector<Value> OptimizerSpec::write(OptimizerStep &step) const {
  if (double limit = (*this)["clip-value"]; limit != 0)
    step.gradient = step.min(step.max(step.gradient, -limit), limit);
  SmallVector<Value> results = rule->write(step);
  if (double decay = (*this)["ema"]; decay != 0) { // the first parameter is its own average
    Value share = step.select(step.isFirst(), step.splat(step.step, 1.0), step.splat(step.step, 1 - decay));
    Value old = step.states[results.size() - 1];
    results.push_back(step.add(old, step.mul(step.sub(results[0], old), share)));
  }
  return results;
}

std::optional<OptimizerSpec> OptimizerSpec::parse(StringRef text, std::string &error) {
  auto [kind, settings] = text.split(':');
  OptimizerSpec spec;
  for (const OptimizerRule &rule : allRules())
    if (rule.name == kind)
      spec.rule = &rule;
  if (!spec.rule) {
    error = "unknown optimizer \"" + kind.str() + "\"; known are " + namesOf(allRules()) + " and none";
    return std::nullopt;
  }
  SmallVector<StringRef> keys;
  settings.split(keys, ',', /*MaxSplit=*/-1, /*KeepEmpty=*/false);
  for (StringRef key : keys) {
    auto [name, value] = key.split('=');
    const OptimizerConstant *constant = findConstant(*spec.rule, name);
    if (!constant) {
      error = kind.str() + " has no \"" + name.str() + "\"; it has " + namesOf(spec.rule->constants) + ", " +
              namesOf(kCommon);
      return std::nullopt;
    }
    std::optional<double> number = parseValue(value, constant->range);
    if (!number || !isInRange(*number, constant->range)) {
      error = "`segue-optimizer` was given " + name.str() + " = " + value.str() + "; it must be " +
              describe(constant->range).str();
      return std::nullopt;
    }
    if (!spec.given.try_emplace(name, *number).second) {
      error = "`segue-optimizer` was given " + name.str() + " twice";
      return std::nullopt;
    }
  }
  if (std::string wrong = spec.rule->check ? spec.rule->check(spec) : ""; !wrong.empty()) {
    error = "`segue-optimizer` was given " + wrong;
    return std::nullopt;
  }
  if (spec["state-bits"] == 8 && llvm::none_of(spec.rule->states(spec, {}), [](const OptimizerState &state) {
        return state.code != StateCode::None;
      })) {
    error = "`segue-optimizer` was given state-bits = 8; " + kind.str() +
            " has no state with a code of 8 bits, as it is set";
    return std::nullopt;
  }
  return spec;
}

std::string segue::findOptimizerError(StringRef spec) {
  std::string error;
  (void)OptimizerSpec::parse(spec, error);
  return error;
}
