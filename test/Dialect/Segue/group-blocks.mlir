// RUN: segue-opt %s --split-input-file --pass-pipeline='builtin.module(func.func(segue-group-blocks))' | FileCheck %s
// RUN: %python %segue_source/test/tools/gpt_mlir.py --layers 3 --width 64 | segue-compile - --emit=prog --target=x86-64-v3 \
// RUN:   | FileCheck %s --check-prefix=GPT

// The kernel that ends the gradient of h.1 and begins that of h.0 goes to h.1,
// whose second sum reads it.
// CHECK-LABEL: func.func @backward
// CHECK: %[[TAIL:.*]]:2 = segue.launch @tail(%arg0) range 1 grain 1 {segue.block = "h.1"}
// CHECK: segue.launch @sum(%[[TAIL]]#1) range 1 grain 1 {segue.block = "h.1"}
// CHECK: %[[F:.*]] = segue.launch @sum(%[[TAIL]]#0) range 1 grain 1 {segue.block = "h.0"}
// CHECK: segue.launch @sum(%[[F]]) range 1 grain 1 {segue.block = "h.0"}
// CHECK-NOT: segue.blocks
module {
func.func @backward(%g: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a, %b = segue.launch @tail(%g) range 1 grain 1 {segue.block = "h.0", segue.blocks = ["h.1", "h.0"]} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %c = segue.launch @sum(%a) range 1 grain 1 {segue.block = "h.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %d = segue.launch @sum(%b) range 1 grain 1 {segue.block = "h.1"} : (tensor<4xf32>) -> tensor<4xf32>
  %e = segue.launch @sum(%c) range 1 grain 1 {segue.block = "h.0"} : (tensor<4xf32>) -> tensor<4xf32>
  return %d, %e : tensor<4xf32>, tensor<4xf32>
}
module @kernels {
  func.func private @tail(memref<?xf32>, memref<?xf32>, memref<?xf32>, index, index) -> i64
  func.func private @sum(memref<?xf32>, memref<?xf32>, index, index) -> i64
}
}

// -----

// An op without a block goes into the one around it (%b) or between blocks
// (%e); a view goes before its first reader, a value that nobody reads stays.
// CHECK-LABEL: func.func @forward
// CHECK: %[[A:.*]] = segue.launch @k(%arg0) range 1 grain 1 {segue.block = "h.0"}
// CHECK-NEXT: %[[B:.*]] = segue.launch @k(%[[A]]) range 1 grain 1 {segue.block = "h.0"}
// CHECK-NEXT: %[[C:.*]] = segue.launch @k(%[[B]]) range 1 grain 1 {segue.block = "h.0"}
// CHECK-NEXT: %[[E:.*]] = segue.launch @k(%[[C]]) range 1 grain 1 :
// CHECK-NEXT: %[[R:.*]] = segue.reshape %[[E]] {segue.block = "h.1"}
// CHECK-NEXT: segue.launch @k2(%[[R]]) range 1 grain 1 {segue.block = "h.1"}
// CHECK-NEXT: segue.transpose
// CHECK-NEXT: return
module {
func.func @forward(%x: tensor<4xf32>) -> tensor<2x2xf32> {
  %a = segue.launch @k(%x) range 1 grain 1 {segue.block = "h.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %b = segue.launch @k(%a) range 1 grain 1 : (tensor<4xf32>) -> tensor<4xf32>
  %c = segue.launch @k(%b) range 1 grain 1 {segue.block = "h.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %e = segue.launch @k(%c) range 1 grain 1 : (tensor<4xf32>) -> tensor<4xf32>
  %r = segue.reshape %e {segue.block = "h.0"} : tensor<4xf32> -> tensor<2x2xf32>
  %dead = segue.transpose %r [1, 0] : tensor<2x2xf32> -> tensor<2x2xf32>
  %f = segue.launch @k2(%r) range 1 grain 1 {segue.block = "h.1"} : (tensor<2x2xf32>) -> tensor<2x2xf32>
  return %f : tensor<2x2xf32>
}
module @kernels {
  func.func private @k(memref<?xf32>, memref<?xf32>, index, index) -> i64
  func.func private @k2(memref<?xf32>, memref<?xf32>, index, index) -> i64
}
}

// -----

// What needs a later block begins its own again: nothing else would be right.
// CHECK-LABEL: func.func @again
// CHECK: {segue.block = "a"}
// CHECK-NEXT: {segue.block = "a"}
// CHECK-NEXT: {segue.block = "b"}
// CHECK-NEXT: {segue.block = "a"}
module {
func.func @again(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = segue.launch @k(%x) range 1 grain 1 {segue.block = "a"} : (tensor<4xf32>) -> tensor<4xf32>
  %b = segue.launch @k(%a) range 1 grain 1 {segue.block = "b"} : (tensor<4xf32>) -> tensor<4xf32>
  %c = segue.launch @k(%b) range 1 grain 1 {segue.block = "a"} : (tensor<4xf32>) -> tensor<4xf32>
  %d = segue.launch @k(%a) range 1 grain 1 {segue.block = "a"} : (tensor<4xf32>) -> tensor<4xf32>
  return %c, %d : tensor<4xf32>, tensor<4xf32>
}
module @kernels {
  func.func private @k(memref<?xf32>, memref<?xf32>, index, index) -> i64
}
}

// -----

// The rows of a table that backward looks up again are those of a block that comes last there: they are looked up before the
// block that reads them, which begins once.
// CHECK-LABEL: func.func @looked_up_again
// CHECK: {segue.block = "b"}
// CHECK-NEXT: segue.launch @l(%arg1, %arg2) range 1 grain 1 :
// CHECK-NEXT: {segue.block = "a"}
// CHECK-NEXT: {segue.block = "a"}
// CHECK-COUNT-3: {segue.block = "table"}
module {
func.func @looked_up_again(%x: tensor<4xf32>, %t: tensor<4xf32> {segue.name = "t", segue.role = #segue.role<parameter>}, %i: tensor<4xi64>)
    -> (tensor<4xf32>, tensor<4xf32>) {
  %b = segue.launch @k(%x) range 1 grain 1 {segue.block = "b"} : (tensor<4xf32>) -> tensor<4xf32>
  %r = segue.launch @l(%t, %i) range 1 grain 1 {segue.block = "table"} : (tensor<4xf32>, tensor<4xi64>) -> tensor<4xf32>
  %s = segue.launch @k2(%b, %r) range 1 grain 1 {segue.block = "a", segue.blocks = ["a", "table"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %w = segue.launch @k(%s) range 1 grain 1 {segue.block = "a"} : (tensor<4xf32>) -> tensor<4xf32>
  %g = segue.launch @k(%s) range 1 grain 1 {segue.block = "table"} : (tensor<4xf32>) -> tensor<4xf32>
  %h = segue.launch @k(%g) range 1 grain 1 {segue.block = "table"} : (tensor<4xf32>) -> tensor<4xf32>
  %m = segue.launch @k(%h) range 1 grain 1 {segue.block = "table"} : (tensor<4xf32>) -> tensor<4xf32>
  return %m, %w : tensor<4xf32>, tensor<4xf32>
}
module @kernels {
  func.func private @k(memref<?xf32>, memref<?xf32>, index, index) -> i64
  func.func private @k2(memref<?xf32>, memref<?xf32>, memref<?xf32>, index, index) -> i64
  func.func private @l(memref<?xf32>, memref<?xi64>, memref<?xf32>, index, index) -> i64
}
}

// -----

// Readers of an argument's old value run before the op whose result is written over it, though nothing else
// says so.
// CHECK-LABEL: func.func @overwrites
// CHECK: segue.launch @k(%arg1) range 1 grain 1 {segue.block = "b"}
// CHECK: segue.launch @k2(%arg1, %{{.*}}) range 1 grain 1 {segue.block = "a"}
module {
func.func @overwrites(%x: tensor<4xf32>, %w: tensor<4xf32>)
    -> (tensor<4xf32>, tensor<4xf32> {segue.alias = 1 : i64, segue.name = "w", segue.role = #segue.role<parameter>}) {
  %g = segue.launch @k(%x) range 1 grain 1 {segue.block = "a"} : (tensor<4xf32>) -> tensor<4xf32>
  %r = segue.launch @k(%w) range 1 grain 1 {segue.block = "b"} : (tensor<4xf32>) -> tensor<4xf32>
  %y = segue.launch @k(%r) range 1 grain 1 {segue.block = "b"} : (tensor<4xf32>) -> tensor<4xf32>
  %u = segue.launch @k2(%w, %g) range 1 grain 1 {segue.block = "a"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y, %u : tensor<4xf32>, tensor<4xf32>
}
module @kernels {
  func.func private @k(memref<?xf32>, memref<?xf32>, index, index) -> i64
  func.func private @k2(memref<?xf32>, memref<?xf32>, memref<?xf32>, index, index) -> i64
}
}

// A whole model: each block begins once in forward and once in backward.
// GPT-LABEL: prog.program @forward
// GPT-COUNT-5: prog.block
// GPT-NOT: prog.block
// GPT-LABEL: prog.program @backward
// GPT: prog.block "head"
// GPT: prog.block "h.2"
// GPT: prog.block "h.1"
// GPT: prog.block "h.0"
// GPT: prog.block "embedding"
// GPT-NOT: prog.block
// GPT-LABEL: prog.program @inference
