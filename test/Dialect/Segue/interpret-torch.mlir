// RUN: segue-opt %s --segue-interpret="all" -o /dev/null

// Ops of many parts, against PyTorch 2.13 in double.

// The variance is over n, not n - 1.
func.func @layer_norm() {
  %c1 = segue.constant dense<[[1.54000000e+00, -2.90000000e-01, -2.18000000e+00, 5.70000000e-01], [-1.08000000e+00, -1.40000000e+00, 4.00000000e-01, 8.40000000e-01]]> : tensor<2x4xf32>
  %c2 = segue.constant dense<[-7.20000000e-01, -4.00000000e-01, -6.00000000e-01, 1.80000000e-01]> : tensor<4xf32>
  %c3 = segue.constant dense<[-8.60000000e-01, 1.10000000e+00, -1.07000000e+00, 1.20000000e-01]> : tensor<4xf32>
  %y, %m, %r = segue.layer_norm %c1 gamma %c2 : tensor<4xf32> beta %c3 : tensor<4xf32> eps 1.0e-5 : tensor<2x4xf32> -> tensor<2xf32>
  check.expect_close_const %y, dense<[[-1.71703969e+00, 1.15842125e+00, -1.54246955e-01, 2.06755552e-01], [-2.76230205e-01, 1.55909746e+00, -1.51856770e+00, 3.37965995e-01]]> : tensor<2x4xf32>
  check.expect_close_const %m, dense<[-9.00000000e-02, -3.10000000e-01]> : tensor<2xf32>
  check.expect_close_const %r, dense<[7.30265586e-01, 1.05297582e+00]> : tensor<2xf32>
  %z, %m2, %r2 = segue.layer_norm %c1 eps 1.0e-5 : tensor<2x4xf32> -> tensor<2xf32>
  check.expect_close_const %z, dense<[[1.19033291e+00, -1.46053117e-01, -1.52625507e+00, 4.81975287e-01], [-8.10791382e-01, -1.14774365e+00, 7.47612833e-01, 1.21092219e+00]]> : tensor<2x4xf32>
  return
}

// torch.nn.functional.rms_norm.
func.func @rms_norm() {
  %c4 = segue.constant dense<[[1.54000000e+00, -2.90000000e-01, -2.18000000e+00, 5.70000000e-01], [-1.08000000e+00, -1.40000000e+00, 4.00000000e-01, 8.40000000e-01]]> : tensor<2x4xf32>
  %c5 = segue.constant dense<[-7.20000000e-01, -4.00000000e-01, -6.00000000e-01, 1.80000000e-01]> : tensor<4xf32>
  %y, %r = segue.rms_norm %c4 gamma %c5 : tensor<4xf32> eps 1.0e-5 : tensor<2x4xf32> -> tensor<2xf32>
  check.expect_close_const %y, dense<[[-8.07975285e-01, 8.45284389e-02, 9.53131017e-01, 7.47639468e-02], [7.78374869e-01, 5.60558033e-01, -2.40239157e-01, 1.51350669e-01]]> : tensor<2x4xf32>
  check.expect_close_const %r, dense<[7.28693438e-01, 1.00099649e+00]> : tensor<2xf32>
  return
}

