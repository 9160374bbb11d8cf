// RUN: segue-opt %s --segue-outline-kernels=gpu --split-input-file | FileCheck %s

// A thread computes neighbouring elements, 16 bytes of the narrowest: all are computed before the first is stored.
// CHECK-LABEL: module @gpu_kernels
// CHECK: func.func @k0_exp(%[[X:.*]]: memref<?xf32>, %[[Y:.*]]: memref<?xf32>, %{{.*}}: memref<?xi64>)
// CHECK-SAME: segue.block_threads = 256 : i64{{.*}}segue.grid_blocks = 8 : i64
// CHECK: gpu.block_id x
// CHECK: gpu.thread_id x
// CHECK: scf.for
// CHECK-COUNT-4: math.exp
// CHECK-COUNT-4: memref.store %{{.*}}, %[[Y]]
// CHECK-NOT: memref.store
// CHECK: return
func.func @map(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
  %y = segue.fused(%a = %x : tensor<64x128xf32>) -> (tensor<64x128xf32>) {
    %e = segue.exp %a : tensor<64x128xf32>
    segue.yield %e : tensor<64x128xf32>
  }
  return %y : tensor<64x128xf32>
}

// -----

// An extent that 16 bytes do not divide.
// CHECK-LABEL: module @gpu_kernels
// CHECK-SAME: {
// CHECK: segue.grid_blocks = 1 : i64
// CHECK-COUNT-1: math.exp
// CHECK-NOT: math.exp
// CHECK: return
func.func @odd(%x: tensor<5x7xf32>) -> tensor<5x7xf32> {
  %y = segue.fused(%a = %x : tensor<5x7xf32>) -> (tensor<5x7xf32>) {
    %e = segue.exp %a : tensor<5x7xf32>
    segue.yield %e : tensor<5x7xf32>
  }
  return %y : tensor<5x7xf32>
}

// -----

// A block per row: sums by shuffles in a warp, then of the warps in their order.
// CHECK-LABEL: module @gpu_kernels
// CHECK: func.func @k0_exp_reduce
// CHECK-SAME: segue.block_threads = 256 : i64{{.*}}segue.grid_blocks = 4 : i64
// CHECK: memref.alloca() : memref<8xf32, #gpu.address_space<workgroup>>
// CHECK: %[[SUM:.*]] = scf.for {{.*}} iter_args
// CHECK: gpu.shuffle  xor
// CHECK-COUNT-4: gpu.shuffle  xor
// CHECK: gpu.barrier
// CHECK-COUNT-8: memref.load %{{.*}} : memref<8xf32, #gpu.address_space<workgroup>>
// CHECK: gpu.barrier
// CHECK: scf.for
// CHECK: arith.divf
func.func @rows(%x: tensor<4x1024xf32>) -> tensor<4x1024xf32> {
  %y = segue.fused(%a = %x : tensor<4x1024xf32>) -> (tensor<4x1024xf32>) {
    %e = segue.exp %a : tensor<4x1024xf32>
    %s = segue.reduce sum %e dims [1] : tensor<4x1024xf32> -> tensor<4xf32>
    %b = segue.broadcast %s dims [0] : tensor<4xf32> -> tensor<4x1024xf32>
    %d = segue.div %e, %b : tensor<4x1024xf32>
    segue.yield %d : tensor<4x1024xf32>
  }
  return %y : tensor<4x1024xf32>
}

// -----

// Short rows: a warp each, four to a block, and no barrier of the block.
// CHECK-LABEL: module @gpu_kernels
// CHECK: segue.block_threads = 128 : i64{{.*}}segue.grid_blocks = 10 : i64
// CHECK-COUNT-5: gpu.shuffle  xor
// CHECK-NOT: gpu.barrier
// CHECK: return
func.func @short(%x: tensor<40x64xf32>) -> tensor<40xf32> {
  %y = segue.fused(%a = %x : tensor<40x64xf32>) -> (tensor<40xf32>) {
    %s = segue.reduce sum %a dims [1] : tensor<40x64xf32> -> tensor<40xf32>
    segue.yield %s : tensor<40xf32>
  }
  return %y : tensor<40xf32>
}

// -----

// Columns: threads share the rows of a tile, and add their sums in shared memory.
// CHECK-LABEL: module @gpu_kernels
// CHECK: segue.block_threads = 256 : i64{{.*}}segue.grid_blocks = 8 : i64
// CHECK: scf.for {{.*}} iter_args
// CHECK: memref.store %{{.*}} : memref<256xf32, #gpu.address_space<workgroup>>
// CHECK: gpu.barrier
// CHECK: scf.if
// CHECK-COUNT-32: memref.load %{{.*}} : memref<256xf32, #gpu.address_space<workgroup>>
// CHECK-NOT: atomic
// CHECK: return
func.func @columns(%x: tensor<300x64xf32>) -> tensor<64xf32> {
  %y = segue.fused(%a = %x : tensor<300x64xf32>) -> (tensor<64xf32>) {
    %s = segue.reduce sum %a dims [0] : tensor<300x64xf32> -> tensor<64xf32>
    segue.yield %s : tensor<64xf32>
  }
  return %y : tensor<64xf32>
}

// -----

// A bad index is told with the block that met it, the least block first.
// CHECK-LABEL: module @gpu_kernels
// CHECK: func.func @k0_gather({{.*}}, %[[FAULT:.*]]: memref<?xi64>)
// CHECK: memref.atomic_rmw minu %{{.*}}, %[[FAULT]]
func.func @checked(%t: tensor<5x8xf32>, %i: tensor<3xi64>) -> tensor<3x8xf32> {
  %y = segue.fused(%a = %t : tensor<5x8xf32>, %b = %i : tensor<3xi64>) -> (tensor<3x8xf32>) {
    %g = segue.gather %a[%b] : tensor<5x8xf32>, tensor<3xi64> -> tensor<3x8xf32>
    segue.yield %g : tensor<3x8xf32>
  }
  return %y : tensor<3x8xf32>
}
