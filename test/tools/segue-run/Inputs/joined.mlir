// front.mlir and back.mlir in one module.
func.func @forward(%x: tensor<6x5xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %t: tensor<6x3xf32> {segue.name = "t", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %w1: tensor<5x7xf32> {segue.name = "w1", segue.role = #segue.role<parameter>},
                   %b1: tensor<7xf32> {segue.name = "front.bias", segue.role = #segue.role<parameter>},
                   %w2: tensor<7x3xf32> {segue.name = "w2", segue.role = #segue.role<parameter>},
                   %b2: tensor<3xf32> {segue.name = "back.bias", segue.role = #segue.role<parameter>})
    -> (tensor<6x3xf32> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %x, %w1 batch [] x [] contract [1] x [0] : tensor<6x5xf32>, tensor<5x7xf32> -> tensor<6x7xf32>
  %1 = segue.broadcast %b1 dims [1] : tensor<7xf32> -> tensor<6x7xf32>
  %2 = segue.add %0, %1 : tensor<6x7xf32>
  %h = segue.tanh %2 : tensor<6x7xf32>
  %3 = segue.dot_general %h, %w2 batch [] x [] contract [1] x [0] : tensor<6x7xf32>, tensor<7x3xf32> -> tensor<6x3xf32>
  %4 = segue.broadcast %b2 dims [1] : tensor<3xf32> -> tensor<6x3xf32>
  %5 = segue.add %3, %4 : tensor<6x3xf32>
  %6 = segue.sub %5, %t : tensor<6x3xf32>
  %7 = segue.mul %6, %6 : tensor<6x3xf32>
  %8 = segue.reduce sum %7 dims [0, 1] : tensor<6x3xf32> -> tensor<f32>
  return %5, %8 : tensor<6x3xf32>, tensor<f32>
}
