// A layer in f64, an argument, a parameter and a result without elements, and what is made of nothing.
module {
  func.func @forward(%x: tensor<2x3xf64> {segue.name = "x", segue.role = #segue.role<input>},
                     %none: tensor<0x3xf64> {segue.name = "none", segue.role = #segue.role<input>},
                     %w: tensor<3x2xf64> {segue.name = "w", segue.role = #segue.role<parameter>},
                     %spare: tensor<0x2xf64> {segue.name = "spare", segue.role = #segue.role<parameter>})
      -> (tensor<2x2xf64> {segue.name = "y", segue.role = #segue.role<output>},
          tensor<0x2xf64> {segue.name = "rows", segue.role = #segue.role<output>},
          tensor<3xf64> {segue.name = "sums", segue.role = #segue.role<output>}) {
    %y = segue.dot_general %x, %w batch [] x [] contract [1] x [0] : tensor<2x3xf64>, tensor<3x2xf64> -> tensor<2x2xf64>
    %product = segue.dot_general %none, %w batch [] x [] contract [1] x [0] : tensor<0x3xf64>, tensor<3x2xf64> -> tensor<0x2xf64>
    %rows = segue.add %product, %spare : tensor<0x2xf64>
    %all = segue.concat %none, %x dim 0 : tensor<0x3xf64>, tensor<2x3xf64> -> tensor<2x3xf64>
    %of_all = segue.reduce sum %all dims [0] : tensor<2x3xf64> -> tensor<3xf64>
    %of_none = segue.reduce sum %none dims [0] : tensor<0x3xf64> -> tensor<3xf64>
    %sums = segue.add %of_all, %of_none : tensor<3xf64>
    return %y, %rows, %sums : tensor<2x2xf64>, tensor<0x2xf64>, tensor<3xf64>
  }
}
