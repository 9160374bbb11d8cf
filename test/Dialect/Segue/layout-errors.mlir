// RUN: segue-opt %s --verify-diagnostics --split-input-file -o /dev/null

// C1: one stride per dimension, none negative.
// expected-error @below {{layout has 1 strides, but the tensor has 2 dimensions}}
func.func private @strides(tensor<4x8xf32, #segue.layout<strides = [1]>>)

// -----

// expected-error @below {{layout stride -1 is negative}}
func.func private @negative(tensor<4x8xf32, #segue.layout<strides = [1, -1]>>)

// -----

// C2: no more tile extents than dimensions, all positive.
// expected-error @below {{layout has 2 tile extents, but the tensor has 1 dimensions}}
func.func private @tile(tensor<4xf32, #segue.layout<tile = [32, 32]>>)

// -----

// expected-error @below {{layout tile extent 0 is not positive}}
func.func private @empty_tile(tensor<4xf32, #segue.layout<tile = [0]>>)

// -----

// C3: a row storage needs a dimension and floats.
// expected-error @below {{layout stores rows as int8_row, but the tensor is a scalar and has no rows}}
func.func private @scalar(tensor<f32, #segue.layout<storage = int8_row>>)

// -----

// expected-error @below {{layout stores rows as fp8_e5m2_row, which needs a float, not 'i32'}}
func.func private @integer(tensor<4xi32, #segue.layout<storage = fp8_e5m2_row>>)

// -----

// expected-error @below {{unknown key `stride` in layout; known are `space`, `strides`, `tile`, `storage`, `zero_points` and `alignment`}}
func.func private @key(tensor<4xf32, #segue.layout<stride = [1]>>)

// -----

// expected-error @below {{unknown space `dram`; known are `host`, `host_pinned`, `device_dram` and `device_l1`}}
func.func private @space(tensor<4xf32, #segue.layout<space = dram>>)

// -----

// expected-error @below {{unknown storage `int8`; known are `element`, `int8_row`, `fp8_e4m3_row`, `fp8_e5m2_row`, `int4_group32` and `int4_group64`}}
func.func private @storage(tensor<4xf32, #segue.layout<storage = int8>>)

// -----

// expected-error @below {{layout tile extent 4294967296 is 2^32 or more}}
func.func private @huge_tile(tensor<4xf32, #segue.layout<tile = [4294967296]>>)

// -----

// expected-error @below {{layout has zero points, but no row storage that they belong to}}
func.func private @zero_points(tensor<4xf32, #segue.layout<zero_points = true>>)

// -----

// expected-error @below {{`zero_points` is `yes`, but must be `true` or `false`}}
func.func private @zero_points_word(tensor<4xf32, #segue.layout<storage = int8_row, zero_points = yes>>)

// -----

// C4: alignments.
// expected-error @below {{layout alignment 48 is not a power of two}}
func.func private @alignment(tensor<4xf32, #segue.layout<alignment = 48>>)

// -----

// expected-error @below {{layout alignment 2 is less than the 4 bytes of an element}}
func.func private @element_alignment(tensor<4xf32, #segue.layout<alignment = 2>>)

// -----

// expected-error @below {{layout alignment 2 is too small for the f32 scales of rows; at least 4}}
func.func private @scale_alignment(tensor<4xbf16, #segue.layout<storage = int8_row, alignment = 2>>)

// -----

// C5: sizes are numbers.
// expected-error @below {{layout spans a size that is not a number of 62 bits}}
func.func private @size(tensor<4x8xf32, #segue.layout<strides = [2305843009213693952, 1]>>)

// -----

// expected-error @below {{layout spans a size that is not a number of 62 bits}}
func.func private @tiles(tensor<4x8xf32, #segue.layout<tile = [4294967295, 4294967295]>>)

// -----

// C6: rows in groups are dense and whole groups, without tiles.
// expected-error @below {{layout stores groups of rows, which have no tile}}
func.func private @group_tile(tensor<4x64xbf16, #segue.layout<tile = [2, 32], storage = int4_group64>>)

// -----

// expected-error @below {{layout stores groups of rows, which are dense, but stride 1 is 4}}
func.func private @group_strides(tensor<4x64xbf16, #segue.layout<strides = [64, 4], storage = int4_group32>>)

// -----

// expected-error @below {{layout stores rows of whole groups of 64, but stride 0 is 96 for rows of 60}}
func.func private @group_rows(tensor<4x60xbf16, #segue.layout<strides = [96, 1], storage = int4_group64>>)

// -----

// C3: zero points need a row storage.
// expected-error @below {{layout has zero points, but no row storage that they belong to}}
func.func private @group_zero_points(tensor<4x64xbf16, #segue.layout<storage = int4_group64, zero_points = true>>)
