// RUN: segue-opt %s --split-input-file --verify-diagnostics

// Attributes of the dialect belong on the module.
// expected-error @below {{`prog.version` belongs on the module}}
func.func private @f() attributes {prog.version = array<i32: 0, 1>}

// -----

// A version is two numbers.
// expected-error @below {{`prog.version` is "1", but must be array<i32: major, minor>}}
module attributes {prog.version = "1"} {}

// -----

// Options are strings.
// expected-error @below {{`prog.options` must be a dictionary of strings}}
module attributes {prog.options = {a = 1}} {}

// -----

// A producer is a string.
// expected-error @below {{`prog.producer` is 1 : i64, but must be a string}}
module attributes {prog.producer = 1} {}

// -----

// Unknown attributes are refused, lest they be lost in the file.
// expected-error @below {{`prog.color` is no attribute of the prog dialect; known are `prog.version`, `prog.producer` and `prog.options`}}
module attributes {prog.color = "red"} {}

// -----

// Values have names.
// expected-error @below {{a value of a signature has an empty name}}
prog.program @p inputs [#prog.value<"" input tensor<4xf32>>] outputs [] {
}

// -----

// Values can be stored.
// expected-error @below {{value "x" has type 'tensor<?xf32>', which cannot be stored: a static shape of f64, f32, bf16, f16, i64, i32, i8 or i1 with a `#segue.layout` or none is needed}}
prog.program @p inputs [#prog.value<"x" input tensor<?xf32>>] outputs [] {
}

// -----

// Arenas are aligned to powers of two.
// expected-error @below {{arena alignment 48 is not a power of two}}
prog.program @p inputs [] outputs [] arenas [#prog.arena<device_dram bytes = 0 lower_bound = 0 alignment = 48>] {
}

// -----

// An arena is never below its bound.
// expected-error @below {{arena has 64 bytes, less than its lower bound 65}}
prog.program @p inputs [] outputs [] arenas [#prog.arena<device_dram bytes = 64 lower_bound = 65 alignment = 64>] {
}

// -----

// prog.program C1: inputs.
// expected-error @below {{'prog.program' op has two inputs called "x"}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>, #prog.value<"x" input tensor<4xf32>>] outputs [] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C1: outputs.
// expected-error @below {{'prog.program' op has two outputs called "y"}}
prog.program @p inputs [] outputs [#prog.value<"y" output tensor<4xf32>>, #prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C2: how many.
// expected-error @below {{'prog.program' op has 2 block arguments for 1 inputs and 0 outputs}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C2: which type.
// expected-error @below {{'prog.program' op output "y" is 'tensor<2xf32>' and needs a buffer of type 'memref<2xf32>', but block argument 1 is 'memref<4xf32>'}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<2xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C3: aliases exist.
// expected-error @below {{'prog.program' op alias #prog.alias<output 0 = input 1> is outside of 1 inputs and 1 outputs}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] aliases [#prog.alias<output 0 = input 1>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C3: one alias per output.
// expected-error @below {{'prog.program' op output 0 has two aliases}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] aliases [#prog.alias<output 0 = input 0>, #prog.alias<output 0 = input 0>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C3: an alias joins equal types.
// expected-error @below {{'prog.program' op alias #prog.alias<output 0 = input 0> joins 'memref<4xf32>' and 'memref<2xf32>'}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<2xf32>>] aliases [#prog.alias<output 0 = input 0>] {
^bb0(%x: memref<4xf32>, %y: memref<2xf32>):

}

// -----

// prog.program C3: save points exist.
// expected-error @below {{'prog.program' op save point names output 1 of 1}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] save_points [#prog.save_point<value = 1, backward_input = 0, order = 0, bytes = 16>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C3: save points are saved.
// expected-error @below {{'prog.program' op save point names output "y", whose role is not saved}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] save_points [#prog.save_point<value = 0, backward_input = 0, order = 0, bytes = 16>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C9: what recomputes a value is a program.
// expected-error @below {{'prog.program' op recomputes a saved value by @r, which is not a `prog.program`}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"saved.0" saved tensor<4xf32>>] save_points [#prog.save_point<value = 0, backward_input = 0, order = 0, bytes = 16, recompute = @r>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C9: it gives that tensor.
// expected-error @below {{'prog.program' op recomputes "saved.0" by output 1 of @r, which is not 'tensor<4xf32>'}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"saved.0" saved tensor<4xf32>>] save_points [#prog.save_point<value = 0, backward_input = 0, order = 0, bytes = 16, recompute = @r, recompute_output = 1>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}
prog.program @r inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"saved.0" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// expected-error @below {{'prog.program' op recomputes "saved.0" by output 0 of @r, which is not 'tensor<4xf32>'}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"saved.0" saved tensor<4xf32>>] save_points [#prog.save_point<value = 0, backward_input = 0, order = 0, bytes = 16, recompute = @r>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}
prog.program @r inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"saved.0" output tensor<2xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<2xf32>):

}

// -----

