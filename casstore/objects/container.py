"""The container (`<digest>.cso`): a payload cut into frames, each checked and compressed by itself.

    0   u32  0x184D2A57   a zstd skippable frame, so that any zstd tool steps over the table
    4   u32  length of what follows up to and including the checksum
    8   "CSO1"
    12  u16  format version, 1
    14  u16  flags, 0
    16  u32  number of frames n
    20  32 bytes  digest: BLAKE3-256 of the payload
    52  u64  payload length
    60  n * 40 bytes  frame table
    ..  u64  XXH3-64 of everything from "CSO1" to here
    then the frames: the payload header, then each tensor in frames of at most 4 MiB, in payload order

A frame's row: stored length u64, raw length u64, codec u8 (0 raw, 1 zstd, 2 fill), filter u8 (0 none, 1 + p: byte plane
p), element size u8, 5 zero bytes, parameter u64 (0, reserved), XXH3-64 of the stored bytes u64. Little endian.

The parts: `table` reads and writes what is in front of the frames, `encode` and `decode` the frames, with `planes`
and `fills`. All that others need has its name here, too.
"""

from casstore.objects.decode import Mapper, check_header, decode, decode_frames, decode_into
from casstore.objects.encode import encode
from casstore.objects.table import HEAD_NBYTES, Frame, frames_of, table_span

__all__ = [
    "HEAD_NBYTES",
    "Frame",
    "Mapper",
    "check_header",
    "decode",
    "decode_frames",
    "decode_into",
    "encode",
    "frames_of",
    "table_span",
]
