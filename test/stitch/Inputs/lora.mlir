// add_lora(Llama(...), 4, ("wq", "wv")), the model of llama.mlir of examples/models,
// for two rows of 16 tokens, as segue.compile(...).mlir has it.

module {
  func.func @forward(
    %arg0: tensor<64x32xf32> {segue.name = "embedding.weight", segue.role = #segue.role<frozen>},
    %arg1: tensor<32xf32> {segue.name = "layers.0.attention_norm.weight", segue.role = #segue.role<frozen>},
    %arg2: tensor<32xf32> {segue.name = "layers.0.ffn_norm.weight", segue.role = #segue.role<frozen>},
    %arg3: tensor<32x32xf32> {segue.name = "layers.0.wq.base.weight", segue.role = #segue.role<frozen>},
    %arg4: tensor<4x32xf32> {segue.name = "layers.0.wq.a.weight", segue.role = #segue.role<parameter>},
    %arg5: tensor<32x4xf32> {segue.name = "layers.0.wq.b.weight", segue.role = #segue.role<parameter>},
    %arg6: tensor<16x32xf32> {segue.name = "layers.0.wk.weight", segue.role = #segue.role<frozen>},
    %arg7: tensor<16x32xf32> {segue.name = "layers.0.wv.base.weight", segue.role = #segue.role<frozen>},
    %arg8: tensor<4x32xf32> {segue.name = "layers.0.wv.a.weight", segue.role = #segue.role<parameter>},
    %arg9: tensor<16x4xf32> {segue.name = "layers.0.wv.b.weight", segue.role = #segue.role<parameter>},
    %arg10: tensor<32x32xf32> {segue.name = "layers.0.wo.weight", segue.role = #segue.role<frozen>},
    %arg11: tensor<80x32xf32> {segue.name = "layers.0.w1.weight", segue.role = #segue.role<frozen>},
    %arg12: tensor<32x80xf32> {segue.name = "layers.0.w2.weight", segue.role = #segue.role<frozen>},
    %arg13: tensor<80x32xf32> {segue.name = "layers.0.w3.weight", segue.role = #segue.role<frozen>},
    %arg14: tensor<32xf32> {segue.name = "layers.1.attention_norm.weight", segue.role = #segue.role<frozen>},
    %arg15: tensor<32xf32> {segue.name = "layers.1.ffn_norm.weight", segue.role = #segue.role<frozen>},
    %arg16: tensor<32x32xf32> {segue.name = "layers.1.wq.base.weight", segue.role = #segue.role<frozen>},
    %arg17: tensor<4x32xf32> {segue.name = "layers.1.wq.a.weight", segue.role = #segue.role<parameter>},
    %arg18: tensor<32x4xf32> {segue.name = "layers.1.wq.b.weight", segue.role = #segue.role<parameter>},
    %arg19: tensor<16x32xf32> {segue.name = "layers.1.wk.weight", segue.role = #segue.role<frozen>},
    %arg20: tensor<16x32xf32> {segue.name = "layers.1.wv.base.weight", segue.role = #segue.role<frozen>},
    %arg21: tensor<4x32xf32> {segue.name = "layers.1.wv.a.weight", segue.role = #segue.role<parameter>},
    %arg22: tensor<16x4xf32> {segue.name = "layers.1.wv.b.weight", segue.role = #segue.role<parameter>},
    %arg23: tensor<32x32xf32> {segue.name = "layers.1.wo.weight", segue.role = #segue.role<frozen>},
    %arg24: tensor<80x32xf32> {segue.name = "layers.1.w1.weight", segue.role = #segue.role<frozen>},
    %arg25: tensor<32x80xf32> {segue.name = "layers.1.w2.weight", segue.role = #segue.role<frozen>},
    %arg26: tensor<80x32xf32> {segue.name = "layers.1.w3.weight", segue.role = #segue.role<frozen>},
    %arg27: tensor<32xf32> {segue.name = "norm.weight", segue.role = #segue.role<frozen>},
    %arg28: tensor<64x32xf32> {segue.name = "output.weight", segue.role = #segue.role<frozen>},
    %arg29: tensor<16x8xf32> {segue.name = "cos", segue.role = #segue.role<frozen>},
    %arg30: tensor<16x8xf32> {segue.name = "sin", segue.role = #segue.role<frozen>},
    %arg31: tensor<2x16xi64> {segue.name = "tokens", segue.role = #segue.role<input>},
    %arg32: tensor<2x16xi64> {segue.name = "targets", segue.role = #segue.role<input>}
  ) -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
    %0 = segue.gather %arg0[%arg31] : tensor<64x32xf32>, tensor<2x16xi64> -> tensor<2x16x32xf32>
    %1:2 = segue.rms_norm %0 gamma %arg1 : tensor<32xf32> eps 1.0e-5 {segue.block = "layers.0"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %2 = segue.dot_general %1#0, %arg3 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %3 = segue.dot_general %1#0, %arg4 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<4x32xf32> -> tensor<2x16x4xf32>
    %4 = segue.dot_general %3, %arg5 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x4xf32>, tensor<32x4xf32> -> tensor<2x16x32xf32>
    %5 = segue.constant dense<1.0> : tensor<f32>
    %6 = segue.broadcast %5 dims [] {segue.block = "layers.0"} : tensor<f32> -> tensor<2x16x32xf32>
    %7 = segue.mul %4, %6 {segue.block = "layers.0"} : tensor<2x16x32xf32>
    %8 = segue.add %2, %7 {segue.block = "layers.0"} : tensor<2x16x32xf32>
    %9 = segue.reshape %8 {segue.block = "layers.0"} : tensor<2x16x32xf32> -> tensor<2x16x4x8xf32>
    %10 = segue.transpose %9 [0, 2, 1, 3] {segue.block = "layers.0"} : tensor<2x16x4x8xf32> -> tensor<2x4x16x8xf32>
    %11 = segue.dot_general %1#0, %arg6 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<16x32xf32> -> tensor<2x16x16xf32>
    %12 = segue.reshape %11 {segue.block = "layers.0"} : tensor<2x16x16xf32> -> tensor<2x16x2x8xf32>
    %13 = segue.transpose %12 [0, 2, 1, 3] {segue.block = "layers.0"} : tensor<2x16x2x8xf32> -> tensor<2x2x16x8xf32>
    %14 = segue.dot_general %1#0, %arg7 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<16x32xf32> -> tensor<2x16x16xf32>
    %15 = segue.dot_general %1#0, %arg8 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<4x32xf32> -> tensor<2x16x4xf32>
    %16 = segue.dot_general %15, %arg9 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x4xf32>, tensor<16x4xf32> -> tensor<2x16x16xf32>
    %17 = segue.broadcast %5 dims [] {segue.block = "layers.0"} : tensor<f32> -> tensor<2x16x16xf32>
    %18 = segue.mul %16, %17 {segue.block = "layers.0"} : tensor<2x16x16xf32>
    %19 = segue.add %14, %18 {segue.block = "layers.0"} : tensor<2x16x16xf32>
    %20 = segue.reshape %19 {segue.block = "layers.0"} : tensor<2x16x16xf32> -> tensor<2x16x2x8xf32>
    %21 = segue.transpose %20 [0, 2, 1, 3] {segue.block = "layers.0"} : tensor<2x16x2x8xf32> -> tensor<2x2x16x8xf32>
    %22 = segue.slice %10 [0, 0, 0, 0] to [2, 4, 16, 4] by [1, 1, 1, 1] {segue.block = "layers.0"} : tensor<2x4x16x8xf32> -> tensor<2x4x16x4xf32>
    %23 = segue.slice %10 [0, 0, 0, 4] to [2, 4, 16, 8] by [1, 1, 1, 1] {segue.block = "layers.0"} : tensor<2x4x16x8xf32> -> tensor<2x4x16x4xf32>
    %24 = segue.broadcast %arg29 dims [2, 3] {segue.block = "layers.0"} : tensor<16x8xf32> -> tensor<2x4x16x8xf32>
    %25 = segue.mul %10, %24 {segue.block = "layers.0"} : tensor<2x4x16x8xf32>
    %26 = segue.neg %23 {segue.block = "layers.0"} : tensor<2x4x16x4xf32>
    %27 = segue.concat %26, %22 dim 3 {segue.block = "layers.0"} : tensor<2x4x16x4xf32>, tensor<2x4x16x4xf32> -> tensor<2x4x16x8xf32>
    %28 = segue.broadcast %arg30 dims [2, 3] {segue.block = "layers.0"} : tensor<16x8xf32> -> tensor<2x4x16x8xf32>
    %29 = segue.mul %27, %28 {segue.block = "layers.0"} : tensor<2x4x16x8xf32>
    %30 = segue.add %25, %29 {segue.block = "layers.0"} : tensor<2x4x16x8xf32>
    %31 = segue.slice %13 [0, 0, 0, 0] to [2, 2, 16, 4] by [1, 1, 1, 1] {segue.block = "layers.0"} : tensor<2x2x16x8xf32> -> tensor<2x2x16x4xf32>
    %32 = segue.slice %13 [0, 0, 0, 4] to [2, 2, 16, 8] by [1, 1, 1, 1] {segue.block = "layers.0"} : tensor<2x2x16x8xf32> -> tensor<2x2x16x4xf32>
    %33 = segue.broadcast %arg29 dims [2, 3] {segue.block = "layers.0"} : tensor<16x8xf32> -> tensor<2x2x16x8xf32>
    %34 = segue.mul %13, %33 {segue.block = "layers.0"} : tensor<2x2x16x8xf32>
    %35 = segue.neg %32 {segue.block = "layers.0"} : tensor<2x2x16x4xf32>
    %36 = segue.concat %35, %31 dim 3 {segue.block = "layers.0"} : tensor<2x2x16x4xf32>, tensor<2x2x16x4xf32> -> tensor<2x2x16x8xf32>
    %37 = segue.broadcast %arg30 dims [2, 3] {segue.block = "layers.0"} : tensor<16x8xf32> -> tensor<2x2x16x8xf32>
    %38 = segue.mul %36, %37 {segue.block = "layers.0"} : tensor<2x2x16x8xf32>
    %39 = segue.add %34, %38 {segue.block = "layers.0"} : tensor<2x2x16x8xf32>
    %40 = segue.broadcast %39 dims [0, 1, 3, 4] {segue.block = "layers.0"} : tensor<2x2x16x8xf32> -> tensor<2x2x2x16x8xf32>
    %41 = segue.reshape %40 {segue.block = "layers.0"} : tensor<2x2x2x16x8xf32> -> tensor<2x4x16x8xf32>
    %42 = segue.broadcast %21 dims [0, 1, 3, 4] {segue.block = "layers.0"} : tensor<2x2x16x8xf32> -> tensor<2x2x2x16x8xf32>
    %43 = segue.reshape %42 {segue.block = "layers.0"} : tensor<2x2x2x16x8xf32> -> tensor<2x4x16x8xf32>
    %44:2 = segue.attention %30, %41, %43 causal scale 0.35355339059327373 {segue.block = "layers.0"} : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
    %45 = segue.transpose %44#0 [0, 2, 1, 3] {segue.block = "layers.0"} : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32>
    %46 = segue.reshape %45 {segue.block = "layers.0"} : tensor<2x16x4x8xf32> -> tensor<2x16x32xf32>
    %47 = segue.dot_general %46, %arg10 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %48 = segue.add %0, %47 {segue.block = "layers.0"} : tensor<2x16x32xf32>
    %49:2 = segue.rms_norm %48 gamma %arg2 : tensor<32xf32> eps 1.0e-5 {segue.block = "layers.0"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %50 = segue.dot_general %49#0, %arg11 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<80x32xf32> -> tensor<2x16x80xf32>
    %51 = segue.silu %50 {segue.block = "layers.0"} : tensor<2x16x80xf32>
    %52 = segue.dot_general %49#0, %arg13 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x32xf32>, tensor<80x32xf32> -> tensor<2x16x80xf32>
    %53 = segue.mul %51, %52 {segue.block = "layers.0"} : tensor<2x16x80xf32>
    %54 = segue.dot_general %53, %arg12 batch [] x [] contract [2] x [1] {segue.block = "layers.0"} : tensor<2x16x80xf32>, tensor<32x80xf32> -> tensor<2x16x32xf32>
    %55 = segue.add %48, %54 {segue.block = "layers.0"} : tensor<2x16x32xf32>
    %56:2 = segue.rms_norm %55 gamma %arg14 : tensor<32xf32> eps 1.0e-5 {segue.block = "layers.1"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %57 = segue.dot_general %56#0, %arg16 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %58 = segue.dot_general %56#0, %arg17 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<4x32xf32> -> tensor<2x16x4xf32>
    %59 = segue.dot_general %58, %arg18 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x4xf32>, tensor<32x4xf32> -> tensor<2x16x32xf32>
    %60 = segue.broadcast %5 dims [] {segue.block = "layers.1"} : tensor<f32> -> tensor<2x16x32xf32>
    %61 = segue.mul %59, %60 {segue.block = "layers.1"} : tensor<2x16x32xf32>
    %62 = segue.add %57, %61 {segue.block = "layers.1"} : tensor<2x16x32xf32>
    %63 = segue.reshape %62 {segue.block = "layers.1"} : tensor<2x16x32xf32> -> tensor<2x16x4x8xf32>
    %64 = segue.transpose %63 [0, 2, 1, 3] {segue.block = "layers.1"} : tensor<2x16x4x8xf32> -> tensor<2x4x16x8xf32>
    %65 = segue.dot_general %56#0, %arg19 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<16x32xf32> -> tensor<2x16x16xf32>
    %66 = segue.reshape %65 {segue.block = "layers.1"} : tensor<2x16x16xf32> -> tensor<2x16x2x8xf32>
    %67 = segue.transpose %66 [0, 2, 1, 3] {segue.block = "layers.1"} : tensor<2x16x2x8xf32> -> tensor<2x2x16x8xf32>
    %68 = segue.dot_general %56#0, %arg20 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<16x32xf32> -> tensor<2x16x16xf32>
    %69 = segue.dot_general %56#0, %arg21 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<4x32xf32> -> tensor<2x16x4xf32>
    %70 = segue.dot_general %69, %arg22 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x4xf32>, tensor<16x4xf32> -> tensor<2x16x16xf32>
    %71 = segue.broadcast %5 dims [] {segue.block = "layers.1"} : tensor<f32> -> tensor<2x16x16xf32>
    %72 = segue.mul %70, %71 {segue.block = "layers.1"} : tensor<2x16x16xf32>
    %73 = segue.add %68, %72 {segue.block = "layers.1"} : tensor<2x16x16xf32>
    %74 = segue.reshape %73 {segue.block = "layers.1"} : tensor<2x16x16xf32> -> tensor<2x16x2x8xf32>
    %75 = segue.transpose %74 [0, 2, 1, 3] {segue.block = "layers.1"} : tensor<2x16x2x8xf32> -> tensor<2x2x16x8xf32>
    %76 = segue.slice %64 [0, 0, 0, 0] to [2, 4, 16, 4] by [1, 1, 1, 1] {segue.block = "layers.1"} : tensor<2x4x16x8xf32> -> tensor<2x4x16x4xf32>
    %77 = segue.slice %64 [0, 0, 0, 4] to [2, 4, 16, 8] by [1, 1, 1, 1] {segue.block = "layers.1"} : tensor<2x4x16x8xf32> -> tensor<2x4x16x4xf32>
    %78 = segue.broadcast %arg29 dims [2, 3] {segue.block = "layers.1"} : tensor<16x8xf32> -> tensor<2x4x16x8xf32>
    %79 = segue.mul %64, %78 {segue.block = "layers.1"} : tensor<2x4x16x8xf32>
    %80 = segue.neg %77 {segue.block = "layers.1"} : tensor<2x4x16x4xf32>
    %81 = segue.concat %80, %76 dim 3 {segue.block = "layers.1"} : tensor<2x4x16x4xf32>, tensor<2x4x16x4xf32> -> tensor<2x4x16x8xf32>
    %82 = segue.broadcast %arg30 dims [2, 3] {segue.block = "layers.1"} : tensor<16x8xf32> -> tensor<2x4x16x8xf32>
    %83 = segue.mul %81, %82 {segue.block = "layers.1"} : tensor<2x4x16x8xf32>
    %84 = segue.add %79, %83 {segue.block = "layers.1"} : tensor<2x4x16x8xf32>
    %85 = segue.slice %67 [0, 0, 0, 0] to [2, 2, 16, 4] by [1, 1, 1, 1] {segue.block = "layers.1"} : tensor<2x2x16x8xf32> -> tensor<2x2x16x4xf32>
    %86 = segue.slice %67 [0, 0, 0, 4] to [2, 2, 16, 8] by [1, 1, 1, 1] {segue.block = "layers.1"} : tensor<2x2x16x8xf32> -> tensor<2x2x16x4xf32>
    %87 = segue.broadcast %arg29 dims [2, 3] {segue.block = "layers.1"} : tensor<16x8xf32> -> tensor<2x2x16x8xf32>
    %88 = segue.mul %67, %87 {segue.block = "layers.1"} : tensor<2x2x16x8xf32>
    %89 = segue.neg %86 {segue.block = "layers.1"} : tensor<2x2x16x4xf32>
    %90 = segue.concat %89, %85 dim 3 {segue.block = "layers.1"} : tensor<2x2x16x4xf32>, tensor<2x2x16x4xf32> -> tensor<2x2x16x8xf32>
    %91 = segue.broadcast %arg30 dims [2, 3] {segue.block = "layers.1"} : tensor<16x8xf32> -> tensor<2x2x16x8xf32>
    %92 = segue.mul %90, %91 {segue.block = "layers.1"} : tensor<2x2x16x8xf32>
    %93 = segue.add %88, %92 {segue.block = "layers.1"} : tensor<2x2x16x8xf32>
    %94 = segue.broadcast %93 dims [0, 1, 3, 4] {segue.block = "layers.1"} : tensor<2x2x16x8xf32> -> tensor<2x2x2x16x8xf32>
    %95 = segue.reshape %94 {segue.block = "layers.1"} : tensor<2x2x2x16x8xf32> -> tensor<2x4x16x8xf32>
    %96 = segue.broadcast %75 dims [0, 1, 3, 4] {segue.block = "layers.1"} : tensor<2x2x16x8xf32> -> tensor<2x2x2x16x8xf32>
    %97 = segue.reshape %96 {segue.block = "layers.1"} : tensor<2x2x2x16x8xf32> -> tensor<2x4x16x8xf32>
    %98:2 = segue.attention %84, %95, %97 causal scale 0.35355339059327373 {segue.block = "layers.1"} : tensor<2x4x16x8xf32>, tensor<2x4x16x8xf32> -> tensor<2x4x16xf32>
    %99 = segue.transpose %98#0 [0, 2, 1, 3] {segue.block = "layers.1"} : tensor<2x4x16x8xf32> -> tensor<2x16x4x8xf32>
    %100 = segue.reshape %99 {segue.block = "layers.1"} : tensor<2x16x4x8xf32> -> tensor<2x16x32xf32>
    %101 = segue.dot_general %100, %arg23 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %102 = segue.add %55, %101 {segue.block = "layers.1"} : tensor<2x16x32xf32>
    %103:2 = segue.rms_norm %102 gamma %arg15 : tensor<32xf32> eps 1.0e-5 {segue.block = "layers.1"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %104 = segue.dot_general %103#0, %arg24 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<80x32xf32> -> tensor<2x16x80xf32>
    %105 = segue.silu %104 {segue.block = "layers.1"} : tensor<2x16x80xf32>
    %106 = segue.dot_general %103#0, %arg26 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x32xf32>, tensor<80x32xf32> -> tensor<2x16x80xf32>
    %107 = segue.mul %105, %106 {segue.block = "layers.1"} : tensor<2x16x80xf32>
    %108 = segue.dot_general %107, %arg25 batch [] x [] contract [2] x [1] {segue.block = "layers.1"} : tensor<2x16x80xf32>, tensor<32x80xf32> -> tensor<2x16x32xf32>
    %109 = segue.add %102, %108 {segue.block = "layers.1"} : tensor<2x16x32xf32>
    %110:2 = segue.rms_norm %109 gamma %arg27 : tensor<32xf32> eps 1.0e-5 : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %111 = segue.dot_general %110#0, %arg28 batch [] x [] contract [2] x [1] : tensor<2x16x32xf32>, tensor<64x32xf32> -> tensor<2x16x64xf32>
    %112 = segue.reshape %111 : tensor<2x16x64xf32> -> tensor<32x64xf32>
    %113 = segue.reshape %arg32 : tensor<2x16xi64> -> tensor<32xi64>
    %114 = segue.constant dense<-100> : tensor<i64>
    %115 = segue.broadcast %114 dims [] : tensor<i64> -> tensor<32xi64>
    %116 = segue.compare ne %113, %115 : tensor<32xi64> -> tensor<32xi1>
    %117 = segue.cast %116 : tensor<32xi1> -> tensor<32xf32>
    %118:2 = segue.cross_entropy %112, %113 ignore_index -100 : tensor<32x64xf32>, tensor<32xi64> -> tensor<32xf32>
    %119 = segue.reduce sum %118#0 dims [0] : tensor<32xf32> -> tensor<f32>
    %120 = segue.reduce sum %117 dims [0] : tensor<32xf32> -> tensor<f32>
    %121 = segue.div %119, %120 : tensor<f32>
    return %121 : tensor<f32>
  }
}