// Along either dimension; large inputs do not overflow.
func.func @softmax() {
  %c6 = segue.constant dense<[[1.54000000e+00, -2.90000000e-01, -2.18000000e+00, 5.70000000e-01], [-1.08000000e+00, -1.40000000e+00, 4.00000000e-01, 8.40000000e-01]]> : tensor<2x4xf32>
  %c7 = segue.constant dense<[[1.54000000e+03, -2.90000000e+02, -2.18000000e+03, 5.70000000e+02], [-1.08000000e+03, -1.40000000e+03, 4.00000000e+02, 8.40000000e+02]]> : tensor<2x4xf32>
  %s0 = segue.softmax %c6 dim 0 : tensor<2x4xf32>
  check.expect_close_const %s0, dense<[[9.32137706e-01, 7.52129111e-01, 7.04367309e-02, 4.32907095e-01], [6.78622936e-02, 2.47870889e-01, 9.29563269e-01, 5.67092905e-01]]> : tensor<2x4xf32>
  %l0 = segue.log_softmax %c6 dim 0 : tensor<2x4xf32>
  check.expect_close_const %l0, dense<[[-7.02747215e-02, -2.84847279e-01, -2.65304041e+00, -8.37232135e-01], [-2.69027472e+00, -1.39484728e+00, -7.30404062e-02, -5.67232135e-01]]> : tensor<2x4xf32>
  %s1 = segue.softmax %c6 dim 1 : tensor<2x4xf32>
  check.expect_close_const %s1, dense<[[6.39496354e-01, 1.02583892e-01, 1.54975341e-02, 2.42422221e-01], [7.72794351e-02, 5.61163874e-02, 3.39484360e-01, 5.27119817e-01]]> : tensor<2x4xf32>
  %l1 = segue.log_softmax %c6 dim 1 : tensor<2x4xf32>
  check.expect_close_const %l1, dense<[[-4.47074360e-01, -2.27707436e+00, -4.16707436e+00, -1.41707436e+00], [-2.56032740e+00, -2.88032740e+00, -1.08032740e+00, -6.40327399e-01]]> : tensor<2x4xf32>
  %big = segue.softmax %c7 dim 1 : tensor<2x4xf32>
  check.expect_close_const %big, dense<[[1.00000000e+00, 0.00000000e+00, 0.00000000e+00, 0.00000000e+00], [0.00000000e+00, 0.00000000e+00, 8.13631891e-192, 1.00000000e+00]]> : tensor<2x4xf32>
  return
}

// A row with the ignored target has loss 0, and its lse all the same.
func.func @cross_entropy() {
  %c8 = segue.constant dense<[[1.54000000e+00, -2.90000000e-01, -2.18000000e+00, 5.70000000e-01], [-1.08000000e+00, -1.40000000e+00, 4.00000000e-01, 8.40000000e-01]]> : tensor<2x4xf32>
  %c9 = segue.constant dense<[2, -100]> : tensor<2xi64>
  %l, %s = segue.cross_entropy %c8, %c9 ignore_index -100 : tensor<2x4xf32>, tensor<2xi64> -> tensor<2xf32>
  check.expect_close_const %l, dense<[4.16707436e+00, 0.00000000e+00]> : tensor<2xf32>
  check.expect_close_const %s, dense<[1.98707436e+00, 1.48032740e+00]> : tensor<2xf32>
  return
}