// prog.program C9: from what this program has.
// expected-error @below {{'prog.program' op recomputes "saved.0" by @r, whose input "z" is not an input of this program of 'tensor<4xf32>'}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"saved.0" saved tensor<4xf32>>] save_points [#prog.save_point<value = 0, backward_input = 0, order = 0, bytes = 16, recompute = @r>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}
prog.program @r inputs [#prog.value<"z" input tensor<4xf32>>] outputs [#prog.value<"saved.0" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// expected-error @below {{'prog.program' op recomputes "saved.0" by @r, whose input "saved.1" is not a saved output of this program of 'tensor<4xf32>'}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"saved.0" saved tensor<4xf32>>] save_points [#prog.save_point<value = 0, backward_input = 0, order = 0, bytes = 16, recompute = @r>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}
prog.program @r inputs [#prog.value<"saved.1" saved tensor<4xf32>>] outputs [#prog.value<"saved.0" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C4.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  prog.phase forward {
  }
  // expected-error @below {{'prog.to_layout' op comes after a `prog.phase`, but then every command must lie in one}}
  prog.to_layout %x into %y : memref<4xf32>, memref<4xf32>
}

// -----

// prog.program C5.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  prog.to_layout %x into %y : memref<4xf32>, memref<4xf32>
  // expected-error @below {{'prog.alloc' op comes after the first command, but buffers come first}}
  %t = prog.alloc : memref<16xi8>
}

// -----

// prog.program C6.
// expected-error @below {{'prog.program' op has two arenas in device_dram}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] arenas [#prog.arena<device_dram bytes = 0 lower_bound = 0 alignment = 64>, #prog.arena<device_dram bytes = 64 lower_bound = 0 alignment = 64>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.phase C1.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  prog.block "b" {
    // expected-error @below {{'prog.phase' op must lie directly in a `prog.program`}}
    prog.phase forward {
    }
  }
}

// -----

// prog.phase C2: steps begin and end outside of programs.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.phase' op enters `step_end`, but steps begin and end outside of programs}}
  prog.phase step_end {
  }
}

// -----

// prog.program C10: phases come in the order of a step.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-note @below {{entered here}}
  prog.phase forward {
  }
  // expected-error @below {{'prog.phase' op enters `optimizer`, which cannot follow `forward`}}
  prog.phase optimizer {
  }
}

// -----

// prog.block C1.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.block' op has an empty name}}
  prog.block "" {
  }
}

// -----

// prog.kernel C1.
// expected-error @below {{'prog.kernel' op writes 2 of 1 arguments}}
prog.kernel @k arguments 1 outputs 2 fixed_bytes [0] bytes_per_unit [4] hash 0

// -----

// prog.kernel C2: one entry per argument.
// expected-error @below {{'prog.kernel' op has 1 entries in `bytes_per_unit` for 2 arguments}}
prog.kernel @k arguments 2 outputs 1 fixed_bytes [0, 0] bytes_per_unit [4] hash 0

// -----

// prog.kernel C2: none negative.
// expected-error @below {{'prog.kernel' op has negative entry -1 in `fixed_bytes`}}
prog.kernel @k arguments 1 outputs 1 fixed_bytes [-1] bytes_per_unit [4] hash 0

// -----

// prog.kernel C3.
prog.segment @segment0 constants alignment 64 dense<0> : tensor<4xi8>
// expected-error @below {{'prog.kernel' op has variant "k.v3" in @segment0, which is not a `prog.segment` of code}}
prog.kernel @k arguments 1 outputs 1 fixed_bytes [0] bytes_per_unit [4] hash 0 variants [#prog.variant<x86_64_v3 "k.v3" in @segment0>]

// -----

// prog.kernel C3, of another instruction set.
prog.segment @segment0 elf alignment 64 dense<0> : tensor<4xi8>
// expected-error @below {{'prog.kernel' op has variant "k" for `ptx` in @segment0, which is a `prog.segment` of `elf`}}
prog.kernel @k arguments 1 outputs 1 fixed_bytes [0] bytes_per_unit [4] hash 0 variants [#prog.variant<ptx "k" in @segment0>]

// -----

// prog.segment C1.
// expected-error @below {{'prog.segment' op holds 'tensor<4xf32>', but must hold a 1-D tensor of i8}}
prog.segment @segment0 constants alignment 64 dense<0.0> : tensor<4xf32>

// -----

// prog.segment C2.
// expected-error @below {{'prog.segment' op has alignment 3, but must have a power of two up to 4096}}
prog.segment @segment0 constants alignment 3 dense<0> : tensor<4xi8>

// -----

// prog.segment C3.
// expected-error @below {{'prog.segment' op is called @code, but segment number 0 must be called @segment0}}
prog.segment @code elf alignment 64 dense<0> : tensor<4xi8>

// -----

// prog.segment C4.
// expected-error @below {{'prog.segment' op of `ptx` names compute capability 90, which a cubin alone has}}
prog.segment @segment0 ptx capability 90 alignment 64 dense<0> : tensor<4xi8>

// -----

// expected-error @below {{'prog.segment' op is no cubin: it does not begin with the header of an ELF file}}
prog.segment @segment0 cubin capability 90 alignment 64 dense<0> : tensor<64xi8>

// -----

// expected-error @below {{'prog.segment' op is no cubin: it does not begin with the header of an ELF file}}
prog.segment @segment0 cubin capability 90 alignment 64 dense<0> : tensor<4611686018427387904xi8>

// -----

// expected-error @below {{'prog.segment' op names compute capability 0, but its cubin is for 90}}
prog.segment @segment0 cubin alignment 64 dense<"0x7F454C460201014108000000000000000200BE0001000000000000000000000000000000000000004000000000000000045A000040003800000040000100000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"> : tensor<128xi8>

// -----

// prog.alloc C1: there is an arena.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.alloc' op has an offset, but its program has no arena in device_dram}}
  %t = prog.alloc offset 0 : memref<16xi8>
}

// -----

// prog.alloc C1: it ends inside, however large the offset.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] arenas [#prog.arena<device_dram bytes = 64 lower_bound = 0 alignment = 64>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.alloc' op of 16 bytes at offset 18446744073709551608 ends outside of an arena of 64 bytes}}
  %t = prog.alloc offset 18446744073709551608 : memref<16xi8>
}

