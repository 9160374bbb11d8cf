// RUN: segue-opt %s --split-input-file --segue-autodiff | FileCheck %s

// The forward function gives what backward needs, and only that; backward takes
// saved values, then forward arguments, then gradients of outputs, and gives
// gradients of parameters, then of inputs. tanh keeps its result.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: ) -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>},
// CHECK-SAME: tensor<4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>}) {
// CHECK: %[[MUL:.*]] = segue.mul
// CHECK: %[[TANH:.*]] = segue.tanh %[[MUL]]
// CHECK: return %[[TANH]], %[[TANH]]
// CHECK-LABEL: func.func @backward
// CHECK-SAME: (%[[SAVED:[a-z0-9]+]]: tensor<4xf32> {segue.name = "saved.0", segue.role = #segue.role<saved>},
// CHECK-SAME:  %[[X:[a-z0-9]+]]: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>},
// CHECK-SAME:  %[[W:[a-z0-9]+]]: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
// CHECK-SAME:  %[[GRAD:[a-z0-9]+]]: tensor<4xf32> {segue.name = "grad.y", segue.of = "y", segue.role = #segue.role<gradient>}) ->
// CHECK-SAME: (tensor<4xf32> {segue.name = "grad.w", segue.of = "w", segue.role = #segue.role<gradient>},
// CHECK-SAME:  tensor<4xf32> {segue.name = "grad.x", segue.of = "x", segue.role = #segue.role<gradient>}) {
// CHECK: %[[SQUARE:.*]] = segue.mul %[[SAVED]], %[[SAVED]]
// CHECK: %[[SLOPE:.*]] = segue.sub %{{.*}}, %[[SQUARE]]
// CHECK: %[[G:.*]] = segue.mul %[[GRAD]], %[[SLOPE]]
// CHECK: %[[GX:.*]] = segue.mul %[[G]], %[[W]]
// CHECK: %[[GW:.*]] = segue.mul %[[G]], %[[X]]
// CHECK: return %[[GW]], %[[GX]]
// The original stays, for evaluation.
// CHECK-LABEL: func.func @inference
// CHECK-SAME: ) -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.mul %x, %w : tensor<4xf32>
  %1 = segue.tanh %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

