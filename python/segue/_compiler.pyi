"""The compiler of Segue. Use segue.compile instead."""

def compile(text: str, name: str, training: bool = True, optimizer: str = "none") -> bytes:
    """The bytes of a .segue file from a module of the segue dialect.

    `optimizer` is a kind and options of the pass segue-optimizer, such as "adamw:beta2=0.95,decay=0.1".
    Raises CompileError, whose report has the ``diagnostics``.
    """
