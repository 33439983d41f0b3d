"""Frames between the host and the first process of a sandbox: what both sides must agree on.

A frame is its length, its kind, the channel that it belongs to, and its payload. The host opens a channel with a
`CALL`, whose payload is a JSON object with `op`. The guest answers once with `DONE` or `FAILED`; around that come the
frames of what the channel carries. Either side sends data only as far as the other has granted: `WINDOW` bytes at
first, then what each `GRANT` adds.
"""

import _struct

WINDOW = 256 * 1024
CHUNK = 64 * 1024
MAX_FRAME = 1024 * 1024

HEADER = _struct.Struct(">IBI")
NUMBER = _struct.Struct(">I")

CALL, DATA, END, GRANT, CANCEL = 1, 2, 3, 4, 5
DONE, FAILED, STDOUT, STDERR, PTY, EXITED, EVENT, ENTRIES, HELLO = 16, 17, 18, 19, 20, 21, 22, 23, 24

USER, USER_ID, HOME = "user", 1000, "/home/user"
