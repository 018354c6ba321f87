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
            raise UsageError(f"weights_digest: {name!r} is a {type(tensor).__name__}, not a tensor")
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        head = canonical([name, dtype_name(plain.dtype), list(plain.shape)]).encode()
        # Lengths in front keep a name's end from being taken for a tensor's beginning.
        hasher.update(len(head).to_bytes(8, "little") + head)
        if plain.numel():
            hasher.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()
