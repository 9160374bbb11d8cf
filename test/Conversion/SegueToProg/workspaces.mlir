// RUN: segue-opt %s --segue-to-prog --split-input-file | FileCheck %s

// Memory that a command needs while it runs is an allocation of the program, which plans count: here 4 rows of 6 places.
// CHECK-LABEL: prog.program @sorted
// CHECK: ^bb0(%[[X:.*]]: memref<4x6xf32>, %[[Y:.*]]: memref<4x2xi64>):
// CHECK-NEXT: %[[BYTES:.*]] = prog.alloc of i64 : memref<192xi8>
// CHECK: %[[SPACE:.*]] = prog.view %[[BYTES]] offset 0 : memref<192xi8> to memref<4x6xi64>
// CHECK-NEXT: prog.library_call "argsort"(%[[X]]) into %[[Y]], %[[SPACE]] numbers [1, 1] : memref<4x6xf32> into memref<4x2xi64>, memref<4x6xi64>
func.func @sorted(%x: tensor<4x6xf32> {segue.name = "x", segue.role = #segue.role<input>})
    -> (tensor<4x2xi64> {segue.name = "y", segue.role = #segue.role<output>}) {
  %y = segue.argsort %x descending from 1 : tensor<4x6xf32> -> tensor<4x2xi64>
  return %y : tensor<4x2xi64>
}

// -----

// It does not grow with the number of long rows: 16 of them are sorted at a time. Of short rows it has those of a million elements.
// CHECK-LABEL: prog.program @long
// CHECK: prog.library_call "argsort"{{.*}} into memref<40x1xi64>, memref<16x1000000xi64>
// CHECK: prog.library_call "argsort"{{.*}} into memref<4096x1024xi64>, memref<1024x1024xi64>
func.func @long(%x: tensor<40x1000000xbf16> {segue.name = "x", segue.role = #segue.role<input>},
                %s: tensor<4096x1024xi8> {segue.name = "s", segue.role = #segue.role<input>})
    -> (tensor<40x1xi64> {segue.name = "y", segue.role = #segue.role<output>},
        tensor<4096x1024xi64> {segue.name = "z", segue.role = #segue.role<output>}) {
  %y = segue.argsort %x : tensor<40x1000000xbf16> -> tensor<40x1xi64>
  %z = segue.argsort %s : tensor<4096x1024xi8> -> tensor<4096x1024xi64>
  return %y, %z : tensor<40x1xi64>, tensor<4096x1024xi64>
}
