// Llama(LlamaConfig(layers=2, dim=32, heads=4, kv_heads=2, hidden=80, seq=16, vocab=64)) of examples/models,
// for two rows of 16 tokens, as segue.compile(...).mlir has it.

module {
  func.func @forward(
    %arg0: tensor<64x32xf32> {segue.name = "embedding.weight", segue.role = #segue.role<parameter>},
    %arg1: tensor<32xf32> {segue.name = "layers.0.attention_norm.weight", segue.role = #segue.role<parameter>},
    %arg2: tensor<32xf32> {segue.name = "layers.0.ffn_norm.weight", segue.role = #segue.role<parameter>},
    %arg3: tensor<32x32xf32> {segue.name = "layers.0.wq.weight", segue.role = #segue.role<parameter>},
    %arg4: tensor<16x32xf32> {segue.name = "layers.0.wk.weight", segue.role = #segue.role<parameter>},
    %arg5: tensor<16x32xf32> {segue.name = "layers.0.wv.weight", segue.role = #segue.role<parameter>},
    %arg6: tensor<32x32xf32> {segue.name = "layers.0.wo.weight", segue.role = #segue.role<parameter>},
    %arg7: tensor<80x32xf32> {segue.name = "layers.0.w1.weight", segue.role = #segue.role<parameter>},
    %arg8: tensor<32x80xf32> {segue.name = "layers.0.w2.weight", segue.role = #segue.role<parameter>},
    %arg9: tensor<80x32xf32> {segue.name = "layers.0.w3.weight", segue.role = #segue.role<parameter>},
    %arg10: tensor<32xf32> {segue.name = "layers.1.attention_norm.weight", segue.role = #segue.role<parameter>},
    %arg11: tensor<32xf32> {segue.name = "layers.1.ffn_norm.weight", segue.role = #segue.role<parameter>},
    %arg12: tensor<32x32xf32> {segue.name = "layers.1.wq.weight", segue.role = #segue.role<parameter>},
    %arg13: tensor<16x32xf32> {segue.name = "layers.1.wk.weight", segue.role = #segue.role<parameter>},
    %arg14: tensor<16x32xf32> {segue.name = "layers.1.wv.weight", segue.role = #segue.role<parameter>},
    %arg15: tensor<32x32xf32> {segue.name = "layers.1.wo.weight", segue.role = #segue.role<parameter>},
    %arg16: tensor<80x32xf32> {segue.name = "layers.1.w1.weight", segue.role = #segue.role<parameter>},
    %arg17: tensor<32x80xf32> {segue.name = "layers.1.w2.weight", segue.role = #segue.role<parameter>},
    %arg18: tensor<80x32xf32> {segue.name = "layers.1.w3.weight", segue.role = #segue.role<parameter>},
    %arg19: tensor<32xf32> {segue.name = "norm.weight", segue.role = #segue.role<parameter>},
    %arg20: tensor<64x32xf32> {segue.name = "output.weight", segue.role = #segue.role<parameter>},
    %arg21: tensor<16x8xf32> {segue.name = "cos", segue.role = #segue.role<frozen>},
    %arg22: tensor<16x8xf32> {segue.name = "sin", segue.role = #segue.role<frozen>},
    %arg23: tensor<2x16xi64> {segue.name = "tokens", segue.role = #segue.role<input>},
    %arg24: tensor<2x16xi64> {segue.name = "targets", segue.role = #segue.role<input>}
  ) -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
    %0 = segue.gather %arg0[%arg23] : tensor<64x32xf32>, tensor<2x16xi64> -> tensor<2x16x32xf32>
    %1:2 = segue.rms_norm %0 gamma %arg1 : tensor<32xf32> eps 1.0e-5 {segue.block = "layers.0"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %2 = segue.dot_general %1#0, %arg3 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %3 = segue.reshape %2 {segue.block = "layers.0"} : tensor<2x16x32xf32> -> tensor<2x16x4x8xf32>
    %4 = segue.transpose %3 [0, 2, 1, 3] {segue.block = "layers.0"} : tensor<2x16x4x8xf32> -> tensor<2x4x16x8xf32>
    %5 = segue.dot_general %1#0, %arg4 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<16x32xf32> -> tensor<2x16x16xf32>
    %6 = segue.reshape %5 {segue.block = "layers.0"} : tensor<2x16x16xf32> -> tensor<2x16x2x8xf32>
    %7 = segue.transpose %6 [0, 2, 1, 3] {segue.block = "layers.0"} : tensor<2x16x2x8xf32> -> tensor<2x2x16x8xf32>
    %8 = segue.dot_general %1#0, %arg5 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<16x32xf32> -> tensor<2x16x16xf32>
    %9 = segue.reshape %8 {segue.block = "layers.0"} : tensor<2x16x16xf32> -> tensor<2x16x2x8xf32>
    %10 = segue.transpose %9 [0, 2, 1, 3] {segue.block = "layers.0"} : tensor<2x16x2x8xf32> -> tensor<2x2x16x8xf32>
    %11 = segue.slice %4 [0, 0, 0, 0] to [2, 4, 16, 4] by [1, 1, 1, 1] {segue.block = "layers.0"} : tensor<2x4x16x8xf32> -> tensor<2x4x16x4xf32>
    %12 = segue.slice %4 [0, 0, 0, 4] to [2, 4, 16, 8] by [1, 1, 1, 1] {segue.block = "layers.0"} : tensor<2x4x16x8xf32> -> tensor<2x4x16x4xf32>
    %13 = segue.broadcast %arg21 dims [2, 3] {segue.block = "layers.0"} : tensor<16x8xf32> -> tensor<2x4x16x8xf32>
    %14 = segue.mul %4, %13 {segue.block = "layers.0"} : tensor<2x4x16x8xf32>
    %15 = segue.neg %12 {segue.block = "layers.0"} : tensor<2x4x16x4xf32>
    %16 = segue.concat %15, %11 dim 3 {segue.block = "layers.0"} : tensor<2x4x16x4xf32>, tensor<2x4x16x4xf32> -> tensor<2x4x16x8xf32>
    %17 = segue.broadcast %arg22 dims [2, 3] {segue.block = "layers.0"} : tensor<16x8xf32> -> tensor<2x4x16x8xf32>
    %18 = segue.mul %16, %17 {segue.block = "layers.0"} : tensor<2x4x16x8xf32>
    %19 = segue.add %14, %18 {segue.block = "layers.0"} : tensor<2x4x16x8xf32>
    %20 = segue.slice %7 [0, 0, 0, 0] to [2, 2, 16, 4] by [1, 1, 1, 1] {segue.block = "layers.0"} : tensor<2x2x16x8xf32> -> tensor<2x2x16x4xf32>
    %21 = segue.slice %7 [0, 0, 0, 4] to [2, 2, 16, 8] by [1, 1, 1, 1] {segue.block = "layers.0"} : tensor<2x2x16x8xf32> -> tensor<2x2x16x4xf32>
    %22 = segue.broadcast %arg21 dims [2, 3] {segue.block = "layers.0"} : tensor<16x8xf32> -> tensor<2x2x16x8xf32>
    %23 = segue.mul %7, %22 {segue.block = "layers.0"} : tensor<2x2x16x8xf32>
    %24 = segue.neg %21 {segue.block = "layers.0"} : tensor<2x2x16x4xf32>
    %25 = segue.concat %24, %20 dim 3 {segue.block = "layers.0"} : tensor<2x2x16x4xf32>, tensor<2x2x16x4xf32> -> tensor<2x2x16x8xf32>
    %26 = segue.broadcast %arg22 dims [2, 3] {segue.block = "layers.0"} : tensor<16x8xf32> -> tensor<2x2x16x8xf32>
    %27 = segue.mul %25, %26 {segue.block = "layers.0"} : tensor<2x2x16x8xf32>
    %28 = segue.add %23, %27 {segue.block = "layers.0"} : tensor<2x2x16x8xf32>
    %29 = segue.broadcast %28 dims [0, 1, 3, 4] {segue.block = "layers.0"} : tensor<2x2x16x8xf32> -> tensor<2x2x2x16x8xf32>
    %30 = segue.reshape %29 {segue.block = "layers.0"} : tensor<2x2x2x16x8xf32> -> tensor<2x4x16x8xf32>
    %31 = segue.broadcast %10 dims [0, 1, 3, 4] {segue.block = "layers.0"} : tensor<2x2x16x8xf32> -> tensor<2x2x2x16x8xf32>
    %32 = segue.reshape %31 {segue.block = "layers.0"} : tensor<2x2x2x16x8xf32> -> tensor<2x4x16x8xf32>
    %33:2 = segue.attention %19, %30, %32 causal scale 0.35355339059327373 {segue.block = "layers.0"} : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
    %34 = segue.transpose %33#0 [0, 2, 1, 3] {segue.block = "layers.0"} : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32>
    %35 = segue.reshape %34 {segue.block = "layers.0"} : tensor<2x16x4x8xf32> -> tensor<2x16x32xf32>
    %36 = segue.dot_general %35, %arg6 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %37 = segue.add %0, %36 {segue.block = "layers.0"} : tensor<2x16x32xf32>
    %38:2 = segue.rms_norm %37 gamma %arg2 : tensor<32xf32> eps 1.0e-5 {segue.block = "layers.0"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %39 = segue.dot_general %38#0, %arg7 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<80x32xf32> -> tensor<2x16x80xf32>
    %40 = segue.silu %39 {segue.block = "layers.0"} : tensor<2x16x80xf32>
    %41 = segue.dot_general %38#0, %arg9 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<80x32xf32> -> tensor<2x16x80xf32>
    %42 = segue.mul %40, %41 {segue.block = "layers.0"} : tensor<2x16x80xf32>
    %43 = segue.dot_general %42, %arg8 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x80xf32>, tensor<32x80xf32> -> tensor<2x16x32xf32>
    %44 = segue.add %37, %43 {segue.block = "layers.0"} : tensor<2x16x32xf32>
    %45:2 = segue.rms_norm %44 gamma %arg10 : tensor<32xf32> eps 1.0e-5 {segue.block = "layers.1"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %46 = segue.dot_general %45#0, %arg12 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %47 = segue.reshape %46 {segue.block = "layers.1"} : tensor<2x16x32xf32> -> tensor<2x16x4x8xf32>
    %48 = segue.transpose %47 [0, 2, 1, 3] {segue.block = "layers.1"} : tensor<2x16x4x8xf32> -> tensor<2x4x16x8xf32>
    %49 = segue.dot_general %45#0, %arg13 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<16x32xf32> -> tensor<2x16x16xf32>
    %50 = segue.reshape %49 {segue.block = "layers.1"} : tensor<2x16x16xf32> -> tensor<2x16x2x8xf32>
    %51 = segue.transpose %50 [0, 2, 1, 3] {segue.block = "layers.1"} : tensor<2x16x2x8xf32> -> tensor<2x2x16x8xf32>
    %52 = segue.dot_general %45#0, %arg14 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<16x32xf32> -> tensor<2x16x16xf32>
    %53 = segue.reshape %52 {segue.block = "layers.1"} : tensor<2x16x16xf32> -> tensor<2x16x2x8xf32>
    %54 = segue.transpose %53 [0, 2, 1, 3] {segue.block = "layers.1"} : tensor<2x16x2x8xf32> -> tensor<2x2x16x8xf32>
    %55 = segue.slice %48 [0, 0, 0, 0] to [2, 4, 16, 4] by [1, 1, 1, 1] {segue.block = "layers.1"} : tensor<2x4x16x8xf32> -> tensor<2x4x16x4xf32>
    %56 = segue.slice %48 [0, 0, 0, 4] to [2, 4, 16, 8] by [1, 1, 1, 1] {segue.block = "layers.1"} : tensor<2x4x16x8xf32> -> tensor<2x4x16x4xf32>
    %57 = segue.broadcast %arg21 dims [2, 3] {segue.block = "layers.1"} : tensor<16x8xf32> -> tensor<2x4x16x8xf32>
    %58 = segue.mul %48, %57 {segue.block = "layers.1"} : tensor<2x4x16x8xf32>
    %59 = segue.neg %56 {segue.block = "layers.1"} : tensor<2x4x16x4xf32>
    %60 = segue.concat %59, %55 dim 3 {segue.block = "layers.1"} : tensor<2x4x16x4xf32>, tensor<2x4x16x4xf32> -> tensor<2x4x16x8xf32>
    %61 = segue.broadcast %arg22 dims [2, 3] {segue.block = "layers.1"} : tensor<16x8xf32> -> tensor<2x4x16x8xf32>
    %62 = segue.mul %60, %61 {segue.block = "layers.1"} : tensor<2x4x16x8xf32>
    %63 = segue.add %58, %62 {segue.block = "layers.1"} : tensor<2x4x16x8xf32>
    %64 = segue.slice %51 [0, 0, 0, 0] to [2, 2, 16, 4] by [1, 1, 1, 1] {segue.block = "layers.1"} : tensor<2x2x16x8xf32> -> tensor<2x2x16x4xf32>
    %65 = segue.slice %51 [0, 0, 0, 4] to [2, 2, 16, 8] by [1, 1, 1, 1] {segue.block = "layers.1"} : tensor<2x2x16x8xf32> -> tensor<2x2x16x4xf32>
    %66 = segue.broadcast %arg21 dims [2, 3] {segue.block = "layers.1"} : tensor<16x8xf32> -> tensor<2x2x16x8xf32>
    %67 = segue.mul %51, %66 {segue.block = "layers.1"} : tensor<2x2x16x8xf32>
    %68 = segue.neg %65 {segue.block = "layers.1"} : tensor<2x2x16x4xf32>
    %69 = segue.concat %68, %64 dim 3 {segue.block = "layers.1"} : tensor<2x2x16x4xf32>, tensor<2x2x16x4xf32> -> tensor<2x2x16x8xf32>
    %70 = segue.broadcast %arg22 dims [2, 3] {segue.block = "layers.1"} : tensor<16x8xf32> -> tensor<2x2x16x8xf32>
    %71 = segue.mul %69, %70 {segue.block = "layers.1"} : tensor<2x2x16x8xf32>
    %72 = segue.add %67, %71 {segue.block = "layers.1"} : tensor<2x2x16x8xf32>
    %73 = segue.broadcast %72 dims [0, 1, 3, 4] {segue.block = "layers.1"} : tensor<2x2x16x8xf32> -> tensor<2x2x2x16x8xf32>
    %74 = segue.reshape %73 {segue.block = "layers.1"} : tensor<2x2x2x16x8xf32> -> tensor<2x4x16x8xf32>
    %75 = segue.broadcast %54 dims [0, 1, 3, 4] {segue.block = "layers.1"} : tensor<2x2x16x8xf32> -> tensor<2x2x2x16x8xf32>
    %76 = segue.reshape %75 {segue.block = "layers.1"} : tensor<2x2x2x16x8xf32> -> tensor<2x4x16x8xf32>
    %77:2 = segue.attention %63, %74, %76 causal scale 0.35355339059327373 {segue.block = "layers.1"} : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
    %78 = segue.transpose %77#0 [0, 2, 1, 3] {segue.block = "layers.1"} : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32>
    %79 = segue.reshape %78 {segue.block = "layers.1"} : tensor<2x16x4x8xf32> -> tensor<2x16x32xf32>
    %80 = segue.dot_general %79, %arg15 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %81 = segue.add %44, %80 {segue.block = "layers.1"} : tensor<2x16x32xf32>
    %82:2 = segue.rms_norm %81 gamma %arg11 : tensor<32xf32> eps 1.0e-5 {segue.block = "layers.1"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %83 = segue.dot_general %82#0, %arg16 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<80x32xf32> -> tensor<2x16x80xf32>
    %84 = segue.silu %83 {segue.block = "layers.1"} : tensor<2x16x80xf32>
    %85 = segue.dot_general %82#0, %arg18 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<80x32xf32> -> tensor<2x16x80xf32>
    %86 = segue.mul %84, %85 {segue.block = "layers.1"} : tensor<2x16x80xf32>
    %87 = segue.dot_general %86, %arg17 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x80xf32>, tensor<32x80xf32> -> tensor<2x16x32xf32>
    %88 = segue.add %81, %87 {segue.block = "layers.1"} : tensor<2x16x32xf32>
    %89:2 = segue.rms_norm %88 gamma %arg19 : tensor<32xf32> eps 1.0e-5 : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %90 = segue.dot_general %89#0, %arg20 batch [] x [] contract [2] x [1] : tensor<2x16x32xf32>, tensor<64x32xf32> -> tensor<2x16x64xf32>
    %91 = segue.reshape %90 : tensor<2x16x64xf32> -> tensor<32x64xf32>
    %92 = segue.reshape %arg24 : tensor<2x16xi64> -> tensor<32xi64>
    %93 = segue.constant dense<-100> : tensor<i64>
    %94 = segue.broadcast %93 dims [] : tensor<i64> -> tensor<32xi64>
    %95 = segue.compare ne %92, %94 : tensor<32xi64> -> tensor<32xi1>
    %96 = segue.cast %95 : tensor<32xi1> -> tensor<32xf32>
    %97:2 = segue.cross_entropy %91, %92 ignore_index -100 : tensor<32x64xf32>, tensor<32xi64> -> tensor<32xf32>
    %98 = segue.reduce sum %97#0 dims [0] : tensor<32xf32> -> tensor<f32>
    %99 = segue.reduce sum %96 dims [0] : tensor<32xf32> -> tensor<f32>
    %100 = segue.div %98, %99 : tensor<f32>
    return %100 : tensor<f32>
  }
}