// -----

// prog.alloc C2: whole elements.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.alloc' op of 18 bytes cannot hold elements of 'f32'}}
  %t = prog.alloc of f32 : memref<18xi8>
}

// -----

// prog.alloc C2: a type of elements.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.alloc' op of 16 bytes cannot hold elements of 'index'}}
  %t = prog.alloc of index : memref<16xi8>
}

// -----

// prog.constant C1.
prog.segment @segment0 elf alignment 64 dense<0> : tensor<4xi8>
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.constant' op names @segment0, which is not a `prog.segment` of constants}}
  %t = prog.constant @segment0 offset 0 : memref<4xi8>
}

// -----

// prog.constant C2.
prog.segment @segment0 constants alignment 64 dense<0> : tensor<4xi8>
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.constant' op of 4 bytes at offset 1 ends outside of @segment0 of 4 bytes}}
  %t = prog.constant @segment0 offset 1 : memref<4xi8>
}

// -----

// prog.view C1.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  %v = prog.view %x offset 4 : memref<4xf32> to memref<3xf32>
  // expected-error @below {{'prog.view' op has a view as its source, but needs a buffer}}
  %w = prog.view %v offset 0 : memref<3xf32> to memref<2xf32>
}

// -----

// prog.view C2.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.view' op has type 'memref<4xf32, strided<[?]>>', but static strides that are not negative, and no offset, are needed}}
  %v = prog.view %x offset 0 : memref<4xf32> to memref<4xf32, strided<[?]>>
}

// -----

// prog.view C3: the last element of a strided window counts.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.view' op of 20 bytes at offset 0 ends outside of a buffer of 16 bytes}}
  %v = prog.view %x offset 0 : memref<4xf32> to memref<3xf32, strided<[2]>>
}

// -----

// prog.view C3: sizes that overflow.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{whose size is not a number of bytes}}
  %v = prog.view %x offset 0 : memref<4xf32> to memref<3xf32, strided<[4611686018427387904]>>
}

// -----

// prog.view C4.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.view' op is in host, but its buffer in device_dram}}
  %v = prog.view %x offset 0 : memref<4xf32> to memref<2xf32, #segue.space<host>>
}

// -----

// prog.view C5.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.view' op is the buffer itself: use that}}
  %v = prog.view %x offset 0 : memref<4xf32> to memref<4xf32>
}

// -----

// prog.launch C1: the kernel exists.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op names @k, which is not a `prog.kernel`}}
  prog.launch @k(%x, %y) range 4 grain 1 : memref<4xf32>, memref<4xf32>
}

// -----

// prog.launch C1: as many buffers.
// expected-note @below {{kernel declared here}}
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op has 1 buffers, but @k takes 2}}
  prog.launch @k(%x) range 4 grain 1 : memref<4xf32>
}

// -----

// prog.launch C2.
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op gives buffer 1 of type 'memref<4xf32>', but @k needs 0 + 5 * 4 bytes}}
  prog.launch @k(%x, %y) range 5 grain 1 : memref<4xf32>, memref<4xf32>
}

// -----

// prog.launch C2: offsets count.
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op gives buffer 0 of type 'memref<4xf32>' at offset 16, but @k needs 4 + 4 * 0 bytes}}
  prog.launch @k(%x, %y) offsets [16, 0] range 4 grain 1 : memref<4xf32>, memref<4xf32>
}

// -----

// prog.launch C3: one offset per buffer.
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op has 1 offsets for 2 buffers}}
  prog.launch @k(%x, %y) offsets [4] range 4 grain 1 : memref<4xf32>, memref<4xf32>
}

// -----

// prog.launch C3: none negative.
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op has negative offset -4}}
  prog.launch @k(%x, %y) offsets [-4, 0] range 4 grain 1 : memref<4xf32>, memref<4xf32>
}

