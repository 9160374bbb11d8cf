// Rows of a table, a constant matrix, a fill and a concat; no optimizer.
func.func @forward(
    %ids: tensor<5xi64> {segue.name = "ids", segue.role = #segue.role<input>},
    %table: tensor<7x4xf32> {segue.name = "table", segue.role = #segue.role<parameter>})
    -> (tensor<10x3xf32> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<2x2xf32> {segue.name = "ones", segue.role = #segue.role<output>}) {
  %m = segue.constant dense<[[1.0, 2.0, 3.0], [-1.0, 0.5, 0.25], [0.0, 4.0, -8.0], [2.0, -2.0, 1.5]]> : tensor<4x3xf32>
  %ones = segue.constant dense<1.0> : tensor<2x2xf32>
  %e = segue.gather %table[%ids] : tensor<7x4xf32>, tensor<5xi64> -> tensor<5x4xf32>
  %0 = segue.dot_general %e, %m batch [] x [] contract [1] x [0] : tensor<5x4xf32>, tensor<4x3xf32> -> tensor<5x3xf32>
  %1 = segue.tanh %0 : tensor<5x3xf32>
  %2 = segue.concat %1, %0 dim 0 : tensor<5x3xf32>, tensor<5x3xf32> -> tensor<10x3xf32>
  return %2, %ones : tensor<10x3xf32>, tensor<2x2xf32>
}
