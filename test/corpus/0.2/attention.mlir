// Causal attention with a joined projection, in a block; SGD with momentum.
func.func @forward(
    %x: tensor<2x6x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
    %qkv: tensor<24x8xf32> {segue.name = "qkv.weight", segue.role = #segue.role<parameter>},
    %proj: tensor<8x8xf32> {segue.name = "proj.weight", segue.role = #segue.role<parameter>})
    -> (tensor<2x6x8xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %qkv batch [] x [] contract [2] x [1] {segue.block = "h.0"}
    : tensor<2x6x8xf32>, tensor<24x8xf32> -> tensor<2x6x24xf32>
  %1 = segue.reshape %0 {segue.block = "h.0"} : tensor<2x6x24xf32> -> tensor<2x6x3x2x4xf32>
  %2 = segue.transpose %1 [2, 0, 3, 1, 4] {segue.block = "h.0"} : tensor<2x6x3x2x4xf32> -> tensor<3x2x2x6x4xf32>
  %3 = segue.slice %2 [0, 0, 0, 0, 0] to [1, 2, 2, 6, 4] by [1, 1, 1, 1, 1] {segue.block = "h.0"}
    : tensor<3x2x2x6x4xf32> -> tensor<1x2x2x6x4xf32>
  %q = segue.reshape %3 {segue.block = "h.0"} : tensor<1x2x2x6x4xf32> -> tensor<2x2x6x4xf32>
  %4 = segue.slice %2 [1, 0, 0, 0, 0] to [2, 2, 2, 6, 4] by [1, 1, 1, 1, 1] {segue.block = "h.0"}
    : tensor<3x2x2x6x4xf32> -> tensor<1x2x2x6x4xf32>
  %k = segue.reshape %4 {segue.block = "h.0"} : tensor<1x2x2x6x4xf32> -> tensor<2x2x6x4xf32>
  %5 = segue.slice %2 [2, 0, 0, 0, 0] to [3, 2, 2, 6, 4] by [1, 1, 1, 1, 1] {segue.block = "h.0"}
    : tensor<3x2x2x6x4xf32> -> tensor<1x2x2x6x4xf32>
  %v = segue.reshape %5 {segue.block = "h.0"} : tensor<1x2x2x6x4xf32> -> tensor<2x2x6x4xf32>
  %a, %lse = segue.attention %q, %k, %v causal scale 0.5 {segue.block = "h.0"}
    : tensor<2x2x6x4xf32>, tensor<2x2x6x4xf32> -> tensor<2x2x6xf32>
  %6 = segue.transpose %a [0, 2, 1, 3] {segue.block = "h.0"} : tensor<2x2x6x4xf32> -> tensor<2x6x2x4xf32>
  %7 = segue.reshape %6 {segue.block = "h.0"} : tensor<2x6x2x4xf32> -> tensor<2x6x8xf32>
  %8 = segue.dot_general %7, %proj batch [] x [] contract [2] x [1] {segue.block = "h.0"}
    : tensor<2x6x8xf32>, tensor<8x8xf32> -> tensor<2x6x8xf32>
  %9 = segue.add %x, %8 {segue.block = "h.0"} : tensor<2x6x8xf32>
  return %9 : tensor<2x6x8xf32>
}