// -----

// prog.launch C3: zeros are not written.
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op has offsets that are all 0: leave them out}}
  prog.launch @k(%x, %y) offsets [0, 0] range 4 grain 1 : memref<4xf32>, memref<4xf32>
}

// -----

// prog.launch C4.
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op has range 0 and grain 1, but both must be positive}}
  prog.launch @k(%x, %y) range 0 grain 1 : memref<4xf32>, memref<4xf32>
}

// -----

// prog.launch: in_place holds pairs.
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op has 1 numbers in `in_place`, but needs pairs}}
  prog.launch @k(%x, %y) range 4 grain 1 in_place [0] : memref<4xf32>, memref<4xf32>
}

// -----

// prog.launch: in_place holds positions.
prog.kernel @k arguments 2 outputs 1 fixed_bytes [4, 0] bytes_per_unit [0, 4] hash 0
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.launch' op has position 2 in `in_place`, but only 2 buffers}}
  prog.launch @k(%x, %y) range 4 grain 1 in_place [0, 2] : memref<4xf32>, memref<4xf32>
}

// -----

// prog.matmul C1: rank.
prog.program @p inputs [#prog.value<"a" input tensor<4x8xf32>>, #prog.value<"b" input tensor<1x8x2xf32>>, #prog.value<"c" input tensor<1x4x2xf32>>] outputs [] {
^bb0(%a: memref<4x8xf32>, %b: memref<1x8x2xf32>, %c: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op has `a` of type 'memref<4x8xf32>', but rank 3 is needed}}
  prog.matmul %a, %b into %c : memref<4x8xf32>, memref<1x8x2xf32>, memref<1x4x2xf32>
}

// -----

// prog.matmul C1: shapes.
prog.program @p inputs [#prog.value<"a" input tensor<1x4x8xf32>>, #prog.value<"b" input tensor<1x7x2xf32>>, #prog.value<"c" input tensor<1x4x2xf32>>] outputs [] {
^bb0(%a: memref<1x4x8xf32>, %b: memref<1x7x2xf32>, %c: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op has `b` of type 'memref<1x7x2xf32>', but the shape [1, 8, 2] is needed}}
  prog.matmul %a, %b into %c : memref<1x4x8xf32>, memref<1x7x2xf32>, memref<1x4x2xf32>
}

// -----

// prog.matmul C1: bias.
prog.program @p inputs [#prog.value<"a" input tensor<1x4x8xf32>>, #prog.value<"b" input tensor<1x8x2xf32>>, #prog.value<"c" input tensor<1x4x2xf32>>, #prog.value<"d" input tensor<4xf32>>] outputs [] {
^bb0(%a: memref<1x4x8xf32>, %b: memref<1x8x2xf32>, %c: memref<1x4x2xf32>, %d: memref<4xf32>):
  // expected-error @below {{'prog.matmul' op has `bias` of type 'memref<4xf32>', but the shape [2] is needed}}
  prog.matmul %a, %b bias %d : memref<4xf32> into %c : memref<1x4x8xf32>, memref<1x8x2xf32>, memref<1x4x2xf32>
}

// -----

// prog.matmul C2.
prog.program @p inputs [#prog.value<"a" input tensor<1x4x8xf32>>, #prog.value<"b" input tensor<1x8x2xf32>>, #prog.value<"c" input tensor<64xf32>>] outputs [] {
^bb0(%a: memref<1x4x8xf32>, %b: memref<1x8x2xf32>, %c: memref<64xf32>):
  %v = prog.view %c offset 0 : memref<64xf32> to memref<1x4x2xf32, strided<[8, 1, 4]>>
  // expected-error @below {{'prog.matmul' op has `c` of type 'memref<1x4x2xf32, strided<[8, 1, 4]>>', but its last dimension must be contiguous}}
  prog.matmul %a, %b into %v : memref<1x4x8xf32>, memref<1x8x2xf32>, memref<1x4x2xf32, strided<[8, 1, 4]>>
}

// -----

// prog.matmul C3.
prog.program @p inputs [#prog.value<"a" input tensor<1x4x8xbf16>>, #prog.value<"b" input tensor<1x8x2xf32>>, #prog.value<"c" input tensor<1x4x2xf32>>] outputs [] {
^bb0(%a: memref<1x4x8xbf16>, %b: memref<1x8x2xf32>, %c: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op multiplies 'bf16' by 'f32' into 'f32', but needs one float type, and that or f32 for the result}}
  prog.matmul %a, %b into %c : memref<1x4x8xbf16>, memref<1x8x2xf32>, memref<1x4x2xf32>
}

// -----

// prog.attention C1: heads agree.
prog.program @p inputs [#prog.value<"q" input tensor<1x2x4x8xf32>>, #prog.value<"k" input tensor<1x3x6x8xf32>>, #prog.value<"l" input tensor<1x2x4xf32>>, #prog.value<"o" input tensor<1x2x4x8xf32>>] outputs [] {
^bb0(%q: memref<1x2x4x8xf32>, %k: memref<1x3x6x8xf32>, %l: memref<1x2x4xf32>, %o: memref<1x2x4x8xf32>):
  // expected-error @below {{'prog.attention' op has `k` of type 'memref<1x3x6x8xf32>', but the shape [1, 2, 6, 8] is needed}}
  prog.attention %q, %k, %k into %o, %l scale 1.0 : memref<1x2x4x8xf32>, memref<1x3x6x8xf32>, memref<1x3x6x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>
}

