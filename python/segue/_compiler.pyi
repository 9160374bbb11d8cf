"""The compiler of Segue. Use segue.compile instead."""

def compile(text: str, name: str, training: bool = True, optimizer: str = "none", stitch_hints: str = "",
            gradient_statistics: str = "", block_programs: bool = False,
            frozen_storage: str = "", target: str = "", l1_bytes: int = 0, ptxas: str = "") -> bytes:
    """The bytes of a .segue file from a module of the segue dialect.

    `optimizer` is a kind and options of the pass segue-optimizer, such as "adamw:beta2=0.95,decay=0.1".
    `stitch_hints` is the path of a file that a run wrote, or empty. With `gradient_statistics` "block" or "layer" the
    backward program returns f32 [4] for each: sum of squares, greatest magnitude, sum and number of its gradients'
    elements. With `block_programs` the forward program is there in pieces too, one for each block.
    `frozen_storage`, such as "int8_row", stores frozen matrices that only products read so; the products read the codes.
    `target` has the instruction sets of the kernels, parted by commas: "x86-64-v3", "x86-64-v4", and those of GPUs such as
    "sm_90", of which the lowest is that of the PTX; empty: both of x86-64, twice the work of LLVM.
    `ptxas` is the path of the program that makes cubins of that PTX, one for each GPU in `target`; empty for none.
    Temporaries of a program take up to `l1_bytes` of device_l1.
    Raises CompileError, whose report has the ``diagnostics``.
    """

def verify_values(text: str, name: str, values: bytes, training: bool = True,
                  optimizer: str = "none") -> tuple[str, int, int, int]:
    """What the first kernel differs by that differs from the reference interpreter, or "".

    Then the numbers of kernels, launches, and calls of kernels. `values` are the bytes of a safetensors file with
    arguments by name; what is missing is drawn. Raises CompileError.
    """
