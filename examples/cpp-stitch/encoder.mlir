// The first of two modules that are compiled apart: a linear layer and a GELU.
func.func @forward(
    %x: tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
    %w: tensor<16x8xf32> {segue.name = "weight", segue.role = #segue.role<parameter>},
    %b: tensor<16xf32> {segue.name = "bias", segue.role = #segue.role<parameter>})
    -> (tensor<4x16xf32> {segue.name = "hidden", segue.role = #segue.role<output>}) {
  %product = segue.dot_general %x, %w batch [] x [] contract [1] x [1]
    : tensor<4x8xf32>, tensor<16x8xf32> -> tensor<4x16xf32>
  %rows = segue.broadcast %b dims [1] : tensor<16xf32> -> tensor<4x16xf32>
  %sum = segue.add %product, %rows : tensor<4x16xf32>
  %hidden = segue.gelu tanh %sum : tensor<4x16xf32>
  return %hidden : tensor<4x16xf32>
}
