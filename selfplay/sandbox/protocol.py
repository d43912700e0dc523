"""Byte formats between the executor, a warmed process and a run, for both sides.

Loaded by path inside the warmed process, so it imports nothing but the standard library.
"""

import struct

REQUEST = struct.Struct("<III")  # bytes of the program, the arguments and the entry's name
REPLY = struct.Struct("<iBdI")  # wait status, flags, CPU seconds, bytes of the result pipe
FRAME = struct.Struct("<cI")  # VALUE or FAILURE, bytes that follow; one per result pipe
VALUE, FAILURE = b"V", b"F"
TIMED_OUT, OVERFLOWED = 1, 2
