// A loop that is cut at the edges of pads may have to be split where a piece of it
// is walked: by what divides all of the loop, not the piece. Three divides the first
// 12 of these 14 rows, and a kernel split by it left the last two unwritten.
// RUN: segue-compile %s --verify-values --optimizer none -o %t.segue

func.func @forward(%x: tensor<2x7x7xf32> {segue.name = "x", segue.role = #segue.role<input>})
    -> (tensor<2x7x2xf32> {segue.name = "out", segue.role = #segue.role<output>}) {
  %0 = segue.slice %x [0, 0, 0] to [2, 7, 2] by [1, 1, 1] : tensor<2x7x7xf32> -> tensor<2x7x2xf32>
  %1 = segue.exp %0 : tensor<2x7x2xf32>
  %2 = segue.slice %0 [0, 6, 0] to [2, 7, 2] by [1, 1, 1] : tensor<2x7x2xf32> -> tensor<2x1x2xf32>
  %3 = segue.pad %2 low [0, 6, 0] high [0, 0, 0] interior [0, 0, 0] value 0.0 : f32 : tensor<2x1x2xf32> -> tensor<2x7x2xf32>
  %4 = segue.slice %1 [0, 2, 0] to [2, 5, 2] by [1, 1, 1] : tensor<2x7x2xf32> -> tensor<2x3x2xf32>
  %5 = segue.pad %4 low [0, 2, 0] high [0, 2, 0] interior [0, 0, 0] value 0.0 : f32 : tensor<2x3x2xf32> -> tensor<2x7x2xf32>
  %6 = segue.sub %3, %5 : tensor<2x7x2xf32>
  %7 = segue.tanh %6 : tensor<2x7x2xf32>
  return %7 : tensor<2x7x2xf32>
}
