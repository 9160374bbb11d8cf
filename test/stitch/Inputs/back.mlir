// The second half of joined.mlir, as a module of its own: norm, head, loss.
// "hidden" may come from anywhere.

func.func @forward(
    %hidden: tensor<2x8x16xf32> {segue.name = "hidden", segue.role = #segue.role<input>},
    %gamma: tensor<16xf32> {segue.name = "gamma", segue.role = #segue.role<parameter>},
    %head: tensor<13x16xf32> {segue.name = "head", segue.role = #segue.role<parameter>},
    %targets: tensor<2x8xi64> {segue.name = "targets", segue.role = #segue.role<input>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %n, %rstd = segue.rms_norm %hidden gamma %gamma : tensor<16xf32> eps 1.0e-5 : tensor<2x8x16xf32> -> tensor<2x8xf32>
  %g = segue.gelu tanh %n : tensor<2x8x16xf32>
  %rows = segue.reshape %g : tensor<2x8x16xf32> -> tensor<16x16xf32>
  %logits = segue.dot_general %rows, %head batch [] x [] contract [1] x [1] : tensor<16x16xf32>, tensor<13x16xf32> -> tensor<16x13xf32>
  %t = segue.reshape %targets : tensor<2x8xi64> -> tensor<16xi64>
  %nll, %lse = segue.cross_entropy %logits, %t ignore_index -100 : tensor<16x13xf32>, tensor<16xi64> -> tensor<16xf32>
  %loss = segue.reduce mean %nll dims [0] : tensor<16xf32> -> tensor<f32>
  return %loss : tensor<f32>
}
