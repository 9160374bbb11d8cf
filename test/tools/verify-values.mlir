// Every kernel is called, in place too, before a file is written.
// RUN: segue-compile %s --verify-values -o %t.segue 2>&1 | FileCheck %s --check-prefix=AGREES
// RUN: test -s %t.segue
// AGREES: {{[1-9][0-9]*}} kernels agree with the reference interpreter in {{[1-9][0-9]*}} launches, {{[1-9][0-9]*}} calls

// Values come by name; bad ones are named, and nothing is written.
// RUN: %python -c "import struct, sys; h = b'{\"x\": {\"dtype\": \"F32\", \"shape\": [8, 20], \"data_offsets\": [0, 640]}}'; open(sys.argv[1], 'wb').write(struct.pack('<Q', len(h)) + h + bytes(640))" %t.safetensors
// RUN: segue-compile %s --verify-inputs=%t.safetensors -o %t.zero.segue 2>&1 | FileCheck %s --check-prefix=AGREES
// RUN: %python -c "import struct, sys; h = b'{\"x\": {\"dtype\": \"F32\", \"shape\": [8, 10], \"data_offsets\": [0, 320]}}'; open(sys.argv[1], 'wb').write(struct.pack('<Q', len(h)) + h + bytes(320))" %t.bad.safetensors
// RUN: not segue-compile %s --verify-inputs=%t.bad.safetensors -o %t.bad.segue 2>&1 | FileCheck %s --check-prefix=SHAPE
// RUN: not test -e %t.bad.segue
// SHAPE: argument "x" is 'tensor<8x20xf32>', given is 'tensor<8x10xf32>'
// RUN: not segue-compile %s --verify-inputs=%t.none -o %t.bad.segue 2>&1 | FileCheck %s --check-prefix=NONE
// NONE: segue-compile: cannot open input file

func.func @forward(%x: tensor<8x20xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %w: tensor<20xf32> {segue.name = "w", segue.role = #segue.role<parameter>})
    -> (tensor<f32> {segue.name = "loss", segue.role = #segue.role<output>}) {
  %n, %r = segue.rms_norm %x gamma %w : tensor<20xf32> eps 1.0e-5 : tensor<8x20xf32> -> tensor<8xf32>
  %g = segue.gelu erf %n : tensor<8x20xf32>
  %m = segue.mul %g, %g : tensor<8x20xf32>
  %l = segue.reduce mean %m dims [0, 1] : tensor<8x20xf32> -> tensor<f32>
  return %l : tensor<f32>
}