// -----

// prog.attention C1: lse is f32.
prog.program @p inputs [#prog.value<"q" input tensor<1x2x4x8xf32>>, #prog.value<"k" input tensor<1x2x6x8xf32>>, #prog.value<"l" input tensor<1x2x4xbf16>>, #prog.value<"o" input tensor<1x2x4x8xf32>>] outputs [] {
^bb0(%q: memref<1x2x4x8xf32>, %k: memref<1x2x6x8xf32>, %l: memref<1x2x4xbf16>, %o: memref<1x2x4x8xf32>):
  // expected-error @below {{'prog.attention' op has `lse` of 'bf16', but needs f32}}
  prog.attention %q, %k, %k into %o, %l scale 1.0 : memref<1x2x4x8xf32>, memref<1x2x6x8xf32>, memref<1x2x6x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xbf16>
}

// -----

// prog.attention: one element type.
prog.program @p inputs [#prog.value<"q" input tensor<1x2x4x8xf32>>, #prog.value<"k" input tensor<1x2x6x8xbf16>>, #prog.value<"l" input tensor<1x2x4xf32>>, #prog.value<"o" input tensor<1x2x4x8xf32>>] outputs [] {
^bb0(%q: memref<1x2x4x8xf32>, %k: memref<1x2x6x8xbf16>, %l: memref<1x2x4xf32>, %o: memref<1x2x4x8xf32>):
  // expected-error @below {{'prog.attention' op needs one float element type for `q`, `k`, `v` and `out`}}
  prog.attention %q, %k, %k into %o, %l scale 1.0 : memref<1x2x4x8xf32>, memref<1x2x6x8xbf16>, memref<1x2x6x8xbf16>, memref<1x2x4x8xf32>, memref<1x2x4xf32>
}

// -----

// prog.attention C2.
prog.program @p inputs [#prog.value<"q" input tensor<1x2x4x8xf32>>, #prog.value<"b" input tensor<1x2x8x4xf32>>, #prog.value<"l" input tensor<1x2x4xf32>>, #prog.value<"o" input tensor<1x2x4x8xf32>>] outputs [] {
^bb0(%q: memref<1x2x4x8xf32>, %b: memref<1x2x8x4xf32>, %l: memref<1x2x4xf32>, %o: memref<1x2x4x8xf32>):
  %k = prog.view %b offset 0 : memref<1x2x8x4xf32> to memref<1x2x4x8xf32, strided<[64, 32, 1, 4]>>
  // expected-error @below {{has `k` of type 'memref<1x2x4x8xf32, strided<[64, 32, 1, 4]>>', but its last dimension must be contiguous}}
  prog.attention %q, %k, %q into %o, %l scale 1.0 : memref<1x2x4x8xf32>, memref<1x2x4x8xf32, strided<[64, 32, 1, 4]>>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>
}

// -----

// prog.attention C3: the seed is an i64.
prog.program @p inputs [#prog.value<"q" input tensor<1x2x4x8xf32>>, #prog.value<"s" input tensor<i32>>, #prog.value<"l" input tensor<1x2x4xf32>>, #prog.value<"o" input tensor<1x2x4x8xf32>>] outputs [] {
^bb0(%q: memref<1x2x4x8xf32>, %s: memref<i32>, %l: memref<1x2x4xf32>, %o: memref<1x2x4x8xf32>):
  // expected-error @below {{'prog.attention' op has `seed` of 'i32', but needs i64}}
  prog.attention %q, %q, %q dropout 0.5 by %s : memref<i32>, %s : memref<i32> id 0 into %o, %l scale 1.0 : memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>
}

// -----

// prog.attention_grad C3: the probability.
prog.program @p inputs [#prog.value<"q" input tensor<1x2x4x8xf32>>, #prog.value<"s" input tensor<i64>>, #prog.value<"l" input tensor<1x2x4xf32>>] outputs [] {
^bb0(%q: memref<1x2x4x8xf32>, %s: memref<i64>, %l: memref<1x2x4xf32>):
  // expected-error @below {{'prog.attention_grad' op has `dropout` 1.500000e+00, which must be at least 0 and less than 1}}
  prog.attention_grad %q, %q, %q dropout 1.5 by %s : memref<i64>, %s : memref<i64> id 0 out %q lse %l grad %q into %q, %q, %q scale 1.0 : memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>
}

// -----

