// y = h w2 + b2, loss = sum (y - t)^2. The bias has the name of the other
// module's, and is another parameter.
func.func @forward(%h: tensor<6x7xf32> {segue.name = "features", segue.role = #segue.role<input>},
                   %t: tensor<6x3xf32> {segue.name = "t", segue.role = #segue.role<input>, segue.requires_grad = false},
                   %w2: tensor<7x3xf32> {segue.name = "w2", segue.role = #segue.role<parameter>},
                   %b2: tensor<3xf32> {segue.name = "bias", segue.role = #segue.role<parameter>})
    -> (tensor<6x3xf32> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.dot_general %h, %w2 batch [] x [] contract [1] x [0] : tensor<6x7xf32>, tensor<7x3xf32> -> tensor<6x3xf32>
  %1 = segue.broadcast %b2 dims [1] : tensor<3xf32> -> tensor<6x3xf32>
  %2 = segue.add %0, %1 : tensor<6x3xf32>
  %3 = segue.sub %2, %t : tensor<6x3xf32>
  %4 = segue.mul %3, %3 : tensor<6x3xf32>
  %5 = segue.reduce sum %4 dims [0, 1] : tensor<6x3xf32> -> tensor<f32>
  return %2, %5 : tensor<6x3xf32>, tensor<f32>
}
