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

// -----

// A layout that nobody outside of the function sees is not dropped in silence.
func.func @temporary(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @below {{'segue.to_layout' op lays a temporary in #segue.layout<space = device_dram, storage = int8_row>, which no argument or result of @temporary has; inside of a function layouts are the compiler's to choose: give it to an argument or result, or drop the op}}
  %0 = segue.to_layout %x : tensor<4x8xf32> -> tensor<4x8xf32, #segue.layout<storage = int8_row>>
  %1 = segue.to_layout %0 : tensor<4x8xf32, #segue.layout<storage = int8_row>> -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// -----

// Rounding a temporary is not dropped either, where an argument is stored so.
func.func @rounded(%x: tensor<4x8xf32>, %w: tensor<4x8xf32, #segue.layout<storage = int8_row>>) -> tensor<4x8xf32> {
  // expected-error @below {{'segue.to_layout' op rounds a temporary to #segue.layout<space = device_dram, storage = int8_row>; only arguments and results are stored so: return it, or drop the op}}
  %0 = segue.to_layout %x : tensor<4x8xf32> -> tensor<4x8xf32, #segue.layout<storage = int8_row>>
  %1 = segue.to_layout %0 : tensor<4x8xf32, #segue.layout<storage = int8_row>> -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
