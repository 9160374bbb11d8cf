"""Runs a command with stderr on a pseudo-terminal of 100 columns, and says what was drawn there.

`screen` stands first for both streams on it, `talk` for stderr alone. Every line that was drawn over is printed once as
`drawn: ...`, and what is left in the end as `left: ...`.
"""

import os
import pty
import select
import subprocess
import struct
import sys
import fcntl
import termios

kind, *command = sys.argv[1:]
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
out = theirs if kind == "screen" else subprocess.DEVNULL
process = subprocess.Popen(command, stdout=out, stderr=theirs, env=os.environ | {"TERM": os.environ.get("TRIED_TERM", "xterm")})
os.close(theirs)
seen = b""
while True:
    if not select.select([ours], [], [], 30)[0]:
        process.kill()
        sys.exit("nothing came for 30 seconds")
    try:
        part = os.read(ours, 4096)
    except OSError:  # nobody has the other end any more
        break
    if not part:
        break
    seen += part
status = process.wait(30)
for line in seen.decode().split("\r\n"):
    *drawn, left = line.split("\r\x1b[K")
    for each in filter(None, drawn):
        print("drawn:", each)
    if left:
        print("left:", left)
print("status", status)