// LoRA: frozen weights get no gradient, and the input of the frozen matmul is
// not saved for it. Only the adapters' path is differentiated.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: (%{{[a-z0-9]+}}: tensor<2x4xf32> {segue.name = "saved.0", {{[^}]*}}}, %{{[a-z0-9]+}}: tensor<2x8xf32> {segue.name = "x"
// CHECK-NOT: segue.name = "base"
// CHECK-SAME: -> (tensor<4x8xf32> {segue.name = "grad.a", {{[^}]*}}}, tensor<8x4xf32> {segue.name = "grad.b", {{[^}]*}}}) {
// CHECK-COUNT-3: segue.dot_general
// CHECK-NOT: segue.dot_general
// CHECK: return
func.func @forward(%x: tensor<2x8xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %base: tensor<8x8xf32> {segue.name = "base", segue.role = #segue.role<frozen>},
                   %a: tensor<4x8xf32> {segue.name = "a", segue.role = #segue.role<parameter>},
                   %b: tensor<8x4xf32> {segue.name = "b", segue.role = #segue.role<parameter>})
    -> (tensor<2x8xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %base batch [] x [] contract [1] x [1] : tensor<2x8xf32>, tensor<8x8xf32> -> tensor<2x8xf32>
  %1 = segue.dot_general %x, %a batch [] x [] contract [1] x [1] : tensor<2x8xf32>, tensor<4x8xf32> -> tensor<2x4xf32>
  %2 = segue.dot_general %1, %b batch [] x [] contract [1] x [1] : tensor<2x4xf32>, tensor<8x4xf32> -> tensor<2x8xf32>
  %3 = segue.add %0, %2 : tensor<2x8xf32>
  return %3 : tensor<2x8xf32>
}

// -----

// A value that is used twice gets the sum of both gradients; so does a tied
// parameter, which is one argument.
// CHECK-LABEL: func.func @backward
// CHECK: %[[A:.*]] = segue.mul %[[GRAD:.*]], %[[W:.*]] :
// CHECK: %[[B:.*]] = segue.mul %[[GRAD]], %[[W]] :
// CHECK: %[[SUM:.*]] = segue.add %[[A]], %[[B]] :
// CHECK: return %[[SUM]]
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.mul %w, %w : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// Constants, iotas and views of an argument are made again in backward rather
// than saved, and what backward takes is the argument itself.
// CHECK-LABEL: func.func @forward
// CHECK-NOT: segue.role<saved>
// CHECK-LABEL: func.func @backward
// CHECK-SAME: (%[[X:[a-z0-9]+]]: tensor<4xf32> {segue.name = "x"
// CHECK-NOT: segue.role<saved>
// CHECK: %[[C:.*]] = segue.constant dense<[
// CHECK: segue.mul %{{.*}}, %[[C]]
// CHECK: %[[WIDE:.*]] = segue.broadcast %[[X]] dims [1]
// CHECK: segue.mul %{{.*}}, %[[WIDE]]
// CHECK-LABEL: func.func @inference
func.func @forward(%x: tensor<4xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %w: tensor<2x4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<2x4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %c = segue.constant dense<[[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]> : tensor<2x4xf32>
  %0 = segue.broadcast %x dims [1] : tensor<4xf32> -> tensor<2x4xf32>
  %1 = segue.mul %w, %0 : tensor<2x4xf32>
  %2 = segue.mul %1, %c : tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}

// -----

// A parameter without a path to an output gets zeros: the optimizer still
// decays it. An output without a path takes no gradient.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: (%[[GY:[a-z0-9]+]]: tensor<4xf32> {segue.name = "grad.y"
// CHECK-NOT: "grad.z"
// CHECK-SAME: -> (tensor<4xf32> {segue.name = "grad.w"
// CHECK-SAME: tensor<3xf32> {segue.name = "grad.lost"
// CHECK: %[[ZERO:.*]] = segue.constant dense<0.000000e+00> : tensor<3xf32>
// CHECK: return %[[GY]], %[[ZERO]]
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %lost: tensor<3xf32> {segue.name = "lost", segue.role = #segue.role<parameter>},
                   %c: tensor<4xf32> {segue.name = "c", segue.role = #segue.role<frozen>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<4xf32> {segue.name = "z", segue.role = #segue.role<output>}) {
  %y = segue.add %w, %c : tensor<4xf32>
  %z = segue.exp %c : tensor<4xf32>
  return %y, %z : tensor<4xf32>, tensor<4xf32>
}

// -----

// Nothing to train: @backward is there and empty, so that a frozen module can
// stand between trained ones.
// CHECK-LABEL: func.func @backward() {
// CHECK-NEXT: return
func.func @forward(%ids: tensor<3xi64> {segue.name = "ids", segue.role = #segue.role<input>},
                   %table: tensor<8x4xf32> {segue.name = "wte", segue.role = #segue.role<frozen>})
    -> (tensor<3x4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.gather %table[%ids] : tensor<8x4xf32>, tensor<3xi64> -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// -----

// Slices that tile a value, as q, k and v tile a joined projection, get their
// gradients side by side: no zeros are written and added. Whatever order the
// slices are used in, the pieces lie as they lay.
// CHECK-LABEL: func.func @backward
// CHECK: segue.mul
// CHECK-NOT: segue.pad
// CHECK: %[[C:.*]] = segue.concat %[[LO:.*]], %[[HI:.*]] dim 1 : tensor<2x3xf32>, tensor<2x5xf32> -> tensor<2x8xf32>
// CHECK-NOT: segue.pad
// CHECK: return %[[C]]
func.func @forward(%w: tensor<2x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<2x3xf32> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<2x5xf32> {segue.name = "z", segue.role = #segue.role<output>}) {
  %a = segue.slice %w [0, 0] to [2, 3] by [1, 1] : tensor<2x8xf32> -> tensor<2x3xf32>
  %b = segue.slice %w [0, 3] to [2, 8] by [1, 1] : tensor<2x8xf32> -> tensor<2x5xf32>
  %y = segue.exp %a : tensor<2x3xf32>
  %z = segue.exp %b : tensor<2x5xf32>
  return %y, %z : tensor<2x3xf32>, tensor<2x5xf32>
}

// -----

// Slices that follow one another but end before the value does are no tiling:
// what they leave out gets zeros.
// CHECK-LABEL: func.func @backward
// CHECK-NOT: segue.concat
// CHECK-COUNT-2: segue.pad
// CHECK: segue.add
func.func @forward(%w: tensor<2x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<2x3xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %a = segue.slice %w [0, 0] to [2, 3] by [1, 1] : tensor<2x8xf32> -> tensor<2x3xf32>
  %b = segue.slice %w [0, 3] to [2, 6] by [1, 1] : tensor<2x8xf32> -> tensor<2x3xf32>
  %y = segue.add %a, %b : tensor<2x3xf32>
  return %y : tensor<2x3xf32>
}

// -----

// Slices that overlap or leave a gap are padded and added.
// CHECK-LABEL: func.func @backward
// CHECK-NOT: segue.concat
// CHECK-COUNT-2: segue.pad
// CHECK: segue.add
func.func @forward(%w: tensor<2x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<2x4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %a = segue.slice %w [0, 0] to [2, 4] by [1, 1] : tensor<2x8xf32> -> tensor<2x4xf32>
  %b = segue.slice %w [0, 3] to [2, 7] by [1, 1] : tensor<2x8xf32> -> tensor<2x4xf32>
  %y = segue.add %a, %b : tensor<2x4xf32>
  return %y : tensor<2x4xf32>
}

// -----

// bf16: formulas are in f32 and rounded once, sums over rows too, and the
// gradient has the type of its parameter.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: -> (tensor<8xbf16> {segue.name = "grad.g"
// CHECK: %[[SUM:.*]] = segue.reduce sum %{{.*}} dims [0] : tensor<4x8xf32> -> tensor<8xf32>
// CHECK: segue.cast %[[SUM]] : tensor<8xf32> -> tensor<8xbf16>
func.func @forward(%x: tensor<4x8xbf16> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %g: tensor<8xbf16> {segue.name = "g", segue.role = #segue.role<parameter>})
    -> (tensor<4x8xbf16> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y, %rstd = segue.rms_norm %x gamma %g : tensor<8xbf16> eps 1.0e-5 : tensor<4x8xbf16> -> tensor<4xf32>
  return %y : tensor<4x8xbf16>
}

// -----

// Of the two orders of a contraction the one without a transpose is taken: the
// gradient of a PyTorch weight [out, in] comes out as [out, in].
// CHECK-LABEL: func.func @backward
// CHECK-SAME: (%[[X:[a-z0-9]+]]: tensor<4x8xf32> {{.*}}, %[[W:[a-z0-9]+]]: tensor<6x8xf32> {{.*}}, %[[G:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-NOT: segue.transpose
// CHECK: segue.dot_general %[[G]], %[[W]] batch [] x [] contract [1] x [0]
// CHECK: segue.dot_general %[[G]], %[[X]] batch [] x [] contract [0] x [0]
// CHECK-NOT: segue.transpose
// CHECK: return
func.func @forward(%x: tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<6x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4x6xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [1] : tensor<4x8xf32>, tensor<6x8xf32> -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}

// -----

// The path ends where a float becomes an integer or a truth value: no gradient
// flows into the condition of a select.
// CHECK-LABEL: func.func @backward
// CHECK: segue.select
// CHECK-NOT: segue.compare
// CHECK: return
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %v: tensor<4xf32> {segue.name = "v", segue.role = #segue.role<frozen>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %c = segue.compare gt %w, %v : tensor<4xf32> -> tensor<4xi1>
  %y = segue.select %c, %w, %v : tensor<4xi1>, tensor<4xf32>
  return %y : tensor<4xf32>
}

// -----

// A detached value is read and not differentiated: backward has the other factor alone, nothing is saved for what lies
// before the stop, and a result that depends on parameters through it alone takes no gradient.
// CHECK-LABEL: func.func @backward
// CHECK-SAME: (%[[SAVED:[a-z0-9]+]]: tensor<4xf32> {segue.name = "saved.0", {{[^}]*}}}, %{{[a-z0-9]+}}: tensor<4xf32> {segue.name = "grad.y"
// CHECK-NOT: grad.z
// CHECK-SAME: -> (tensor<4xf32> {segue.name = "grad.w"
// CHECK: %[[G:.*]] = segue.mul %{{.*}}, %{{.*}}
// CHECK-NOT: segue.exp
// CHECK: return %[[G]]
func.func @forward(%w: tensor<4xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<4xf32> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<4xf32> {segue.name = "z", segue.role = #segue.role<output>}) {
  %e = segue.exp %w : tensor<4xf32>
  %s = segue.detach %e : tensor<4xf32>
  %y = segue.mul %w, %s : tensor<4xf32>
  return %y, %s : tensor<4xf32>, tensor<4xf32>
}
