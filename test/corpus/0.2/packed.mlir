// What 0.2 brought: an input in tiles, frozen weights in rows of int8 with and
// without zero points, an output in tiles, one with alternatives, statistics
// of the gradients of two blocks.
func.func @forward(
    %x: tensor<20x24xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.layout = #segue.layout<tile = [8, 16]>},
    %w: tensor<24x12xf32> {segue.name = "base.weight", segue.role = #segue.role<frozen>, segue.layout = #segue.layout<storage = int8_row>},
    %v: tensor<24x12xf32> {segue.name = "shifted.weight", segue.role = #segue.role<frozen>, segue.layout = #segue.layout<storage = int8_row, zero_points = true>},
    %f: tensor<12x8xf32> {segue.name = "eight.weight", segue.role = #segue.role<frozen>, segue.layout = #segue.layout<storage = fp8_e4m3_row>},
    %a: tensor<24x2xf32> {segue.name = "down.weight", segue.role = #segue.role<parameter>},
    %b: tensor<2x12xf32> {segue.name = "up.weight", segue.role = #segue.role<parameter>},
    %s: tensor<12xf32> {segue.name = "scale", segue.role = #segue.role<parameter>})
    -> (tensor<20x12xf32> {segue.name = "hidden", segue.role = #segue.role<output>, segue.layout = #segue.layout<tile = [4, 4]>},
        tensor<20x8xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w batch [] x [] contract [1] x [0] {segue.block = "low"}
    : tensor<20x24xf32>, tensor<24x12xf32> -> tensor<20x12xf32>
  %1 = segue.dot_general %x, %v batch [] x [] contract [1] x [0] {segue.block = "low"}
    : tensor<20x24xf32>, tensor<24x12xf32> -> tensor<20x12xf32>
  %2 = segue.dot_general %x, %a batch [] x [] contract [1] x [0] {segue.block = "low"}
    : tensor<20x24xf32>, tensor<24x2xf32> -> tensor<20x2xf32>
  %3 = segue.dot_general %2, %b batch [] x [] contract [1] x [0] {segue.block = "low"}
    : tensor<20x2xf32>, tensor<2x12xf32> -> tensor<20x12xf32>
  %4 = segue.add %0, %1 {segue.block = "low"} : tensor<20x12xf32>
  %5 = segue.add %4, %3 {segue.block = "low"} : tensor<20x12xf32>
  %6 = segue.tanh %5 {segue.block = "high"} : tensor<20x12xf32>
  %7 = segue.broadcast %s dims [1] {segue.block = "high"} : tensor<12xf32> -> tensor<20x12xf32>
  %8 = segue.mul %6, %7 {segue.block = "high"} : tensor<20x12xf32>
  %y = segue.dot_general %8, %f batch [] x [] contract [1] x [0] {segue.block = "high"}
    : tensor<20x12xf32>, tensor<12x8xf32> -> tensor<20x8xf32>
  return %8, %y : tensor<20x12xf32>, tensor<20x8xf32>
}
