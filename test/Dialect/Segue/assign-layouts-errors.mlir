// RUN: segue-opt %s --segue-assign-layouts --split-input-file --verify-diagnostics

// One tensor cannot lie in two ways.
func.func @forward(%w: tensor<4x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>, segue.layout = #segue.layout<tile = [4, 4]>}) {
  return
}
// expected-error @below {{argument "w" of @inference has layout #segue.layout<space = device_dram, strides = [1, 4]>, but argument "w" of @forward, which is the same tensor, has #segue.layout<space = device_dram, tile = [4, 4]>}}
func.func @inference(%w: tensor<4x8xf32> {segue.name = "w", segue.role = #segue.role<parameter>, segue.layout = #segue.layout<strides = [1, 4]>}) {
  return
}

// -----

// The attribute or the type, not both.
// expected-error @below {{argument 0 has `segue.layout`, but its type 'tensor<4xf32, #segue.layout<space = device_l1>>' has a layout too; give one of them}}
func.func @both(%x: tensor<4xf32, #segue.layout<space = device_l1>> {segue.layout = #segue.layout<space = device_dram>}) {
  return
}

// -----

// expected-error @below {{argument 0 has `segue.layout` = 4 : i64, which must be `#segue.layout<...>` on a tensor of a static shape}}
func.func @number(%x: tensor<4xf32> {segue.layout = 4 : i64}) {
  return
}

// -----

// expected-error @below {{argument 0 layout has 2 strides, but the tensor has 1 dimensions}}
func.func @rank(%x: tensor<4xf32> {segue.layout = #segue.layout<strides = [4, 1]>}) {
  return
}
