// The next byte from the byte before: one table of logits.
func.func @forward(%tokens: tensor<4x16xi64> {segue.name = "tokens", segue.role = #segue.role<input>},
                   %targets: tensor<4x16xi64> {segue.name = "targets", segue.role = #segue.role<input>},
                   %table: tensor<256x256xf32> {segue.name = "table", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.reshape %tokens : tensor<4x16xi64> -> tensor<64xi64>
  %1 = segue.reshape %targets : tensor<4x16xi64> -> tensor<64xi64>
  %2 = segue.gather %table[%0] : tensor<256x256xf32>, tensor<64xi64> -> tensor<64x256xf32>
  %3, %4 = segue.cross_entropy %2, %1 ignore_index -100 : tensor<64x256xf32>, tensor<64xi64> -> tensor<64xf32>
  %5 = segue.reduce mean %3 dims [0] : tensor<64xf32> -> tensor<f32>
  return %5 : tensor<f32>
}
