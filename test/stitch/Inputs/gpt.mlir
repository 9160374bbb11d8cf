// GPT(GPTConfig(layers=2, dim=32, heads=2, seq=16, vocab=64)) of examples/models,
// for two rows of 16 tokens, as segue.compile(...).mlir has it.

module {
  func.func @forward(
    %arg0: tensor<64x32xf32> {segue.name = "first.wte.weight", segue.role = #segue.role<parameter>},
    %arg1: tensor<16x32xf32> {segue.name = "first.wpe.weight", segue.role = #segue.role<parameter>},
    %arg2: tensor<32xf32> {segue.name = "first.h.0.ln1.weight", segue.role = #segue.role<parameter>},
    %arg3: tensor<32xf32> {segue.name = "first.h.0.ln1.bias", segue.role = #segue.role<parameter>},
    %arg4: tensor<32xf32> {segue.name = "first.h.0.ln2.weight", segue.role = #segue.role<parameter>},
    %arg5: tensor<32xf32> {segue.name = "first.h.0.ln2.bias", segue.role = #segue.role<parameter>},
    %arg6: tensor<96x32xf32> {segue.name = "first.h.0.qkv.weight", segue.role = #segue.role<parameter>},
    %arg7: tensor<96xf32> {segue.name = "first.h.0.qkv.bias", segue.role = #segue.role<parameter>},
    %arg8: tensor<32x32xf32> {segue.name = "first.h.0.proj.weight", segue.role = #segue.role<parameter>},
    %arg9: tensor<32xf32> {segue.name = "first.h.0.proj.bias", segue.role = #segue.role<parameter>},
    %arg10: tensor<128x32xf32> {segue.name = "first.h.0.fc.weight", segue.role = #segue.role<parameter>},
    %arg11: tensor<128xf32> {segue.name = "first.h.0.fc.bias", segue.role = #segue.role<parameter>},
    %arg12: tensor<32x128xf32> {segue.name = "first.h.0.out.weight", segue.role = #segue.role<parameter>},
    %arg13: tensor<32xf32> {segue.name = "first.h.0.out.bias", segue.role = #segue.role<parameter>},
    %arg14: tensor<32xf32> {segue.name = "last.h.0.ln1.weight", segue.role = #segue.role<parameter>},
    %arg15: tensor<32xf32> {segue.name = "last.h.0.ln1.bias", segue.role = #segue.role<parameter>},
    %arg16: tensor<32xf32> {segue.name = "last.h.0.ln2.weight", segue.role = #segue.role<parameter>},
    %arg17: tensor<32xf32> {segue.name = "last.h.0.ln2.bias", segue.role = #segue.role<parameter>},
    %arg18: tensor<96x32xf32> {segue.name = "last.h.0.qkv.weight", segue.role = #segue.role<parameter>},
    %arg19: tensor<96xf32> {segue.name = "last.h.0.qkv.bias", segue.role = #segue.role<parameter>},
    %arg20: tensor<32x32xf32> {segue.name = "last.h.0.proj.weight", segue.role = #segue.role<parameter>},
    %arg21: tensor<32xf32> {segue.name = "last.h.0.proj.bias", segue.role = #segue.role<parameter>},
    %arg22: tensor<128x32xf32> {segue.name = "last.h.0.fc.weight", segue.role = #segue.role<parameter>},
    %arg23: tensor<128xf32> {segue.name = "last.h.0.fc.bias", segue.role = #segue.role<parameter>},
    %arg24: tensor<32x128xf32> {segue.name = "last.h.0.out.weight", segue.role = #segue.role<parameter>},
    %arg25: tensor<32xf32> {segue.name = "last.h.0.out.bias", segue.role = #segue.role<parameter>},
    %arg26: tensor<32xf32> {segue.name = "last.lnf.weight", segue.role = #segue.role<parameter>},
    %arg27: tensor<32xf32> {segue.name = "last.lnf.bias", segue.role = #segue.role<parameter>},
    %arg28: tensor<64x32xf32> {segue.name = "last.head.weight", segue.role = #segue.role<parameter>},
    %arg29: tensor<2x16xi64> {segue.name = "tokens", segue.role = #segue.role<input>},
    %arg30: tensor<2x16xi64> {segue.name = "targets", segue.role = #segue.role<input>}
  ) -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
    %0 = segue.gather %arg0[%arg29] : tensor<64x32xf32>, tensor<2x16xi64> -> tensor<2x16x32xf32>
    %1 = segue.broadcast %arg1 dims [1, 2] : tensor<16x32xf32> -> tensor<2x16x32xf32>
    %2 = segue.add %0, %1 : tensor<2x16x32xf32>
    %3:3 = segue.layer_norm %2 gamma %arg2 : tensor<32xf32> beta %arg3 : tensor<32xf32> eps 1.0e-5 {segue.block = "first.h.0"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %4 = segue.dot_general %3#0, %arg6 batch [] x [] contract [2] x [1] {segue.block = "first.h.0"} : tensor<2x16x32xf32>, tensor<96x32xf32> -> tensor<2x16x96xf32>
    %5 = segue.broadcast %arg7 dims [2] {segue.block = "first.h.0"} : tensor<96xf32> -> tensor<2x16x96xf32>
    %6 = segue.add %4, %5 {segue.block = "first.h.0"} : tensor<2x16x96xf32>
    %7 = segue.reshape %6 {segue.block = "first.h.0"} : tensor<2x16x96xf32> -> tensor<2x16x3x2x16xf32>
    %8 = segue.transpose %7 [2, 0, 3, 1, 4] {segue.block = "first.h.0"} : tensor<2x16x3x2x16xf32> -> tensor<3x2x2x16x16xf32>
    %9 = segue.slice %8 [0, 0, 0, 0, 0] to [1, 2, 2, 16, 16] by [1, 1, 1, 1, 1] {segue.block = "first.h.0"} : tensor<3x2x2x16x16xf32> -> tensor<1x2x2x16x16xf32>
    %10 = segue.reshape %9 {segue.block = "first.h.0"} : tensor<1x2x2x16x16xf32> -> tensor<2x2x16x16xf32>
    %11 = segue.slice %8 [1, 0, 0, 0, 0] to [2, 2, 2, 16, 16] by [1, 1, 1, 1, 1] {segue.block = "first.h.0"} : tensor<3x2x2x16x16xf32> -> tensor<1x2x2x16x16xf32>
    %12 = segue.reshape %11 {segue.block = "first.h.0"} : tensor<1x2x2x16x16xf32> -> tensor<2x2x16x16xf32>
    %13 = segue.slice %8 [2, 0, 0, 0, 0] to [3, 2, 2, 16, 16] by [1, 1, 1, 1, 1] {segue.block = "first.h.0"} : tensor<3x2x2x16x16xf32> -> tensor<1x2x2x16x16xf32>
    %14 = segue.reshape %13 {segue.block = "first.h.0"} : tensor<1x2x2x16x16xf32> -> tensor<2x2x16x16xf32>
    %15:2 = segue.attention %10, %12, %14 causal scale 0.25 {segue.block = "first.h.0"} : tensor<2x2x16x16xf32>, tensor<2x2x16x16xf32> -> tensor<2x2x16xf32>
    %16 = segue.transpose %15#0 [0, 2, 1, 3] {segue.block = "first.h.0"} : tensor<2x2x16x16xf32> -> tensor<2x16x2x16xf32>
    %17 = segue.reshape %16 {segue.block = "first.h.0"} : tensor<2x16x2x16xf32> -> tensor<2x16x32xf32>
    %18 = segue.dot_general %17, %arg8 batch [] x [] contract [2] x [1] {segue.block = "first.h.0"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %19 = segue.broadcast %arg9 dims [2] {segue.block = "first.h.0"} : tensor<32xf32> -> tensor<2x16x32xf32>
    %20 = segue.add %18, %19 {segue.block = "first.h.0"} : tensor<2x16x32xf32>
    %21 = segue.add %2, %20 {segue.block = "first.h.0"} : tensor<2x16x32xf32>
    %22:3 = segue.layer_norm %21 gamma %arg4 : tensor<32xf32> beta %arg5 : tensor<32xf32> eps 1.0e-5 {segue.block = "first.h.0"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %23 = segue.dot_general %22#0, %arg10 batch [] x [] contract [2] x [1] {segue.block = "first.h.0"} : tensor<2x16x32xf32>, tensor<128x32xf32> -> tensor<2x16x128xf32>
    %24 = segue.broadcast %arg11 dims [2] {segue.block = "first.h.0"} : tensor<128xf32> -> tensor<2x16x128xf32>
    %25 = segue.add %23, %24 {segue.block = "first.h.0"} : tensor<2x16x128xf32>
    %26 = segue.gelu tanh %25 {segue.block = "first.h.0"} : tensor<2x16x128xf32>
    %27 = segue.dot_general %26, %arg12 batch [] x [] contract [2] x [1] {segue.block = "first.h.0"} : tensor<2x16x128xf32>, tensor<32x128xf32> -> tensor<2x16x32xf32>
    %28 = segue.broadcast %arg13 dims [2] {segue.block = "first.h.0"} : tensor<32xf32> -> tensor<2x16x32xf32>
    %29 = segue.add %27, %28 {segue.block = "first.h.0"} : tensor<2x16x32xf32>
    %30 = segue.add %21, %29 {segue.block = "first.h.0"} : tensor<2x16x32xf32>
    %31:3 = segue.layer_norm %30 gamma %arg14 : tensor<32xf32> beta %arg15 : tensor<32xf32> eps 1.0e-5 {segue.block = "last.h.0"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %32 = segue.dot_general %31#0, %arg18 batch [] x [] contract [2] x [1] {segue.block = "last.h.0"} : tensor<2x16x32xf32>, tensor<96x32xf32> -> tensor<2x16x96xf32>
    %33 = segue.broadcast %arg19 dims [2] {segue.block = "last.h.0"} : tensor<96xf32> -> tensor<2x16x96xf32>
    %34 = segue.add %32, %33 {segue.block = "last.h.0"} : tensor<2x16x96xf32>
    %35 = segue.reshape %34 {segue.block = "last.h.0"} : tensor<2x16x96xf32> -> tensor<2x16x3x2x16xf32>
    %36 = segue.transpose %35 [2, 0, 3, 1, 4] {segue.block = "last.h.0"} : tensor<2x16x3x2x16xf32> -> tensor<3x2x2x16x16xf32>
    %37 = segue.slice %36 [0, 0, 0, 0, 0] to [1, 2, 2, 16, 16] by [1, 1, 1, 1, 1] {segue.block = "last.h.0"} : tensor<3x2x2x16x16xf32> -> tensor<1x2x2x16x16xf32>
    %38 = segue.reshape %37 {segue.block = "last.h.0"} : tensor<1x2x2x16x16xf32> -> tensor<2x2x16x16xf32>
    %39 = segue.slice %36 [1, 0, 0, 0, 0] to [2, 2, 2, 16, 16] by [1, 1, 1, 1, 1] {segue.block = "last.h.0"} : tensor<3x2x2x16x16xf32> -> tensor<1x2x2x16x16xf32>
    %40 = segue.reshape %39 {segue.block = "last.h.0"} : tensor<1x2x2x16x16xf32> -> tensor<2x2x16x16xf32>
    %41 = segue.slice %36 [2, 0, 0, 0, 0] to [3, 2, 2, 16, 16] by [1, 1, 1, 1, 1] {segue.block = "last.h.0"} : tensor<3x2x2x16x16xf32> -> tensor<1x2x2x16x16xf32>
    %42 = segue.reshape %41 {segue.block = "last.h.0"} : tensor<1x2x2x16x16xf32> -> tensor<2x2x16x16xf32>
    %43:2 = segue.attention %38, %40, %42 causal scale 0.25 {segue.block = "last.h.0"} : tensor<2x2x16x16xf32>, tensor<2x2x16x16xf32> -> tensor<2x2x16xf32>
    %44 = segue.transpose %43#0 [0, 2, 1, 3] {segue.block = "last.h.0"} : tensor<2x2x16x16xf32> -> tensor<2x16x2x16xf32>
    %45 = segue.reshape %44 {segue.block = "last.h.0"} : tensor<2x16x2x16xf32> -> tensor<2x16x32xf32>
    %46 = segue.dot_general %45, %arg20 batch [] x [] contract [2] x [1] {segue.block = "last.h.0"} : tensor<2x16x32xf32>, tensor<32x32xf32> -> tensor<2x16x32xf32>
    %47 = segue.broadcast %arg21 dims [2] {segue.block = "last.h.0"} : tensor<32xf32> -> tensor<2x16x32xf32>
    %48 = segue.add %46, %47 {segue.block = "last.h.0"} : tensor<2x16x32xf32>
    %49 = segue.add %30, %48 {segue.block = "last.h.0"} : tensor<2x16x32xf32>
    %50:3 = segue.layer_norm %49 gamma %arg16 : tensor<32xf32> beta %arg17 : tensor<32xf32> eps 1.0e-5 {segue.block = "last.h.0"} : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %51 = segue.dot_general %50#0, %arg22 batch [] x [] contract [2] x [1] {segue.block = "last.h.0"} : tensor<2x16x32xf32>, tensor<128x32xf32> -> tensor<2x16x128xf32>
    %52 = segue.broadcast %arg23 dims [2] {segue.block = "last.h.0"} : tensor<128xf32> -> tensor<2x16x128xf32>
    %53 = segue.add %51, %52 {segue.block = "last.h.0"} : tensor<2x16x128xf32>
    %54 = segue.gelu tanh %53 {segue.block = "last.h.0"} : tensor<2x16x128xf32>
    %55 = segue.dot_general %54, %arg24 batch [] x [] contract [2] x [1] {segue.block = "last.h.0"} : tensor<2x16x128xf32>, tensor<32x128xf32> -> tensor<2x16x32xf32>
    %56 = segue.broadcast %arg25 dims [2] {segue.block = "last.h.0"} : tensor<32xf32> -> tensor<2x16x32xf32>
    %57 = segue.add %55, %56 {segue.block = "last.h.0"} : tensor<2x16x32xf32>
    %58 = segue.add %49, %57 {segue.block = "last.h.0"} : tensor<2x16x32xf32>
    %59:3 = segue.layer_norm %58 gamma %arg26 : tensor<32xf32> beta %arg27 : tensor<32xf32> eps 1.0e-5 : tensor<2x16x32xf32> -> tensor<2x16xf32>
    %60 = segue.dot_general %59#0, %arg28 batch [] x [] contract [2] x [1] : tensor<2x16x32xf32>, tensor<64x32xf32> -> tensor<2x16x64xf32>
    %61 = segue.reshape %60 : tensor<2x16x64xf32> -> tensor<32x64xf32>
    %62 = segue.reshape %arg30 : tensor<2x16xi64> -> tensor<32xi64>
    %63 = segue.constant dense<-100> : tensor<i64>
    %64 = segue.broadcast %63 dims [] : tensor<i64> -> tensor<32xi64>
    %65 = segue.compare ne %62, %64 : tensor<32xi64> -> tensor<32xi1>
    %66 = segue.cast %65 : tensor<32xi1> -> tensor<32xf32>
    %67:2 = segue.cross_entropy %61, %62 ignore_index -100 : tensor<32x64xf32>, tensor<32xi64> -> tensor<32xf32>
    %68 = segue.reduce sum %67#0 dims [0] : tensor<32xf32> -> tensor<f32>
    %69 = segue.reduce sum %66 dims [0] : tensor<32xf32> -> tensor<f32>
    %70 = segue.div %68, %69 : tensor<f32>
    return %70 : tensor<f32>
  }
}
