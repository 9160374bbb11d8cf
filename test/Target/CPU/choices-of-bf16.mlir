// RUN: segue-compile %s --inference-only --emit=asm -o - | FileCheck %s

// A choice between two numbers that are stored as bf16 is one between their bits: for one between bf16 vectors LLVM calls
// the compiler's runtime library, which no object has.
// CHECK-LABEL: k0_select.body.v3:
// CHECK-NOT: @PLT
// CHECK-LABEL: k0_select.body.v4:
// CHECK-NOT: @PLT
func.func @forward(%seen: tensor<2x16xi1> {segue.name = "seen", segue.role = #segue.role<input>})
    -> (tensor<2x16x16xbf16> {segue.name = "bias", segue.role = #segue.role<output>}) {
  %i = segue.iota dim 0 : tensor<16xi64>
  %row = segue.broadcast %i dims [1] : tensor<16xi64> -> tensor<2x16x16xi64>
  %column = segue.broadcast %i dims [2] : tensor<16xi64> -> tensor<2x16x16xi64>
  %past = segue.compare le %column, %row : tensor<2x16x16xi64> -> tensor<2x16x16xi1>
  %of_row = segue.broadcast %seen dims [0, 2] : tensor<2x16xi1> -> tensor<2x16x16xi1>
  %shown = segue.and %past, %of_row : tensor<2x16x16xi1>
  %minus = segue.constant dense<0xFF80> : tensor<bf16>
  %zero = segue.constant dense<0.0> : tensor<bf16>
  %0 = segue.broadcast %minus dims [] : tensor<bf16> -> tensor<2x16x16xbf16>
  %1 = segue.broadcast %zero dims [] : tensor<bf16> -> tensor<2x16x16xbf16>
  %2 = segue.select %shown, %1, %0 : tensor<2x16x16xi1>, tensor<2x16x16xbf16>
  return %2 : tensor<2x16x16xbf16>
}
