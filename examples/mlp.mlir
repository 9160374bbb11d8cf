// A classifier with one hidden layer, as text: what segue.compile makes of a
// PyTorch module, and what every tool takes.
func.func @forward(
    %x: tensor<32x16xf32> {segue.name = "x", segue.role = #segue.role<input>, segue.requires_grad = false},
    %targets: tensor<32xi64> {segue.name = "targets", segue.role = #segue.role<input>},
    %w1: tensor<64x16xf32> {segue.name = "fc.weight", segue.role = #segue.role<parameter>},
    %b1: tensor<64xf32> {segue.name = "fc.bias", segue.role = #segue.role<parameter>},
    %w2: tensor<10x64xf32> {segue.name = "head.weight", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %h = segue.dot_general %x, %w1 batch [] x [] contract [1] x [1]
    : tensor<32x16xf32>, tensor<64x16xf32> -> tensor<32x64xf32>
  %b = segue.broadcast %b1 dims [1] : tensor<64xf32> -> tensor<32x64xf32>
  %s = segue.add %h, %b : tensor<32x64xf32>
  %y = segue.gelu tanh %s : tensor<32x64xf32>
  %logits = segue.dot_general %y, %w2 batch [] x [] contract [1] x [1]
    : tensor<32x64xf32>, tensor<10x64xf32> -> tensor<32x10xf32>
  %losses, %lse = segue.cross_entropy %logits, %targets ignore_index -100
    : tensor<32x10xf32>, tensor<32xi64> -> tensor<32xf32>
  %loss = segue.reduce mean %losses dims [0] : tensor<32xf32> -> tensor<f32>
  return %loss : tensor<f32>
}
