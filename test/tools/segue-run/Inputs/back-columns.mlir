// The products of back.mlir alone, for features that lie by columns.
func.func @forward(%h: tensor<6x7xf32, #segue.layout<space = device_dram, strides = [1, 6]>>
                       {segue.name = "features", segue.role = #segue.role<input>},
                   %w2: tensor<7x3xf32> {segue.name = "w2", segue.role = #segue.role<parameter>})
    -> (tensor<6x3xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.to_layout %h : tensor<6x7xf32, #segue.layout<space = device_dram, strides = [1, 6]>> -> tensor<6x7xf32>
  %1 = segue.dot_general %0, %w2 batch [] x [] contract [1] x [0] : tensor<6x7xf32>, tensor<7x3xf32> -> tensor<6x3xf32>
  return %1 : tensor<6x3xf32>
}
