// The signature is what the file of the module says; a hint for another one is
// only counted.
// RUN: segue-compile %s --inference-only --target=x86-64-v3 -o %t.segue
// RUN: segue-run inspect --json %t.segue > %t.inspect
// RUN: %python %S/Inputs/fill_hints.py %S/Inputs/hints.json %t.inspect > %t.json
// RUN: segue-compile %s --inference-only --emit=segue --stitch-hints %t.json 2> %t.err | FileCheck %s
// RUN: FileCheck %s --check-prefix=NOTE --input-file %t.err

// Of two hints for one output the one that saves more counts; an input takes
// what it is given; what the source says stays, and the host is no place to
// compute.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: %arg0: tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram, tile = [4, 4], alignment = 128>, segue.name = "x"
// CHECK-SAME: %arg1: tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 4]>, segue.name = "fixed"
// CHECK-SAME: %arg2: tensor<4x8xf32> {segue.name = "host"
// CHECK-SAME: -> (tensor<4x8xf32> {segue.layout = #segue.layout<space = device_dram, strides = [1, 4]>, segue.name = "y"

// NOTE-DAG: remark: the stitch hint for argument "fixed" of @forward is not followed: the source gives it #segue.layout<space = device_dram, strides = [1, 4]>
// NOTE-DAG: remark: the stitch hint for argument "host" of @forward is not followed: programs compute in the memory of the device, not in #segue.layout<space = host, strides = [8, 1]>
// NOTE-DAG: remark: 1 of 6 stitch hints in {{.*}}.json are for programs of other modules, and are left alone
func.func @forward(%x: tensor<4x8xf32> {segue.name = "x", segue.role = #segue.role<input>},
                   %f: tensor<4x8xf32> {segue.name = "fixed", segue.role = #segue.role<input>, segue.layout = #segue.layout<strides = [1, 4]>},
                   %h: tensor<4x8xf32> {segue.name = "host", segue.role = #segue.role<input>})
    -> (tensor<4x8xf32> {segue.name = "y", segue.role = #segue.role<output>}) {
  %0 = segue.add %x, %f : tensor<4x8xf32>
  %y = segue.mul %0, %h : tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// Malformed files are errors that name the key.
// RUN: not segue-compile %s --inference-only --stitch-hints %t.missing.json -o %t.no 2>&1 | FileCheck %s --check-prefix=MISSING
// MISSING: error: cannot read stitch hints {{.*}}.missing.json: No such file or directory

// RUN: echo '{"version": 1, "edges": [' > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=JSON
// JSON: error: stitch hints {{.*}}.bad are not JSON:

// RUN: echo '[]' > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=OBJECT
// OBJECT: error: stitch hints {{.*}}.bad are not a JSON object

// RUN: echo '{"version": 2, "edges": []}' > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=VERSION
// VERSION: error: stitch hints {{.*}}.bad have version 2, but this compiler reads version 1; write them with the runtime of this release

// RUN: echo '{"version": 1, "edge": []}' > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=EDGES
// EDGES: error: stitch hints {{.*}}.bad: "edges" must be a list

// RUN: echo '{"version": 1, "edges": [], "step": 1}' > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=KEY
// KEY: error: stitch hints {{.*}}.bad: unknown key "step"; the nearest is "edges"

// RUN: sed 's/"change": "consumer"/"change": "both"/' %t.json > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=CHANGE
// CHANGE: error: stitch hints {{.*}}.bad: "edges[2].change" must be producer or consumer

// RUN: sed 's/aaaaaaaaaaaaaaaa/abc/' %t.json > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=SIGNATURE
// SIGNATURE: error: stitch hints {{.*}}.bad: "edges[5].consumer.signature" must be 16 hexadecimal digits

// RUN: sed 's/"bytes_per_step": 512/"bytes_per_step": -1/' %t.json > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=BYTES
// BYTES: error: stitch hints {{.*}}.bad: "edges[0].bytes_per_step" must be an integer of at least 0

// RUN: sed 's/"strides": .16, 1./"strides": [16, "1"]/' %t.json > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=STRIDES
// STRIDES: error: stitch hints {{.*}}.bad: "edges[0].to.strides" must be a list of integers of at least 0

// RUN: sed 's/"space": "host"/"space": "hots"/' %t.json > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=SPACE
// SPACE: error: stitch hints {{.*}}.bad: "edges[4].from.space" must be host, host_pinned, device_dram or device_l1

// RUN: sed 's/"alignment": 128/"alignment": 48/' %t.json > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=ALIGNMENT
// ALIGNMENT: error: stitch hints {{.*}}.bad: "edges[2].from": layout alignment 48 is not a power of two

// RUN: sed 's/"tile": .4, 4./"tile": [4, 4, 4]/' %t.json > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=RANK
// RANK: error: stitch hints {{.*}}.bad: "edges[2]" for argument "x" of @forward of type 'tensor<4x8xf32>': layout has 3 tile extents, but the tensor has 2 dimensions

// RUN: sed 's/"output": "y"/"output": "z"/' %t.json > %t.bad && not segue-compile %s --inference-only --stitch-hints %t.bad -o %t.no 2>&1 | FileCheck %s --check-prefix=VALUE
// VALUE: error: stitch hints {{.*}}.bad: "edges[0]" names output "z" of @forward, which has none of that name
