// RUN: segue-opt %s --verify-roundtrip | FileCheck %s

// Keys with their default are not printed, `space` always is; any order parses.
// CHECK-LABEL: func.func private @layouts
// CHECK-SAME: tensor<4x8xf32, #segue.layout<space = device_dram>>
// CHECK-SAME: tensor<4x8xf32, #segue.layout<space = host_pinned, strides = [1, 4]>>
// CHECK-SAME: tensor<4x8xbf16, #segue.layout<space = device_l1, tile = [32, 32], storage = fp8_e4m3_row>>
// CHECK-SAME: tensor<f32, #segue.layout<space = host>>
// CHECK-SAME: tensor<4x8xf32, #segue.layout<space = device_dram, storage = int8_row, zero_points = true, alignment = 512>>
// CHECK-SAME: tensor<4x60xbf16, #segue.layout<space = device_dram, storage = int4_group64>>
// CHECK-SAME: tensor<4x60xbf16, #segue.layout<space = device_dram, strides = [96, 1], storage = int4_group32>>
func.func private @layouts(tensor<4x8xf32, #segue.layout<space = device_dram>>,
                           tensor<4x8xf32, #segue.layout<strides = [1, 4], space = host_pinned>>,
                           tensor<4x8xbf16, #segue.layout<storage = fp8_e4m3_row, tile = [32, 32], space = device_l1>>,
                           tensor<f32, #segue.layout<space = host, strides = []>>,
                           tensor<4x8xf32, #segue.layout<alignment = 512, zero_points = true, storage = int8_row>>,
                           tensor<4x60xbf16, #segue.layout<storage = int4_group64>>,
                           tensor<4x60xbf16, #segue.layout<storage = int4_group32, strides = [96, 1]>>)