// prog.attention_grad C1.
prog.program @p inputs [#prog.value<"q" input tensor<1x2x4x8xf32>>, #prog.value<"k" input tensor<1x2x6x8xf32>>, #prog.value<"l" input tensor<1x2x4xf32>>] outputs [] {
^bb0(%q: memref<1x2x4x8xf32>, %k: memref<1x2x6x8xf32>, %l: memref<1x2x4xf32>):
  // expected-error @below {{'prog.attention_grad' op has `grad_k` of type 'memref<1x2x4x8xf32>', but the shape [1, 2, 6, 8] is needed}}
  prog.attention_grad %q, %k, %k out %q lse %l grad %q into %q, %q, %k scale 1.0 : memref<1x2x4x8xf32>, memref<1x2x6x8xf32>, memref<1x2x6x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x6x8xf32>
}

// -----

// prog.attention_grad C2.
prog.program @p inputs [#prog.value<"q" input tensor<1x2x4x8xf32>>, #prog.value<"b" input tensor<1x2x8x4xf32>>, #prog.value<"l" input tensor<1x2x4xf32>>] outputs [] {
^bb0(%q: memref<1x2x4x8xf32>, %b: memref<1x2x8x4xf32>, %l: memref<1x2x4xf32>):
  %g = prog.view %b offset 0 : memref<1x2x8x4xf32> to memref<1x2x4x8xf32, strided<[64, 32, 1, 4]>>
  // expected-error @below {{has `grad_out` of type 'memref<1x2x4x8xf32, strided<[64, 32, 1, 4]>>', but its last dimension must be contiguous}}
  prog.attention_grad %q, %q, %q out %q lse %l grad %g into %q, %q, %q scale 1.0 : memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4xf32>, memref<1x2x4x8xf32, strided<[64, 32, 1, 4]>>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>, memref<1x2x4x8xf32>
}

// -----

// prog.library_call C1.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.library_call' op names no operation}}
  prog.library_call "" (%x) into %y numbers [] : memref<4xf32> into memref<4xf32>
}

// -----

// prog.library_call C2.
prog.program @p inputs [#prog.value<"x" input tensor<4x2xf32>>] outputs [#prog.value<"y" output tensor<4x2xf32>>] {
^bb0(%x: memref<4x2xf32>, %y: memref<4x2xf32>):
  %v = prog.view %x offset 0 : memref<4x2xf32> to memref<2x4xf32, strided<[1, 2]>>
  // expected-error @below {{'prog.library_call' op has a tensor of type 'memref<2x4xf32, strided<[1, 2]>>', which is not dense in row-major order}}
  prog.library_call "f" (%v) into %y numbers [] : memref<2x4xf32, strided<[1, 2]>> into memref<4x2xf32>
}

// -----

// prog.library_call C3.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [] {
^bb0(%x: memref<4xf32>):
  // expected-error @below {{'prog.library_call' op writes nothing}}
  "prog.library_call"(%x) <{callee = "f", numbers = array<i64: 1>, operandSegmentSizes = array<i32: 1, 0>}> : (memref<4xf32>) -> ()
}

// -----

// prog.to_layout C1.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<2xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<2xf32>):
  // expected-error @below {{'prog.to_layout' op copies the shape [4] to [2]}}
  prog.to_layout %x into %y : memref<4xf32>, memref<2xf32>
}

// -----

// prog.fill C1.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.fill' op has a pattern of 3 bytes for a buffer of type 'memref<4xf32>'}}
  prog.fill %y with [0, 0, 0] : memref<4xf32>
}

// -----

// prog.fill C2.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  %v = prog.view %y offset 0 : memref<4xf32> to memref<2xf32>
  // expected-error @below {{'prog.fill' op fills a view, but must fill a buffer}}
  prog.fill %v with [0] : memref<2xf32>
}

// -----

// prog.save C1: an output.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.save' op names a buffer that is not an output of the program}}
  prog.save %x : memref<4xf32>
}

// -----

// prog.save C1: of role saved.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.save' op names output "y", whose role is not saved}}
  prog.save %y : memref<4xf32>
}

// -----

// prog.restore C1: an input.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.restore' op names a buffer that is not an input of the program}}
  prog.restore %y : memref<4xf32>
}

// -----

// prog.restore C1: of role saved.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.restore' op names input "x", whose role is not saved}}
  prog.restore %x : memref<4xf32>
}

// -----

// prog.free C1.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  %t = prog.alloc : memref<16xi8>
  // expected-error @below {{'prog.free' op names a buffer that is not an input of the program}}
  prog.free %t : memref<16xi8>
}

// -----

// prog.to_layout C2: only tiles and rows are named.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  // expected-error @below {{'prog.to_layout' op has `source` as 'tensor<4xf32>', but only a tensor whose layout has a tile or a row storage is named}}
  prog.to_layout %x as tensor<4xf32> into %y : memref<4xf32>, memref<4xf32>
}

// -----

// prog.to_layout C2: the bytes hold the tensor.
prog.program @p inputs [#prog.value<"x" input tensor<64xi8>>] outputs [#prog.value<"y" output tensor<4x8xf32>>] {
^bb0(%x: memref<64xi8>, %y: memref<4x8xf32>):
  // expected-error @below {{'prog.to_layout' op has `source` as 'tensor<4x8xf32, #segue.layout<space = device_dram, storage = int8_row>>', which needs a buffer of type 'memref<80xi8>' or more, not 'memref<64xi8>'}}
  prog.to_layout %x as tensor<4x8xf32, #segue.layout<storage = int8_row>> into %y : memref<64xi8>, memref<4x8xf32>
}

