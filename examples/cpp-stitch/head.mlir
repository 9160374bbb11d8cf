// The second: a linear layer on hidden values from anywhere. It wants them
// column by column; whoever feeds it need not know that.
func.func @forward(
    %hidden: tensor<4x16xf32, #segue.layout<space = device_dram, strides = [1, 4]>>
      {segue.name = "hidden", segue.role = #segue.role<input>},
    %w: tensor<3x16xf32> {segue.name = "weight", segue.role = #segue.role<parameter>})
    -> (tensor<4x3xf32> {segue.name = "logits", segue.role = #segue.role<output>}) {
  %dense = segue.to_layout %hidden : tensor<4x16xf32, #segue.layout<space = device_dram, strides = [1, 4]>> -> tensor<4x16xf32>
  %logits = segue.dot_general %dense, %w batch [] x [] contract [1] x [1]
    : tensor<4x16xf32>, tensor<3x16xf32> -> tensor<4x3xf32>
  return %logits : tensor<4x3xf32>
}
