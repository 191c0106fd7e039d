"""`trajectory.npz`: arrays, read without unpickling or decompressing anything."""

from io import BytesIO
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cbs_lightning.results.trajectory import Trajectory

TYPES = {"loss": np.float32, "correct": np.int32, "size": np.int32}


def pack(trajectory: Trajectory) -> bytes:
    buffer = BytesIO()
    np.savez(buffer, **vars(trajectory))
    return buffer.getvalue()


def unpack(content: bytes) -> Trajectory:
    """Raises whatever garbled bytes lead to. Uses as much memory as the file is large."""
    with ZipFile(BytesIO(content)) as archive:
        arrays = {name: _array(archive, name, dtype) for name, dtype in TYPES.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        raise ValueError("arrays of different lengths")
    return Trajectory(**arrays)


def _array(archive: ZipFile, name: str, dtype: type[Any]) -> NDArray[Any]:
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type != ZIP_STORED:  # a few bytes may unpack to more than there is memory
        raise ValueError(f"{name} is compressed")
    with archive.open(member) as file:
        if npy.read_magic(file) != (1, 0):
            raise ValueError(f"{name} is of another version of numpy's format")
        shape, _, stored = npy.read_array_header_1_0(file)
        content = file.read()
    if stored != np.dtype(dtype) or len(shape) != 1:
        raise ValueError(f"{name} is {len(shape)}-dimensional {stored}, not {dtype.__name__}")
    if len(content) != shape[0] * stored.itemsize:
        raise ValueError(f"{name} has {len(content)} bytes for {shape[0]} steps")
    return np.frombuffer(content, dtype).copy()
