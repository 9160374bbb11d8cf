//===- VectorKernels.h - inner loops of the engine --------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The inner loops of the engine's own matmul and attention, in f32 and, for
// matmul, in f64. One source,
// VectorKernels.cpp, is compiled for x86-64, x86-64-v3 and x86-64-v4; the best
// that the processor runs is chosen once.
//
// The unit of work is a product of a few rows (`tileRows` at most) with a panel
// of `panel` columns: b is a panel, [depth][panel], which the kernel walks
// through while the results stay in registers.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_VECTORKERNELS_H
#define SEGUE_RUNTIME_LIB_ENGINE_VECTORKERNELS_H

#include <cstdint>

namespace segue::inline runtime {

/// One product: c[i][j] = or += sum over l < depth of a[i][l] * b[l][j] (+ bias[j]).
struct PackedProduct {
  int64_t rows, columns, depth;
  /// The operand a in panels of `tileRows` rows, each [depth][tileRows], and the floats
  /// from one panel to the next.
  const float *a;
  int64_t aPanelStep;
  /// The operand b in panels of `panel` columns, each [depth][panel] with `bStep` floats
  /// from line to line. If it is packed, bStep = panel. For rows of a matrix as they lie,
  /// bStep is the row stride and the panels lie beside each other; then columns must be
  /// whole panels.
  const float *b;
  int64_t bPanelStep, bStep;
  float *c;
  int64_t cStep;
  bool accumulate = false;
  const float *bias = nullptr;
};

/// The choice of the weights of a block of attention rows that are dropped; see VectorKernels::drawFactors.
struct DropoutBlock {
  /// The key and the counter of Philox4x32-10 (docs/reference/Segue.md, segue.random).
  uint64_t seed, step;
  uint32_t id;
  /// The number of the weight of the first row and key, and the weights from row to row.
  int64_t first, rowStep;
  /// The keys that are seen, from the first on.
  int64_t keys;
  /// The least of 32 random bits with which a weight is kept, and what it is multiplied by then.
  uint32_t leastKept;
  float factor;
};

/// The softmax of one block of attention rows; see VectorKernels::softmax.
struct SoftmaxBlock {
  /// Scores [keys][panel] of up to `panel` rows side by side, which are replaced by
  /// exp(score - largest score of the row).
  float *scores;
  int64_t keys;
  /// Numbers [keys][panel] that are added to the scores before, or null.
  const float *mask;
  /// With causal, key j is seen by the row in lane i if j <= firstRow + i.
  bool causal;
  int64_t firstRow;
  /// Factors [keys][panel] of the exponentials behind their sum, or null; what has the factor 0 is 0.
  const float *dropout;
  /// The results, [panel] each: 1 / sum, or 0 for a row that sees nothing; and log of sum.
  float *inverseSum, *logSum;
};

/// The derivative of the softmax; see VectorKernels::softmaxGrad.
struct SoftmaxGradBlock {
  /// Scores [keys][panel], which are replaced by the weights of the values: probabilities
  /// p = exp(score - logSum) times their factors.
  float *scores;
  /// Derivatives [keys][panel] of these weights, which are replaced by those of the
  /// unscaled scores: scale * p * (dw * factor - delta).
  float *grads;
  int64_t keys;
  const float *mask;
  bool causal;
  int64_t firstRow;
  /// The factors are as in SoftmaxBlock.
  const float *dropout;
  float scale;
  /// The logarithms [panel] that softmax gave; rows beyond the last hold anything finite.
  const float *logSum;
  /// The sums [panel] over dims of out * gradOut.
  const float *delta;
};

struct VectorKernels {
  const char *name;
  /// The floats per vector, the rows of the largest tile, and the columns of a panel.
  int64_t lanes, tileRows, panel;

  void (*multiplyPacked)(const PackedProduct &product);

  /// Does c[i][j] = or += sum of a[i][l] * b[l][j] for one panel of columns, where a is a block
  /// [rows][panel] of scores and b is [depth][bStep].
  void (*multiplyBlockRows)(int64_t rows, int64_t depth, const float *a, const float *b, int64_t bStep, float *c,
                            int64_t cStep, bool accumulate);

  /// Does target[p][l][w] = source[(p * width + w) * step + l * depthStep], zero where p *
  /// width + w >= count; width is `tileRows` or `panel`. The target needs one vector of
  /// room behind it.
  void (*pack)(int64_t count, int64_t depth, const float *source, int64_t step, int64_t depthStep, float *target,
               int64_t width);

  /// Does target[c * targetStep + r] = source[r * sourceStep + c].
  void (*transpose)(int64_t rows, int64_t columns, const float *source, int64_t sourceStep, float *target,
                    int64_t targetStep);

  /// Does data[i] *= factor.
  void (*scale)(int64_t count, float factor, float *data);
  /// Does data[i] *= factors[i].
  void (*multiply)(int64_t count, const float *factors, float *data);
  /// Does data[r][i] *= factors[i], for data of [rows][panel].
  void (*scaleColumns)(int64_t rows, const float *factors, float *data);
  float (*dot)(int64_t count, const float *a, const float *b);
  /// Does c[j] = or += sum over l < depth of a[l] * b[j * bStep + l] (+ bias[j]), for columns of
  /// b that lie along the sum. Each sum has the bits that multiplyPacked gives it.
  void (*multiplyRow)(int64_t columns, int64_t depth, const float *a, const float *b, int64_t bStep, float *c,
                      bool accumulate, const float *bias);

  /// target[i] = what is added to a score that is kept where `kept[i]` is not 0: 0, or minus infinity.
  void (*widenKept)(int64_t count, const uint8_t *kept, float *target);
  /// Does target[i][j] = source[i] for a panel of columns.
  void (*spread)(int64_t count, const float *source, float *target);
  /// Writes the factors [keys][panel] of the weights of `panel` rows.
  void (*drawFactors)(const DropoutBlock &block, float *factors);
  void (*softmax)(const SoftmaxBlock &block);
  void (*softmaxGrad)(const SoftmaxGradBlock &block);

  /// Replaces numbers by gelu tanh of them, within 4 units in the last place.
  void (*gelu)(int64_t count, float *data);

  /// For up to 4 rows and a panel of 16 columns, in f64: sums[i * 16 + j] += sum over l < depth of
  /// a[i * rowStep + l * depthStep] * b[l * 16 + j].
  void (*multiplyDoubles)(int64_t rows, int64_t depth, const double *a, int64_t rowStep, int64_t depthStep,
                          const double *b, double *sums);

  /// target[i] = (source[i] - zero) * factor.
  void (*widenI8)(int64_t count, const int8_t *source, float zero, float factor, float *target);
  /// These convert 16-bit floats to f32 and back, to nearest even.
  void (*widenBf16)(int64_t count, const uint16_t *source, float *target);
  void (*widenF16)(int64_t count, const uint16_t *source, float *target);
  void (*narrowBf16)(int64_t count, const float *source, uint16_t *target);
  void (*narrowF16)(int64_t count, const float *source, uint16_t *target);
};

/// The tables, one per instruction set that VectorKernels.cpp is compiled for.
extern const VectorKernels vectorKernelsV1, vectorKernelsV3, vectorKernelsV4;

enum class InstructionSet : int8_t;

/// Returns the best table up to `most` that this processor runs.
const VectorKernels &vectorKernels(InstructionSet most);

} // namespace segue::inline runtime

#endif // SEGUE_RUNTIME_LIB_ENGINE_VECTORKERNELS_H
