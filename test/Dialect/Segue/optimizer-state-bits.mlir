// RUN: segue-opt %s --segue-optimizer=optimizer=adamw:state-bits=8 | FileCheck %s
// RUN: segue-opt %s --segue-optimizer=optimizer=rmsprop:centered,momentum=0.9,state-bits=8 | FileCheck %s --check-prefix=CENTERED
// RUN: segue-opt %s --segue-optimizer=optimizer=lion:ema=0.9,state-bits=8 | FileCheck %s --check-prefix=LION

// Moments are codes and a scale for every 256 of them. A parameter whose elements 256 does not divide has blocks of 128, and one of
// less than 4,096 elements keeps f32. All replace what came in.
// CHECK-LABEL: func.func @optimizer
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<32x384xbf16> {segue.name = "w",
// CHECK-SAME: %[[M:[a-z0-9]+]]: tensor<48x256xi8> {segue.name = "m.w", segue.of = "w", segue.role = #segue.role<state>}
// CHECK-SAME: %[[MS:[a-z0-9]+]]: tensor<48xf32> {segue.name = "m_scale.w", segue.of = "w", segue.role = #segue.role<state>}
// CHECK-SAME: %[[V:[a-z0-9]+]]: tensor<48x256xi8> {segue.name = "v.w",
// CHECK-SAME: %[[VS:[a-z0-9]+]]: tensor<48xf32> {segue.name = "v_scale.w",
// CHECK-SAME: tensor<33x128xi8> {segue.name = "m.t",
// CHECK-SAME: tensor<33xf32> {segue.name = "m_scale.t",
// CHECK-SAME: tensor<384xf32> {segue.name = "m.b",
// CHECK-SAME: ) -> (tensor<32x384xbf16> {segue.alias = 0 : i64, segue.name = "w",
// CHECK-SAME: tensor<48x256xi8> {segue.alias = 2 : i64, segue.name = "m.w",
// CHECK-SAME: tensor<48xf32> {segue.alias = 3 : i64, segue.name = "m_scale.w",

// An element of m is its scale times c |c| / 127^2, and of sqrt(v) its scale times (c + 129)^2 / 256^2.
// CHECK: %[[C:.*]] = segue.cast %[[M]] {{.*}} -> tensor<48x256xf32>
// CHECK: %[[UNIT:.*]] = segue.mul %[[MS]], %
// CHECK: %[[SCALE:.*]] = segue.broadcast %[[UNIT]] dims [0]
// CHECK: %[[SIZE:.*]] = segue.abs %[[C]]
// CHECK: %[[SQUARE:.*]] = segue.mul %[[C]], %[[SIZE]]
// CHECK: %[[ELEMENT:.*]] = segue.mul %[[SQUARE]], %[[SCALE]]
// CHECK: segue.reshape %[[ELEMENT]] {{.*}} -> tensor<32x384xf32>
// CHECK: segue.cast %[[V]]
// CHECK: segue.constant {{.*}}dense<1.290000e+02>

// Roots of the second moment are what is coded, by the largest of each block.
// CHECK: %[[ABS:.*]] = segue.abs %{{.*}} : tensor<48x256xf32>
// CHECK: segue.reduce max %[[ABS]] dims [1] {{.*}} -> tensor<48xf32>
// CHECK: segue.iota dim 1
// CHECK: segue.cast {{.*}} : tensor<48x256xf32> -> tensor<48x256xi8>
// CHECK: %[[ROOT:.*]] = segue.sqrt
// CHECK: %[[ROOTS:.*]] = segue.reshape %[[ROOT]] {{.*}} -> tensor<48x256xf32>
// CHECK: segue.reduce max %[[ROOTS]] dims [1]

// The difference of a mean of squares and the square of a mean is taken of f32.
// CENTERED-LABEL: func.func @optimizer
// CENTERED-SAME: tensor<32x384xf32> {segue.name = "v.w",
// CENTERED-SAME: tensor<32x384xf32> {segue.name = "m.w",
// CENTERED-SAME: tensor<48x256xi8> {segue.name = "u.w",
// CENTERED-SAME: tensor<48xf32> {segue.name = "u_scale.w",

// An average of the parameter stays in f32.
// LION-LABEL: func.func @optimizer
// LION-SAME: tensor<48x256xi8> {segue.name = "m.w",
// LION-SAME: tensor<32x384xf32> {segue.name = "ema.w",
func.func @forward(%w: tensor<32x384xbf16> {segue.name = "w", segue.role = #segue.role<parameter>},
                   %t: tensor<3x11x128xf32> {segue.name = "t", segue.role = #segue.role<parameter>},
                   %b: tensor<384xf32> {segue.name = "b", segue.role = #segue.role<parameter>}) { return }
func.func @backward() -> (tensor<32x384xbf16> {segue.name = "grad.w", segue.of = "w", segue.role = #segue.role<gradient>},
                          tensor<3x11x128xf32> {segue.name = "grad.t", segue.of = "t", segue.role = #segue.role<gradient>},
                          tensor<384xf32> {segue.name = "grad.b", segue.of = "b", segue.role = #segue.role<gradient>}) {
  %0 = segue.constant dense<0.0> : tensor<32x384xbf16>
  %1 = segue.constant dense<0.0> : tensor<3x11x128xf32>
  %2 = segue.constant dense<0.0> : tensor<384xf32>
  return %0, %1, %2 : tensor<32x384xbf16>, tensor<3x11x128xf32>, tensor<384xf32>
}
