// The next byte from the byte before: a table of logits, corrected in two blocks.
func.func @forward(%tokens: tensor<4x16xi64> {segue.name = "tokens", segue.role = #segue.role<input>},
                   %targets: tensor<4x16xi64> {segue.name = "targets", segue.role = #segue.role<input>},
                   %table: tensor<256x256xf32> {segue.name = "table", segue.role = #segue.role<parameter>},
                   %w0: tensor<256x256xf32> {segue.name = "w0", segue.role = #segue.role<parameter>},
                   %w1: tensor<256x256xf32> {segue.name = "w1", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %0 = segue.reshape %tokens : tensor<4x16xi64> -> tensor<64xi64>
  %1 = segue.reshape %targets : tensor<4x16xi64> -> tensor<64xi64>
  %2 = segue.gather %table[%0] : tensor<256x256xf32>, tensor<64xi64> -> tensor<64x256xf32>
  %p0 = segue.dot_general %2, %w0 batch [] x [] contract [1] x [1] {segue.block = "h.0"} : tensor<64x256xf32>, tensor<256x256xf32> -> tensor<64x256xf32>
  %g0 = segue.gelu tanh %p0 {segue.block = "h.0"} : tensor<64x256xf32>
  %h1 = segue.add %g0, %2 {segue.block = "h.0"} : tensor<64x256xf32>
  %p1 = segue.dot_general %h1, %w1 batch [] x [] contract [1] x [1] {segue.block = "h.1"} : tensor<64x256xf32>, tensor<256x256xf32> -> tensor<64x256xf32>
  %g1 = segue.gelu tanh %p1 {segue.block = "h.1"} : tensor<64x256xf32>
  %h2 = segue.add %g1, %h1 {segue.block = "h.1"} : tensor<64x256xf32>
  %3, %4 = segue.cross_entropy %h2, %1 ignore_index -100 : tensor<64x256xf32>, tensor<64xi64> -> tensor<64xf32>
  %5 = segue.reduce mean %3 dims [0] : tensor<64xf32> -> tensor<f32>
  return %5 : tensor<f32>
}
