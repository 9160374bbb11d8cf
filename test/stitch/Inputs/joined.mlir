// front.mlir and back.mlir as one module: the oracle of StitchTest.cpp.

func.func @forward(
    %tokens: tensor<2x8xi64> {segue.name = "tokens", segue.role = #segue.role<input>},
    %wte: tensor<13x16xf32> {segue.name = "wte", segue.role = #segue.role<parameter>},
    %wq: tensor<16x16xf32> {segue.name = "wq", segue.role = #segue.role<parameter>},
    %wk: tensor<16x16xf32> {segue.name = "wk", segue.role = #segue.role<parameter>},
    %wv: tensor<16x16xf32> {segue.name = "wv", segue.role = #segue.role<parameter>},
    %gamma: tensor<16xf32> {segue.name = "gamma", segue.role = #segue.role<parameter>},
    %head: tensor<13x16xf32> {segue.name = "head", segue.role = #segue.role<parameter>},
    %targets: tensor<2x8xi64> {segue.name = "targets", segue.role = #segue.role<input>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %x = segue.gather %wte[%tokens] {segue.block = "wte"} : tensor<13x16xf32>, tensor<2x8xi64> -> tensor<2x8x16xf32> loc("model.py":3:1)
  %q = segue.dot_general %x, %wq batch [] x [] contract [2] x [1] : tensor<2x8x16xf32>, tensor<16x16xf32> -> tensor<2x8x16xf32>
  %k = segue.dot_general %x, %wk batch [] x [] contract [2] x [1] : tensor<2x8x16xf32>, tensor<16x16xf32> -> tensor<2x8x16xf32>
  %v = segue.dot_general %x, %wv batch [] x [] contract [2] x [1] : tensor<2x8x16xf32>, tensor<16x16xf32> -> tensor<2x8x16xf32>
  %q4 = segue.reshape %q : tensor<2x8x16xf32> -> tensor<2x8x2x8xf32>
  %k4 = segue.reshape %k : tensor<2x8x16xf32> -> tensor<2x8x2x8xf32>
  %v4 = segue.reshape %v : tensor<2x8x16xf32> -> tensor<2x8x2x8xf32>
  %qh = segue.transpose %q4 [0, 2, 1, 3] : tensor<2x8x2x8xf32> -> tensor<2x2x8x8xf32>
  %kh = segue.transpose %k4 [0, 2, 1, 3] : tensor<2x8x2x8xf32> -> tensor<2x2x8x8xf32>
  %vh = segue.transpose %v4 [0, 2, 1, 3] : tensor<2x8x2x8xf32> -> tensor<2x2x8x8xf32>
  %a, %lse = segue.attention %qh, %kh, %vh causal scale 0.35355339 : tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32> -> tensor<2x2x8xf32>
  %at = segue.transpose %a [0, 2, 1, 3] : tensor<2x2x8x8xf32> -> tensor<2x8x2x8xf32>
  %ar = segue.reshape %at : tensor<2x8x2x8xf32> -> tensor<2x8x16xf32>
  %h = segue.add %x, %ar : tensor<2x8x16xf32>
  %n, %rstd = segue.rms_norm %h gamma %gamma : tensor<16xf32> eps 1.0e-5 : tensor<2x8x16xf32> -> tensor<2x8xf32>
  %g = segue.gelu tanh %n : tensor<2x8x16xf32>
  %flat = segue.reshape %g : tensor<2x8x16xf32> -> tensor<16x16xf32>
  %logits = segue.dot_general %flat, %head batch [] x [] contract [1] x [1] : tensor<16x16xf32>, tensor<13x16xf32> -> tensor<16x13xf32>
  %t = segue.reshape %targets : tensor<2x8xi64> -> tensor<16xi64>
  %nll, %row_lse = segue.cross_entropy %logits, %t ignore_index -100 : tensor<16x13xf32>, tensor<16xi64> -> tensor<16xf32>
  %loss = segue.reduce mean %nll dims [0] : tensor<16xf32> -> tensor<f32>
  return %loss : tensor<f32>
}
