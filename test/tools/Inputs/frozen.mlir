// A frozen linear layer: y = x Wᵀ + b.
func.func @forward(%x: tensor<4x24xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<8x24xf32> {segue.name = "base.weight", segue.role = #segue.role<frozen>},
                   %b: tensor<8xf32> {segue.name = "base.bias", segue.role = #segue.role<frozen>})
    -> (tensor<4x8xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %t = segue.transpose %w [1, 0] : tensor<8x24xf32> -> tensor<24x8xf32>
  %y = segue.dot_general %x, %t bias %b : tensor<8xf32> batch [] x [] contract [1] x [0] : tensor<4x24xf32>, tensor<24x8xf32> -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