// -----

// prog.to_layout C3: each element of the target has a place of its own.
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32>>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):
  %v = prog.view %y offset 0 : memref<4xf32> to memref<4xf32, strided<[0]>>
  // expected-error @below {{'prog.to_layout' op writes `target` of type 'memref<4xf32, strided<[0]>>', which holds two elements in one place}}
  prog.to_layout %x into %v : memref<4xf32>, memref<4xf32, strided<[0]>>
}

// -----

// prog.save C2: what is saved is used no more.
prog.program @p inputs [] outputs [#prog.value<"s" saved tensor<4xf32>>, #prog.value<"y" output tensor<4xf32>>] {
^bb0(%s: memref<4xf32>, %y: memref<4xf32>):
  // expected-note @below {{saved here}}
  prog.save %s : memref<4xf32>
  // expected-error @below {{'prog.to_layout' op uses a saved value after its `prog.save`}}
  prog.to_layout %s into %y : memref<4xf32>, memref<4xf32>
}

// -----

// prog.program C7: an input is read as it is declared.
// expected-error @below {{'prog.program' op input "x" is 'tensor<4x2xf32>' and has alternative #segue.layout<space = device_dram, strides = [1, 4]>, but may differ in space and alignment alone}}
prog.program @p inputs [#prog.value<"x" input tensor<4x2xf32> or [<strides = [1, 4]>]>] outputs [] {
^bb0(%x: memref<4x2xf32>):

}

// -----

// prog.program C7: an output in the place of an input lies as that does.
// expected-error @below {{'prog.program' op output "y" must lie in an input and has alternatives}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32>>] outputs [#prog.value<"y" output tensor<4xf32> or [<space = device_l1>]>] aliases [#prog.alias<output 0 = input 0 required>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C7: neither has the input.
// expected-error @below {{'prog.program' op input "x" is written in place and has alternatives}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32> or [<space = device_l1>]>] outputs [#prog.value<"y" output tensor<4xf32>>] aliases [#prog.alias<output 0 = input 0 required>] {
^bb0(%x: memref<4xf32>, %y: memref<4xf32>):

}

// -----

// prog.program C8: outputs.
// expected-error @below {{'prog.program' op output "y" is 'tensor<4xf32, #segue.layout<space = device_dram, strides = [0]>>', which holds two elements in one place}}
prog.program @p inputs [] outputs [#prog.value<"y" output tensor<4xf32, #segue.layout<strides = [0]>>>] {
^bb0(%y: memref<4xf32, strided<[0]>>):

}

// -----

// prog.program C8: alternatives of outputs.
// expected-error @below {{'prog.program' op output "y" has alternative #segue.layout<space = device_dram, strides = [1, 1]>, which holds two elements in one place}}
prog.program @p inputs [] outputs [#prog.value<"y" output tensor<4x2xf32> or [<strides = [1, 1]>]>] {
^bb0(%y: memref<4x2xf32>):

}

// -----

// #prog.value C2: alternatives can be stored.
// expected-error @below {{alternative #segue.layout<space = device_dram, strides = [1]> of value "y": layout has 1 strides, but the tensor has 2 dimensions}}
prog.program @p inputs [] outputs [#prog.value<"y" output tensor<4x2xf32> or [<strides = [1]>]>] {
^bb0(%y: memref<4x2xf32>):

}

// -----

// prog.matmul C4: codes are a matrix with a row or group storage.
prog.program @p inputs [#prog.value<"x" input tensor<1x4x8xf32>>, #prog.value<"w" input tensor<96xi8>>]
    outputs [#prog.value<"y" output tensor<1x4x2xf32>>] {
^bb0(%x: memref<1x4x8xf32>, %w: memref<96xi8>, %y: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op has `b` as 'tensor<2x8xf32, #segue.layout<space = device_dram, tile = [2, 2]>>', but only a matrix with a row or group storage and no tile is named}}
  prog.matmul %x, %w as tensor<2x8xf32, #segue.layout<tile = [2, 2]>> transposed into %y
    : memref<1x4x8xf32>, memref<96xi8>, memref<1x4x2xf32>
}

// -----

// prog.matmul C4: the shapes fit, transposed or not.
prog.program @p inputs [#prog.value<"x" input tensor<1x4x8xf32>>, #prog.value<"w" input tensor<96xi8>>]
    outputs [#prog.value<"y" output tensor<1x4x2xf32>>] {
^bb0(%x: memref<1x4x8xf32>, %w: memref<96xi8>, %y: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op has `a`}}
  prog.matmul %x, %w as tensor<2x8xf32, #segue.layout<storage = int8_row>> into %y
    : memref<1x4x8xf32>, memref<96xi8>, memref<1x4x2xf32>
}

