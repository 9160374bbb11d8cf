// RUN: segue-compile %s --inference-only --emit=llvm -o - | FileCheck %s --check-prefix=LLVM
// RUN: segue-compile %s --inference-only --emit=asm -o - | FileCheck %s --check-prefix=ASM
// RUN: segue-compile %s --inference-only --emit=asm --target=x86-64-v3 -o - | FileCheck %s --check-prefix=V3

// Every kernel is there for both instruction sets, vectorised at their width,
// and calls nothing but its own body: no libm, no memset, no runtime library of
// a compiler, not even for bf16.
// LLVM: define internal {{.*}} @k0_exp.body.v3(ptr 
// LLVM: <8 x float>
// LLVM: define {{.*}} i64 @k0_exp.v3(ptr
// LLVM: define internal {{.*}} @k0_exp.body.v4(ptr 
// LLVM: <16 x float>
// LLVM-NOT: declare {{.*}}@{{exp|mem|__}}
// ASM: k0_exp.body.v3:
// ASM: ymm
// ASM-NOT: zmm
// ASM: k0_exp.body.v4:
// ASM: zmm
// ASM-NOT: @PLT
// V3-NOT: zmm
// V3: k0_exp.v3:
func.func @forward(%x: tensor<64x48xbf16> {segue.name = "x", segue.role = #segue.role<input>})
    -> (tensor<64x48xbf16> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.silu %x : tensor<64x48xbf16>
  return %y : tensor<64x48xbf16>
}
