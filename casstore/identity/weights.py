"""The digest of a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from casstore.errors import UsageError
from casstore.identity.canonical import canonical
from casstore.identity.digests import WEIGHTS_CONTEXT
from casstore.identity.dtypes import dtype_name


def weights_digest(weights: Any) -> str:
    """A digest of names, dtypes, shapes and bytes of all tensors of a model; their order doesn't matter.

    Args:
        weights: a state dict ({name: torch tensor}), or a module that has one (`state_dict()`).

    Returns:
        64 hex digits, for `Recipe(weights=...)`.

    Raises:
        UsageError: it is neither, or one of its entries isn't a tensor; the message names it.
    """
    import torch

    state = weights.state_dict() if hasattr(weights, "state_dict") else weights
    if not isinstance(state, Mapping) or not state:
        raise UsageError(f"weights_digest needs a state dict or a module, not {type(weights).__name__}")
    hasher = blake3(derive_key_context=WEIGHTS_CONTEXT)
    for name in sorted(state):
        tensor = state[name]
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"weights_digest: {name!r} is of type {type(tensor).__name__}, not a tensor")
        data = tensor_bytes(f"weights_digest: {name!r}", tensor)
        head = canonical([name, dtype_name(tensor.dtype), list(tensor.shape)]).encode()
        # Lengths in front keep a name's end from being taken for a tensor's beginning.
        hasher.update(len(head).to_bytes(8, "little") + head)
        hasher.update(data.data)
    return hasher.hexdigest()


def tensor_bytes(name: str, tensor: Any) -> Any:
    """The elements of a torch tensor, row-major, as a uint8 NumPy array; shares the tensor's memory if it can.

    Raises:
        UsageError: it has no plain bytes (sparse, quantized, on the meta device); the message begins with `name`.
    """
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = tensor.dtype if tensor.layout == torch.strided else tensor.layout
        raise UsageError(f"{name} is {kind}; make it a plain dense tensor")
    if tensor.device.type == "meta":
        raise UsageError(f"{name} is on the meta device and has no data")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # Not reshape: a contiguous tensor may keep any stride along a side of length one, and view() minds.
    flat = plain.as_strided((plain.numel(),), (1,), plain.storage_offset())
    return flat.view(torch.uint8).numpy()