// Forward and gradients from torch.
func.func @attention_causal() {
  %c10 = segue.constant dense<[[[[-5.70000000e-01, 3.70000000e-01], [-8.90000000e-01, -1.51000000e+00], [3.70000000e-01, 1.46000000e+00]], [[9.40000000e-01, 7.70000000e-01], [1.90000000e-01, 1.26000000e+00], [-1.29000000e+00, -7.90000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c11 = segue.constant dense<[[[[-2.00000000e-02, -7.20000000e-01], [5.20000000e-01, -1.31000000e+00], [1.90000000e-01, 5.40000000e-01]], [[-2.22000000e+00, 2.60000000e-01], [-1.03000000e+00, -5.00000000e-01], [2.70000000e-01, -9.20000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c12 = segue.constant dense<[[[[-4.00000000e-02, 2.90000000e-01], [-1.00000000e-02, -9.10000000e-01], [-1.09000000e+00, -2.70000000e-01]], [[1.90000000e-01, -2.20000000e-01], [2.06000000e+00, -4.00000000e-02], [6.00000000e-02, -7.70000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c13 = segue.constant dense<[[[[1.10000000e+00, 2.76000000e+00], [1.80000000e-01, -9.30000000e-01], [-1.51000000e+00, -6.60000000e-01]], [[1.32000000e+00, 4.00000000e-02], [-2.80000000e-01, -1.30000000e-01], [1.89000000e+00, 3.11000000e+00]]]]> : tensor<1x2x3x2xf32>
  %o, %l = segue.attention %c10, %c11, %c12 causal scale 0.5 : tensor<1x2x3x2xf32>, tensor<1x2x3x2xf32> -> tensor<1x2x3xf32>
  check.expect_close_const %o, dense<[[[[-4.00000000e-02, 2.90000000e-01], [-2.34667487e-02, -3.71330053e-01], [-6.67994339e-01, -2.46827402e-01]], [[1.90000000e-01, -2.20000000e-01], [9.55892850e-01, -1.46277694e-01], [7.70672732e-01, -2.52422536e-01]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %l, dense<[[[-1.27500000e-01, 1.35347380e+00, 9.35463960e-01], [-9.43300000e-01, 4.79801432e-01, 1.99523070e+00]]]> : tensor<1x2x3xf32>
  %dq, %dk, %dv = segue.attention_grad %c10, %c11, %c12 out %o lse %l grad %c13 causal scale 0.5 : tensor<1x2x3x2xf32>, tensor<1x2x3x2xf32>, tensor<1x2x3xf32>
  check.expect_close_const %dq, dense<[[[[0.00000000e+00, 0.00000000e+00], [7.49036238e-02, -8.18391445e-02], [1.63835611e-02, 2.75045246e-01]], [[0.00000000e+00, 0.00000000e+00], [-7.87046363e-02, 5.02651459e-02], [-1.07240247e-02, -9.26762059e-02]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %dk, dense<[[[[6.77546784e-02, -1.03269556e-02], [-1.40526743e-01, -2.76827677e-01], [7.27720645e-02, 2.87154633e-01]], [[3.42816745e-01, 2.85580726e-01], [-6.55764466e-01, -4.77230880e-01], [3.12947721e-01, 1.91650155e-01]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %dv, dense<[[[[8.31790354e-01, 2.18998331e+00], [-1.51511514e-01, -6.22113092e-01], [-9.10278840e-01, -3.97870221e-01]], [[2.12565481e+00, 1.56098692e+00], [4.93793170e-01, 9.47998913e-01], [3.10552016e-01, 5.11014164e-01]]]]> : tensor<1x2x3x2xf32>
  return
}

// A float mask is added to the scores; it is broadcast over heads.
func.func @attention_added() {
  %c14 = segue.constant dense<[[[[-5.70000000e-01, 3.70000000e-01], [-8.90000000e-01, -1.51000000e+00], [3.70000000e-01, 1.46000000e+00]], [[9.40000000e-01, 7.70000000e-01], [1.90000000e-01, 1.26000000e+00], [-1.29000000e+00, -7.90000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c15 = segue.constant dense<[[[[-2.00000000e-02, -7.20000000e-01], [5.20000000e-01, -1.31000000e+00], [1.90000000e-01, 5.40000000e-01]], [[-2.22000000e+00, 2.60000000e-01], [-1.03000000e+00, -5.00000000e-01], [2.70000000e-01, -9.20000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c16 = segue.constant dense<[[[[-4.00000000e-02, 2.90000000e-01], [-1.00000000e-02, -9.10000000e-01], [-1.09000000e+00, -2.70000000e-01]], [[1.90000000e-01, -2.20000000e-01], [2.06000000e+00, -4.00000000e-02], [6.00000000e-02, -7.70000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c17 = segue.constant dense<[[[[1.10000000e+00, 2.76000000e+00], [1.80000000e-01, -9.30000000e-01], [-1.51000000e+00, -6.60000000e-01]], [[1.32000000e+00, 4.00000000e-02], [-2.80000000e-01, -1.30000000e-01], [1.89000000e+00, 3.11000000e+00]]]]> : tensor<1x2x3x2xf32>
  %c18 = segue.constant dense<[[[[-4.60000000e-01, -3.40000000e-01, -1.57000000e+00], [1.23000000e+00, 1.39000000e+00, 1.17000000e+00], [4.30000000e-01, -1.73000000e+00, -1.34000000e+00]]]]> : tensor<1x1x3x3xf32>
  %o, %l = segue.attention %c14, %c15, %c16 mask %c18 : tensor<1x1x3x3xf32> scale 0.5 : tensor<1x2x3x2xf32>, tensor<1x2x3x2xf32> -> tensor<1x2x3xf32>
  check.expect_close_const %o, dense<[[[[-2.10677125e-01, -2.67651152e-01], [-1.49896776e-01, -4.00614775e-01], [-3.43834077e-01, 6.19884293e-02]], [[1.03704116e+00, -2.53661248e-01], [7.98268594e-01, -2.89495871e-01], [3.03656438e-01, -2.35047372e-01]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %l, dense<[[[2.27249657e-01, 2.80207767e+00, 3.24071545e-01], [-2.57019177e-01, 2.05056596e+00, 1.87853576e+00]]]> : tensor<1x2x3xf32>
  %dq, %dk, %dv = segue.attention_grad %c14, %c15, %c16 mask %c18 : tensor<1x1x3x3xf32> out %o lse %l grad %c17 scale 0.5 : tensor<1x2x3x2xf32>, tensor<1x2x3x2xf32>, tensor<1x2x3xf32>
  check.expect_close_const %dq, dense<[[[[-1.78555615e-01, 6.92627170e-02], [6.63639777e-02, -9.83814517e-02], [4.31225778e-02, 2.44459048e-01]], [[2.86352825e-02, -7.58946430e-02], [1.38522480e-03, 1.22694580e-02], [2.19635847e-02, -3.50948504e-02]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %dk, dense<[[[[-1.91782639e-01, 1.97366445e-02], [5.57386669e-02, -3.00519773e-01], [1.36043972e-01, 2.80783128e-01]], [[-6.42006418e-02, -3.50769362e-02], [1.23855588e-01, 6.22294249e-02], [-5.96549460e-02, -2.71524887e-02]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %dv, dense<[[[[-4.36841607e-01, 4.54304178e-01], [4.33747118e-01, 5.39950222e-01], [-2.26905510e-01, 1.75745600e-01]], [[1.97933079e+00, 2.71827704e+00], [6.43088397e-01, 1.73751118e-01], [3.07580816e-01, 1.27971847e-01]]]]> : tensor<1x2x3x2xf32>
  return
}

// Row 1 sees no key: zeros, minus infinity, and no gradient.
func.func @attention_dead_row() {
  %c19 = segue.constant dense<[[[[-5.70000000e-01, 3.70000000e-01], [-8.90000000e-01, -1.51000000e+00], [3.70000000e-01, 1.46000000e+00]], [[9.40000000e-01, 7.70000000e-01], [1.90000000e-01, 1.26000000e+00], [-1.29000000e+00, -7.90000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c20 = segue.constant dense<[[[[-2.00000000e-02, -7.20000000e-01], [5.20000000e-01, -1.31000000e+00], [1.90000000e-01, 5.40000000e-01]], [[-2.22000000e+00, 2.60000000e-01], [-1.03000000e+00, -5.00000000e-01], [2.70000000e-01, -9.20000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c21 = segue.constant dense<[[[[-4.00000000e-02, 2.90000000e-01], [-1.00000000e-02, -9.10000000e-01], [-1.09000000e+00, -2.70000000e-01]], [[1.90000000e-01, -2.20000000e-01], [2.06000000e+00, -4.00000000e-02], [6.00000000e-02, -7.70000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c22 = segue.constant dense<[[[[1.10000000e+00, 2.76000000e+00], [1.80000000e-01, -9.30000000e-01], [-1.51000000e+00, -6.60000000e-01]], [[1.32000000e+00, 4.00000000e-02], [-2.80000000e-01, -1.30000000e-01], [1.89000000e+00, 3.11000000e+00]]]]> : tensor<1x2x3x2xf32>
  %c23 = segue.constant dense<[[[[true, false, true], [false, false, false], [true, true, true]]]]> : tensor<1x1x3x3xi1>
  %o, %l = segue.attention %c19, %c20, %c21 mask %c23 : tensor<1x1x3x3xi1> scale 0.5 : tensor<1x2x3x2xf32>, tensor<1x2x3x2xf32> -> tensor<1x2x3xf32>
  check.expect_close_const %o, dense<[[[[-6.10364711e-01, -1.41945126e-02], [0.00000000e+00, 0.00000000e+00], [-6.67994339e-01, -2.46827402e-01]], [[1.02675674e-01, -5.89449070e-01], [0.00000000e+00, 0.00000000e+00], [7.70672732e-01, -2.52422536e-01]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %l, dense<[[[6.56019443e-01, 0xFF800000, 9.35463960e-01], [1.70605381e-01, 0xFF800000, 1.99523070e+00]]]> : tensor<1x2x3xf32>
  %dq, %dk, %dv = segue.attention_grad %c19, %c20, %c21 mask %c23 : tensor<1x1x3x3xi1> out %o lse %l grad %c22 scale 0.5 : tensor<1x2x3x2xf32>, tensor<1x2x3x2xf32>, tensor<1x2x3xf32>
  check.expect_close_const %dq, dense<[[[[-7.03614435e-02, -4.22168661e-01], [0.00000000e+00, 0.00000000e+00], [1.63835611e-02, 2.75045246e-01]], [[-5.31500445e-02, 2.51875713e-02], [0.00000000e+00, 0.00000000e+00], [-1.07240247e-02, -9.26762059e-02]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %dk, dense<[[[[-2.46678651e-01, -9.58095191e-02], [-1.70744740e-02, -6.73749514e-02], [2.63753125e-01, 1.63184470e-01]], [[3.50315134e-01, 2.18682362e-01], [-6.43198180e-01, -3.93896560e-01], [2.92883046e-01, 1.75214197e-01]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %dv, dense<[[[[1.53464927e-01, 1.10820814e+00], [-2.50711022e-01, -1.09582301e-01], [-3.12753904e-01, 1.10137416e+00]], [[1.40429790e+00, 1.61087401e+00], [6.08472313e-01, 1.00124280e+00], [1.19722979e+00, 5.37883188e-01]]]]> : tensor<1x2x3x2xf32>
  return
}

// More keys than rows; with `causal` row i still sees keys 0 to i.
func.func @attention_cross() {
  %c24 = segue.constant dense<[[[[-5.70000000e-01, 3.70000000e-01], [-8.90000000e-01, -1.51000000e+00], [3.70000000e-01, 1.46000000e+00]], [[9.40000000e-01, 7.70000000e-01], [1.90000000e-01, 1.26000000e+00], [-1.29000000e+00, -7.90000000e-01]]]]> : tensor<1x2x3x2xf32>
  %c25 = segue.constant dense<[[[[-1.10000000e-01, 3.20000000e-01], [-5.20000000e-01, -5.90000000e-01], [-6.90000000e-01, -5.80000000e-01], [-5.90000000e-01, 6.20000000e-01], [-1.49000000e+00, 1.36000000e+00]], [[4.20000000e-01, 3.40000000e-01], [-1.40000000e+00, -2.40000000e-01], [2.10000000e-01, -1.20000000e-01], [-2.00000000e-02, -2.40000000e-01], [-4.40000000e-01, 2.71000000e+00]]]]> : tensor<1x2x5x2xf32>
  %c26 = segue.constant dense<[[[[4.30000000e-01, -3.70000000e-01], [-5.30000000e-01, -1.30000000e-01], [-1.54000000e+00, -4.80000000e-01], [7.60000000e-01, 2.20000000e-01], [-4.80000000e-01, -2.60000000e-01]], [[6.00000000e-01, -1.54000000e+00], [-7.00000000e-02, -1.40000000e-01], [7.90000000e-01, -2.06000000e+00], [-6.70000000e-01, -4.00000000e-01], [3.60000000e-01, -6.50000000e-01]]]]> : tensor<1x2x5x2xf32>
  %c27 = segue.constant dense<[[[[1.10000000e+00, 2.76000000e+00], [1.80000000e-01, -9.30000000e-01], [-1.51000000e+00, -6.60000000e-01]], [[1.32000000e+00, 4.00000000e-02], [-2.80000000e-01, -1.30000000e-01], [1.89000000e+00, 3.11000000e+00]]]]> : tensor<1x2x3x2xf32>
  %o, %l = segue.attention %c24, %c25, %c26 causal scale 0.5 : tensor<1x2x3x2xf32>, tensor<1x2x5x2xf32> -> tensor<1x2x3xf32>
  check.expect_close_const %o, dense<[[[[4.30000000e-01, -3.70000000e-01], [-2.46455982e-01, -2.00886005e-01], [-2.77936848e-01, -3.37433201e-01]], [[6.00000000e-01, -1.54000000e+00], [3.53049300e-01, -1.02398361e+00], [2.17389612e-01, -7.66737443e-01]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %l, dense<[[[9.05500000e-02, 1.02691591e+00, 8.77329856e-01], [3.28300000e-01, 7.13888991e-01, 1.45742052e+00]]]> : tensor<1x2x3xf32>
  %dq, %dk, %dv = segue.attention_grad %c24, %c25, %c26 out %o lse %l grad %c27 causal scale 0.5 : tensor<1x2x3x2xf32>, tensor<1x2x5x2xf32>, tensor<1x2x3xf32>
  check.expect_close_const %dq, dense<[[[[0.00000000e+00, 0.00000000e+00], [1.68953274e-02, 3.74993852e-02], [-1.51279076e-01, -2.42935878e-01]], [[0.00000000e+00, 0.00000000e+00], [-1.18599008e-03, -3.77952882e-04], [-7.42187104e-01, -1.13330464e-01]]]]> : tensor<1x2x3x2xf32>
  check.expect_close_const %dk, dense<[[[[-1.36425848e-01, -4.55834830e-01], [4.77464259e-02, 1.05910623e-01], [8.86794222e-02, 3.49924206e-01], [0.00000000e+00, 0.00000000e+00], [0.00000000e+00, 0.00000000e+00]], [[1.68293124e-01, 1.02317984e-01], [-5.72580416e-01, -3.49904775e-01], [4.04287292e-01, 2.47586791e-01], [0.00000000e+00, 0.00000000e+00], [0.00000000e+00, 0.00000000e+00]]]]> : tensor<1x2x5x2xf32>
  check.expect_close_const %dv, dense<[[[[3.75896607e-01, 2.14558374e+00], [-2.43954210e-01, -8.17383757e-01], [-3.61942397e-01, -1.58199988e-01], [0.00000000e+00, 0.00000000e+00], [0.00000000e+00, 0.00000000e+00]], [[1.43665455e+00, 4.40790646e-01], [1.09037567e+00, 1.91612150e+00], [4.02969787e-01, 6.63087851e-01], [0.00000000e+00, 0.00000000e+00], [0.00000000e+00, 0.00000000e+00]]]]> : tensor<1x2x5x2xf32>
  return
}

// Rows that are named twice are added up.
func.func @gather_scatter() {
  %c28 = segue.constant dense<[[8.90000000e-01, -4.00000000e-02], [4.60000000e-01, 1.40000000e-01], [-1.42000000e+00, 2.04000000e+00], [9.60000000e-01, 3.30000000e-01]]> : tensor<4x2xf32>
  %c29 = segue.constant dense<[[3, 0], [3, 1]]> : tensor<2x2xi64>
  %c30 = segue.constant dense<[[[-1.44000000e+00, -1.38000000e+00], [-8.00000000e-01, -9.30000000e-01]], [[7.70000000e-01, 1.24000000e+00], [-7.70000000e-01, -9.90000000e-01]]]> : tensor<2x2x2xf32>
  %e = segue.gather %c28[%c29] : tensor<4x2xf32>, tensor<2x2xi64> -> tensor<2x2x2xf32>
  check.expect_close_const %e, dense<[[[9.60000000e-01, 3.30000000e-01], [8.90000000e-01, -4.00000000e-02]], [[9.60000000e-01, 3.30000000e-01], [4.60000000e-01, 1.40000000e-01]]]> : tensor<2x2x2xf32>
  %s = segue.scatter_add %c30[%c29] : tensor<2x2x2xf32>, tensor<2x2xi64> -> tensor<4x2xf32>
  check.expect_close_const %s, dense<[[-8.00000000e-01, -9.30000000e-01], [-7.70000000e-01, -9.90000000e-01], [0.00000000e+00, 0.00000000e+00], [-6.70000000e-01, -1.40000000e-01]]> : tensor<4x2xf32>
  return
}

// Two steps of torch.optim.AdamW; `clip` halves the gradients.
func.func @adamw() {
  %c31 = segue.constant dense<[1.70000000e+00, 1.20000000e-01, -9.20000000e-01]> : tensor<3xf32>
  %c32 = segue.constant dense<[0.00000000e+00, 0.00000000e+00, 0.00000000e+00]> : tensor<3xf32>
  %c33 = segue.constant dense<[0.00000000e+00, 0.00000000e+00, 0.00000000e+00]> : tensor<3xf32>
  %c34 = segue.constant dense<1.00000000e-01> : tensor<f32>
  %c35 = segue.constant dense<5.00000000e-01> : tensor<f32>
  %c36 = segue.constant dense<[1.03000000e+00, -1.12000000e+00, 7.30000000e-01]> : tensor<3xf32>
  %c37 = segue.constant dense<1> : tensor<i64>
  %p1, %m1, %v1 = segue.adamw %c31, %c36, %c32, %c33 lr %c34 step %c37 clip %c35 betas [0.9, 0.95] eps 1.0e-8 decay 0.1 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
  check.expect_close_const %p1, dense<[1.58300000e+00, 2.18799998e-01, -1.01080000e+00]> : tensor<3xf32>
  %c38 = segue.constant dense<[-4.00000000e-02, 1.16000000e+00, 1.50000000e-01]> : tensor<3xf32>
  %c39 = segue.constant dense<2> : tensor<i64>
  %p2, %m2, %v2 = segue.adamw %p1, %c38, %m1, %v1 lr %c34 step %c39 clip %c35 betas [0.9, 0.95] eps 1.0e-8 decay 0.1 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
  check.expect_close_const %p2, dense<[1.50228507e+00, 2.09598687e-01, -1.08225815e+00]> : tensor<3xf32>
  return
}

// Two steps of torch.optim.SGD; the first ignores the dampening.
func.func @sgd() {
  %c40 = segue.constant dense<[7.10000000e-01, 4.10000000e-01, -1.94000000e+00]> : tensor<3xf32>
  %c41 = segue.constant dense<[0.00000000e+00, 0.00000000e+00, 0.00000000e+00]> : tensor<3xf32>
  %c42 = segue.constant dense<1.00000000e-01> : tensor<f32>
  %c43 = segue.constant dense<5.00000000e-01> : tensor<f32>
  %c44 = segue.constant dense<[-1.28000000e+00, -1.35000000e+00, 6.00000000e-02]> : tensor<3xf32>
  %c45 = segue.constant dense<1> : tensor<i64>
  %p1, %u1 = segue.sgd %c40, %c44, %c41 lr %c42 step %c45 clip %c43 momentum 0.9 dampening 0.25 decay 0.1 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
  check.expect_close_const %p1, dense<[7.66900000e-01, 4.73400000e-01, -1.92360000e+00]> : tensor<3xf32>
  %c46 = segue.constant dense<[-3.00000000e-01, 1.55000000e+00, -4.30000000e-01]> : tensor<3xf32>
  %c47 = segue.constant dense<2> : tensor<i64>
  %p2, %u2 = segue.sgd %p1, %c46, %u1 lr %c42 step %c47 clip %c43 momentum 0.9 dampening 0.25 decay 0.1 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
  check.expect_close_const %p2, dense<[8.23608250e-01, 4.68784500e-01, -1.87828800e+00]> : tensor<3xf32>
  return
}

// The same with Nesterov's momentum.
func.func @sgd_nesterov() {
  %c48 = segue.constant dense<[-5.30000000e-01, -4.80000000e-01, 1.69000000e+00]> : tensor<3xf32>
  %c49 = segue.constant dense<[0.00000000e+00, 0.00000000e+00, 0.00000000e+00]> : tensor<3xf32>
  %c50 = segue.constant dense<1.00000000e-01> : tensor<f32>
  %c51 = segue.constant dense<5.00000000e-01> : tensor<f32>
  %c52 = segue.constant dense<[3.50000000e-01, 5.80000000e-01, -1.30000000e-01]> : tensor<3xf32>
  %c53 = segue.constant dense<1> : tensor<i64>
  %p1, %u1 = segue.sgd %c48, %c52, %c49 lr %c50 step %c53 clip %c51 momentum 0.9 dampening 0.0 decay 0.1 nesterov : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
  check.expect_close_const %p1, dense<[-5.53180000e-01, -5.25980000e-01, 1.67024000e+00]> : tensor<3xf32>
  %c54 = segue.constant dense<[1.01000000e+00, 5.30000000e-01, -8.00000000e-02]> : tensor<3xf32>
  %c55 = segue.constant dense<2> : tensor<i64>
  %p2, %u2 = segue.sgd %p1, %c54, %u1 lr %c50 step %c55 clip %c51 momentum 0.9 dampening 0.0 decay 0.1 nesterov : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
  check.expect_close_const %p2, dense<[-6.48501580e-01, -5.85938380e-01, 1.63768144e+00]> : tensor<3xf32>
  return
}

// Batched, and with a bias.
func.func @dot_general() {
  %c56 = segue.constant dense<[[[-5.00000000e-01, 1.93000000e+00], [-1.58000000e+00, -5.90000000e-01], [-1.80000000e-01, 3.50000000e-01]], [[-9.00000000e-01, -6.50000000e-01], [-7.00000000e-02, -2.26000000e+00], [8.40000000e-01, -1.26000000e+00]]]> : tensor<2x3x2xf32>
  %c57 = segue.constant dense<[[[1.10000000e+00, -3.60000000e-01, 3.20000000e-01, 5.20000000e-01], [1.24000000e+00, -3.40000000e-01, -2.70000000e-01, 3.30000000e-01]], [[-6.60000000e-01, 3.30000000e-01, 1.39000000e+00, 1.80000000e+00], [-1.20000000e-01, 1.57000000e+00, 9.70000000e-01, 5.20000000e-01]]]> : tensor<2x2x4xf32>
  %c58 = segue.constant dense<[-7.10000000e-01, 5.50000000e-01, 2.07000000e+00, -2.11000000e+00]> : tensor<4xf32>
  %c = segue.dot_general %c56, %c57 batch [0] x [0] contract [2] x [1] : tensor<2x3x2xf32>, tensor<2x2x4xf32> -> tensor<2x3x4xf32>
  check.expect_close_const %c, dense<[[[1.84320000e+00, -4.76200000e-01, -6.81100000e-01, 3.76900000e-01], [-2.46960000e+00, 7.69400000e-01, -3.46300000e-01, -1.01630000e+00], [2.36000000e-01, -5.42000000e-02, -1.52100000e-01, 2.19000000e-02]], [[6.72000000e-01, -1.31750000e+00, -1.88150000e+00, -1.95800000e+00], [3.17400000e-01, -3.57130000e+00, -2.28950000e+00, -1.30120000e+00], [-4.03200000e-01, -1.70100000e+00, -5.46000000e-02, 8.56800000e-01]]]> : tensor<2x3x4xf32>
  %d = segue.dot_general %c56, %c57 bias %c58 : tensor<4xf32> batch [0] x [0] contract [2] x [1] : tensor<2x3x2xf32>, tensor<2x2x4xf32> -> tensor<2x3x4xf32>
  check.expect_close_const %d, dense<[[[1.13320000e+00, 7.38000000e-02, 1.38890000e+00, -1.73310000e+00], [-3.17960000e+00, 1.31940000e+00, 1.72370000e+00, -3.12630000e+00], [-4.74000000e-01, 4.95800000e-01, 1.91790000e+00, -2.08810000e+00]], [[-3.80000000e-02, -7.67500000e-01, 1.88500000e-01, -4.06800000e+00], [-3.92600000e-01, -3.02130000e+00, -2.19500000e-01, -3.41120000e+00], [-1.11320000e+00, -1.15100000e+00, 2.01540000e+00, -1.25320000e+00]]]> : tensor<2x3x4xf32>
  %e = segue.dot_general %c56, %c56 batch [] x [] contract [0, 2] x [0, 2] : tensor<2x3x2xf32>, tensor<2x3x2xf32> -> tensor<3x3xf32>
  check.expect_close_const %e, dense<[[5.20740000e+00, 1.18330000e+00, 8.28500000e-01], [1.18330000e+00, 7.95700000e+00, 2.86670000e+00], [8.28500000e-01, 2.86670000e+00, 2.44810000e+00]]> : tensor<3x3xf32>
  return
}
