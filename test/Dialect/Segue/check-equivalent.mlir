// RUN: segue-opt %s --segue-check-equivalent="a=square b=product" -o /dev/null
// RUN: not segue-opt %s --segue-check-equivalent="a=square b=double" -o /dev/null 2>&1 | FileCheck %s --check-prefix=DIFFER
// RUN: not segue-opt %s --segue-check-equivalent="a=square b=other_type" -o /dev/null 2>&1 | FileCheck %s --check-prefix=TYPE
// RUN: not segue-opt %s --segue-check-equivalent="a=square b=absent" -o /dev/null 2>&1 | FileCheck %s --check-prefix=ABSENT
// RUN: segue-opt %s --segue-interpret="entry=square fill-seed=1 print" -o /dev/null | FileCheck %s --check-prefix=PRINT
// RUN: not segue-opt %s --segue-check-equivalent="a=square b=double trials=0" -o /dev/null 2>&1 | FileCheck %s --check-prefix=TRIALS
// TRIALS: was given trials = 0; it must be from 1 to 1000000
// RUN: not segue-opt %s --segue-check-equivalent="a=square b=double atol=-1" -o /dev/null 2>&1 | FileCheck %s --check-prefix=ATOL
// ATOL: was given atol = -1.000000e+00; it must be 0 or more, and finite
// RUN: not segue-opt %s --segue-check-equivalent="a=square b=double rtol=inf" -o /dev/null 2>&1 | FileCheck %s --check-prefix=RTOL
// RTOL: was given rtol = INF; it must be 0 or more, and finite

// PRINT: square result 0: f32[2] {{0\.[0-9]+ 0\.[0-9]+$}}
func.func @square(%x: tensor<2xf32>) -> tensor<2xf32> {
  %two = segue.constant dense<2.0> : tensor<2xf32>
  %0 = segue.pow %x, %two : tensor<2xf32>
  return %0 : tensor<2xf32>
}

func.func @product(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = segue.mul %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// DIFFER: error: result 0 of `square` and of `double` differ with seed 0 at [0]: {{.*}} and {{.*}}, difference
func.func @double(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = segue.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// TYPE: has type {{.*}}tensor<3xf32>{{.*}}, but `square` has
func.func @other_type(%x: tensor<3xf32>) -> tensor<3xf32> {
  return %x : tensor<3xf32>
}

// ABSENT: has no function `absent` to compare
