// RUN: segue-compile %s --target=sm_90 --emit=ptx --inference-only | FileCheck %s --check-prefixes=PTX,SM90
// RUN: segue-compile %s --target=sm_80 --emit=ptx --inference-only | FileCheck %s --check-prefixes=PTX,SM80
// RUN: segue-compile %s --target=sm_90 --emit=nvvm --inference-only | FileCheck %s --check-prefix=NVVM
// RUN: segue-compile %s --target=sm_90 --emit=gpu --inference-only | FileCheck %s --check-prefix=GPU
// RUN: segue-compile %s --target=sm_90,x86-64-v3 --emit=prog --inference-only | FileCheck %s --check-prefix=PROG

// The text is the same each time.
// RUN: segue-compile %s --target=sm_90 --emit=ptx --inference-only -o %t.1
// RUN: segue-compile %s --target=sm_90 --emit=ptx --inference-only -o %t.2
// RUN: cmp %t.1 %t.2

// The file holds it beside the code of processors, and says what a block does.
// RUN: segue-compile %s --target=x86-64-v3,sm_90 --inference-only -o %t.segue
// RUN: segue-translate --flatbuffer-to-prog %t.segue | FileCheck %s --check-prefix=PROG

// RUN: not segue-compile %s --target=sm_75 2>&1 | FileCheck %s --check-prefix=OLD
// OLD: segue-compile: unknown target "sm_75"; known are x86-64-v3, x86-64-v4, sm_80, sm_90, sm_100
// RUN: not segue-compile %s --emit=ptx 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not segue-compile %s --gpu-twins=%t 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not segue-compile %s --target=sm_90 --gpu-twins=%t.none -o %t.no 2>&1 | FileCheck %s --check-prefix=FOLDER
// FOLDER: error: twins: cannot write '{{.*}}.none/{{[0-9a-f]+}}.so': No such file or directory
// NONE: error: kernels of a GPU need a target such as sm_90

// SM90: .target sm_90
// SM80: .target sm_80
// PTX: .visible .entry [[NAME:k0_[a-z_]*]](
// PTX: .maxntid 256
// PTX-DAG: ld.global.{{.*}}v4.{{[bf]32}}
// PTX-DAG: shfl.sync.bfly.b32
// PTX-DAG: bar.sync
// PTX: st.global.v4.{{[bf]32}}
// PTX-NOT: .local

// GPU: module @gpu_kernels
// GPU: func.func @k0_{{[a-z_]*}}({{.*}}) attributes {segue.block_threads = 256 : i64
// GPU: gpu.thread_id  x
// GPU: gpu.shuffle  xor
// GPU: gpu.barrier

// NVVM: define ptx_kernel void @k0_{{[a-z_]*}}({{.*}}, i64 %{{.*}}, i64 %{{.*}}, ptr {{.*}}%{{.*}})
// NVVM: @llvm.nvvm.shfl.sync.bfly.f32

// PROG: prog.kernel @[[NAME:k0_[a-z_]*]]
// PROG-SAME: #prog.variant<x86_64_v3 "[[NAME]].v3" in @segment{{[0-9]}}>
// PROG-SAME: #prog.variant<ptx "[[NAME]]" in @segment{{[0-9]}} blocks 32>

func.func @forward(%x: tensor<32x1024xf32> {segue.name = "x", segue.role = #segue.role<input>})
    -> (tensor<32x1024xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.softmax %x dim 1 : tensor<32x1024xf32>
  return %y : tensor<32x1024xf32>
}
