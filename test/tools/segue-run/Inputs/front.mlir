// h = tanh(x w1 + b1): knows nothing of what follows.
func.func @forward(%x: tensor<6x5xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %w1: tensor<5x7xf32> {segue.name = "w1", segue.role = #segue.role<parameter>},
                   %b1: tensor<7xf32> {segue.name = "bias", segue.role = #segue.role<parameter>})
    -> (tensor<6x7xf32> {segue.name = "h", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w1 batch [] x [] contract [1] x [0] : tensor<6x5xf32>, tensor<5x7xf32> -> tensor<6x7xf32>
  %1 = segue.broadcast %b1 dims [1] : tensor<7xf32> -> tensor<6x7xf32>
  %2 = segue.add %0, %1 : tensor<6x7xf32>
  %3 = segue.tanh %2 : tensor<6x7xf32>
  return %3 : tensor<6x7xf32>
}
