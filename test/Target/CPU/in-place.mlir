// RUN: segue-compile %s --inference-only --target=x86-64-v3 --emit=loops -o - | FileCheck %s --check-prefix=LOOPS
// RUN: segue-compile %s --inference-only --target=x86-64-v3 --emit=llvm -o - | FileCheck %s --check-prefix=LLVM
// RUN: segue-compile %s --inference-only --target=x86-64-v3 --emit=asm -o - | FileCheck %s --check-prefix=ASM

// What may be one buffer is on the kernel, and the loop over elements is marked.
// LOOPS: func.func @k0_exp
// LOOPS-SAME: segue.in_place = array<i64: 0, 0>
// LOOPS: {segue.parallel}

// LLVM knows it: the two of a pair are not noalias, what is in no pair is. No
// loop tests at run time whether buffers overlap; in place it would find that
// they do, and go element by element.
// LLVM-NOT: vector.memcheck
// LLVM: define internal {{.*}} @k0_exp.body.v3(ptr {{((readonly|writeonly|captures\(none\)) )*}}%0, ptr {{((readonly|writeonly|captures\(none\)) )*}}%1, i64
// LLVM-NOT: vector.memcheck
// LLVM: load <8 x float>, {{.*}}!alias.scope ![[X:[0-9]+]], !llvm.access.group
// LLVM: store <8 x float> {{.*}}!alias.scope ![[Y:[0-9]+]], !llvm.access.group
// LLVM-NOT: vector.memcheck
// LLVM: define internal {{.*}} @k1_{{.*}}.body.v3(ptr {{((readonly|writeonly|captures\(none\)) )*}}%0, ptr noalias {{((readonly|writeonly|captures\(none\)) )*}}%1, ptr {{((readonly|writeonly|captures\(none\)) )*}}%2,
// LLVM-NOT: vector.memcheck
// LLVM: store <8 x float>
// LLVM-NOT: vector.memcheck
// LLVM: define internal {{.*}} @k2_tanh.body.v3(ptr {{((readonly|writeonly|captures\(none\)) )*}}%0, ptr {{((readonly|writeonly|captures\(none\)) )*}}%1, ptr {{((readonly|writeonly|captures\(none\)) )*}}%2,
// The operands are told apart; the result, which is in a pair with each, from none.
// LLVM-NOT: vector.memcheck
// LLVM: load <8 x float>, {{.*}}!alias.scope ![[A:[0-9]+]], !noalias ![[B:[0-9]+]], !llvm
// LLVM: load <8 x float>, {{.*}}!alias.scope ![[B]], !noalias ![[A]], !llvm
// LLVM: store <8 x float> {{.*}}!alias.scope ![[C:[0-9]+]], !llvm.access.group
// LLVM-NOT: vector.memcheck

// ASM: k0_exp.body.v3:
// ASM: vmovups {{.*}}%ymm
// ASM: k1_{{.*}}.body.v3:
// ASM: vmovups {{.*}}%ymm
// ASM: k2_tanh.body.v3:
// ASM: vmovups {{.*}}%ymm

func.func @forward(%x: tensor<64x48xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %gamma: tensor<48xf32> {segue.name = "gamma", segue.role = #segue.role<parameter>},
                   %w: tensor<48x48xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<64x48xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  // Elementwise.
  %a = segue.silu %x : tensor<64x48xf32>
  %b = segue.dot_general %a, %w batch [] x [] contract [1] x [0] : tensor<64x48xf32>, tensor<48x48xf32> -> tensor<64x48xf32>
  // A row kernel that reads its operand in two loops and replaces it in the second.
  %n, %r = segue.rms_norm %b gamma %gamma : tensor<48xf32> eps 1.0e-5 : tensor<64x48xf32> -> tensor<64xf32>
  %c = segue.dot_general %n, %w batch [] x [] contract [1] x [0] : tensor<64x48xf32>, tensor<48x48xf32> -> tensor<64x48xf32>
  // The derivative of gelu: two operands, either of which the result may replace.
  %t = segue.tanh %c : tensor<64x48xf32>
  %tt = segue.mul %t, %t : tensor<64x48xf32>
  %s = segue.sub %b, %tt : tensor<64x48xf32>
  %d = segue.mul %c, %s : tensor<64x48xf32>
  return %d : tensor<64x48xf32>
}