// -----

// prog.matmul C4: the bytes hold the weight.
prog.program @p inputs [#prog.value<"x" input tensor<1x4x8xf32>>, #prog.value<"w" input tensor<96xi8>>]
    outputs [#prog.value<"y" output tensor<1x4x2xf32>>] {
^bb0(%x: memref<1x4x8xf32>, %w: memref<96xi8>, %y: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op has `b` as 'tensor<20x8xf32, #segue.layout<space = device_dram, storage = int8_row>>', which needs a buffer of type 'memref<272xi8>' or more, not 'memref<96xi8>'}}
  prog.matmul %x, %w as tensor<20x8xf32, #segue.layout<storage = int8_row>> transposed into %y
    : memref<1x4x8xf32>, memref<96xi8>, memref<1x4x2xf32>
}

// -----

// prog.matmul C4: nothing is accumulated.
prog.program @p inputs [#prog.value<"x" input tensor<1x4x8xf32>>, #prog.value<"w" input tensor<96xi8>>]
    outputs [#prog.value<"y" output tensor<1x4x2xf32>>] {
^bb0(%x: memref<1x4x8xf32>, %w: memref<96xi8>, %y: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op accumulates a product with codes, which only overwrites}}
  prog.matmul %x, %w as tensor<2x8xf32, #segue.layout<storage = int8_row>> transposed into %y accumulate
    : memref<1x4x8xf32>, memref<96xi8>, memref<1x4x2xf32>
}

// -----

// prog.matmul C4: the rows of codes are contiguous.
prog.program @p inputs [#prog.value<"x" input tensor<1x4x8xf32>>, #prog.value<"w" input tensor<96xi8>>]
    outputs [#prog.value<"y" output tensor<1x4x2xf32>>] {
^bb0(%x: memref<1x4x8xf32>, %w: memref<96xi8>, %y: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op has `b` as 'tensor<2x8xf32, #segue.layout<space = device_dram, strides = [1, 2], storage = int8_row>>', whose rows are not contiguous or overlap}}
  prog.matmul %x, %w as tensor<2x8xf32, #segue.layout<strides = [1, 2], storage = int8_row>> transposed into %y
    : memref<1x4x8xf32>, memref<96xi8>, memref<1x4x2xf32>
}

// -----

// prog.matmul C4: only codes are read transposed.
prog.program @p inputs [#prog.value<"x" input tensor<1x4x8xf32>>, #prog.value<"w" input tensor<1x8x2xf32>>]
    outputs [#prog.value<"y" output tensor<1x4x2xf32>>] {
^bb0(%x: memref<1x4x8xf32>, %w: memref<1x8x2xf32>, %y: memref<1x4x2xf32>):
  // expected-error @below {{'prog.matmul' op reads the transpose of `b`, which is for a weight of codes alone}}
  prog.matmul %x, %w transposed into %y : memref<1x4x8xf32>, memref<1x8x2xf32>, memref<1x4x2xf32>
}

// -----

// Commands compute in the memory of the device.
prog.program @p inputs [#prog.value<"x" input tensor<1x4x4xf32, #segue.layout<space = host>>>] outputs [#prog.value<"y" output tensor<1x4x4xf32>>] {
^bb0(%x: memref<1x4x4xf32, #segue.space<host>>, %y: memref<1x4x4xf32>):
  // expected-error @below {{'prog.matmul' op operand #0 must be memref with a static shape in the memory of the device, but got 'memref<1x4x4xf32, #segue.space<host>>'}}
  prog.matmul %x, %x into %y : memref<1x4x4xf32, #segue.space<host>>, memref<1x4x4xf32, #segue.space<host>>, memref<1x4x4xf32>
}

// -----

prog.kernel @k arguments 1 outputs 1 fixed_bytes [0] bytes_per_unit [4] hash 1
prog.program @p inputs [] outputs [#prog.value<"y" output tensor<4xf32, #segue.layout<space = host_pinned>>>] {
^bb0(%y: memref<4xf32, #segue.space<host_pinned>>):
  // expected-error @below {{'prog.launch' op operand #0 must be variadic of memref with a static shape in the memory of the device, but got 'memref<4xf32, #segue.space<host_pinned>>'}}
  prog.launch @k(%y) range 4 grain 1 : memref<4xf32, #segue.space<host_pinned>>
}

// -----

// prog.program C7: an alternative is on the same side of the link.
// expected-error @below {{'prog.program' op value "x" is 'tensor<4xf32>' and has alternative #segue.layout<space = host>, but stays on the device}}
prog.program @p inputs [#prog.value<"x" input tensor<4xf32> or [<space = host>]>] outputs [] {
^bb0(%x: memref<4xf32>):
}

// -----

// prog.segment C5.
// expected-error @below {{'prog.segment' op has a resource of 4 bytes, but holds 'tensor<64xi8>'}}
prog.segment @segment0 constants alignment 64 dense_resource<short> : tensor<64xi8>
{-# dialect_resources: { builtin: { short: "0x040000000000803F" } } #-}
