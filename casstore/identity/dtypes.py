"""The dtypes that can be stored, under their safetensors names."""

from __future__ import annotations

ELEMENT_SIZE: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}
"""Bytes per element of each dtype."""

TORCH_NAME: dict[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
    "C64": "complex64",
}
"""The name of each dtype in torch (and, where it exists there, in NumPy)."""

SAFETENSORS_NAME: dict[str, str] = {name: short for short, name in TORCH_NAME.items()}

FLOATS = frozenset({"F16", "BF16", "F32", "F64", "C64", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"})
"""The dtypes that can hold NaN."""

NOT_IN_NUMPY = frozenset(name for name in ELEMENT_SIZE if name == "BF16" or name.startswith("F8_"))


def dtype_name(value: object) -> str:
    """The safetensors name of a dtype given as torch dtype, NumPy dtype or string; other strings stay as they are.

    Raises:
        TypeError: it is nothing of the kind.
    """
    if isinstance(value, str):
        text = value
    elif type(value).__module__ == "torch":
        text = str(value).removeprefix("torch.")
    else:
        import numpy as np

        if value is None or not (
            isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))
        ):
            raise TypeError(f"{value!r} isn't a dtype")
        text = np.dtype(value).name
    return SAFETENSORS_NAME.get(text, text)
