"""A .segue file whose machine code shows that it was mapped.

    with_constructor.py INPUT.segue OUTPUT.segue EFFECT

OUTPUT is INPUT with each shared object in it replaced by one that has the same symbols, which do nothing, and a
constructor that makes the file EFFECT. It goes through the text of the prog dialect, so that every hash is right.
"""

import pathlib
import re
import subprocess
import sys
import tempfile


def shared_object(symbols, effect):
    source = f"""
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>
__attribute__((constructor)) static void show(void) {{ close(open("{effect}", O_CREAT | O_WRONLY, 0600)); }}
"""
    for i, symbol in enumerate(symbols):  # their names are none of C
        source += f'int64_t f{i}(void *const *a, int64_t b, int64_t e) __asm__("{symbol}");\n'
        source += f"int64_t f{i}(void *const *a, int64_t b, int64_t e) {{ return 0; }}\n"
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "k.c").write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-s", "-o", f"{folder}/k.so", f"{folder}/k.c"], check=True, timeout=60)
        return (pathlib.Path(folder) / "k.so").read_bytes()


def main(before, after, effect):
    text = subprocess.run(["segue-translate", "--flatbuffer-to-prog", before], check=True, timeout=60, capture_output=True,
                          text=True).stdout  # fmt: skip
    names = re.findall(r"prog\.segment @(\w+) +elf", text)
    assert names, "no segment of machine code was found"
    code = shared_object(sorted(set(re.findall(r"#prog\.variant<\w+ \"([^\"]+)\"", text))), effect)
    for name in names:
        text, types = re.subn(rf"dense_resource<{name}> : tensor<\d+xi8>", f"dense_resource<{name}> : tensor<{len(code)}xi8>", text)
        # A blob of the resource section: four bytes of alignment, then the data.
        text, blobs = re.subn(rf'({name}: "0x[0-9A-Fa-f]{{8}})[0-9A-Fa-f]*"', rf'\g<1>{code.hex().upper()}"', text)
        assert types >= 1 and blobs == 1, (name, types, blobs)
    subprocess.run(["segue-translate", "--prog-to-flatbuffer", "-o", after], input=text, text=True, check=True, timeout=60)


if __name__ == "__main__":
    main(*sys.argv[1:])
