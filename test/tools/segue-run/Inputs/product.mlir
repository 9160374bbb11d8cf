// One product, which a library makes on every device: no kernel is compiled for it.
func.func @forward(%x: tensor<16x32xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<64x32xf32> {segue.name = "w", segue.role = #segue.role<frozen>})
    -> (tensor<16x64xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.dot_general %x, %w batch [] x [] contract [1] x [1] : tensor<16x32xf32>, tensor<64x32xf32> -> tensor<16x64xf32>
  return %y : tensor<16x64xf32>
}
