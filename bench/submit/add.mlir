// One tiny kernel, the op of the peers.
func.func @forward(%a: tensor<16xf32> {segue.name = "a", segue.role = #segue.role<input>},
                   %b: tensor<16xf32> {segue.name = "b", segue.role = #segue.role<input>})
    -> (tensor<16xf32> {segue.name = "c", segue.role = #segue.role<output>}) {
  %0 = segue.add %a, %b : tensor<16xf32>
  return %0 : tensor<16xf32>
}
