// Matmuls with bias, gelu, cross-entropy and AdamW.
func.func @forward(
    %x: tensor<8x6xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
    %targets: tensor<8xi64> {segue.name = "targets", segue.role = #segue.role<input>},
    %w1: tensor<10x6xf32> {segue.name = "fc.weight", segue.role = #segue.role<parameter>},
    %b1: tensor<10xf32> {segue.name = "fc.bias", segue.role = #segue.role<parameter>},
    %w2: tensor<4x10xf32> {segue.name = "head.weight", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %h = segue.dot_general %x, %w1 batch [] x [] contract [1] x [1]
    : tensor<8x6xf32>, tensor<10x6xf32> -> tensor<8x10xf32>
  %b = segue.broadcast %b1 dims [1] : tensor<10xf32> -> tensor<8x10xf32>
  %s = segue.add %h, %b : tensor<8x10xf32>
  %y = segue.gelu tanh %s : tensor<8x10xf32>
  %logits = segue.dot_general %y, %w2 batch [] x [] contract [1] x [1]
    : tensor<8x10xf32>, tensor<4x10xf32> -> tensor<8x4xf32>
  %losses, %lse = segue.cross_entropy %logits, %targets ignore_index -100
    : tensor<8x4xf32>, tensor<8xi64> -> tensor<8xf32>
  %loss = segue.reduce mean %losses dims [0] : tensor<8xf32> -> tensor<f32>
  return %loss : tensor<f32>
}
