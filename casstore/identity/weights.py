"""The digest of a model's weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from casstore.errors import UsageError
from casstore.identity.dtypes import dtype_name
from casstore.identity.weight_files import file_weights_digest, new_weights_hasher, tensor_head
from casstore.identity.weights_memo import remembered


def weights_digest(weights: Any, *, fresh: bool = False) -> str:
    """A digest of names, dtypes, shapes and bytes of all tensors of a model; their order doesn't matter.

    It is remembered as long as the tensors live or the file stays as it is, so asking again costs next to nothing. All
    changes that PyTorch counts are seen; a write through `.data` is if it touches the 4 KiB of each tensor that are
    compared.

    Args:
        weights: a module: its parameters and buffers, and what else its `state_dict()` has; a state dict ({name: torch
            tensor}), or an object that has one; or the path of a safetensors file, which counts as the state dict in
            it. A module with buffers that aren't in its state dict so has a digest of its own.
        fresh: compute it anew, whatever is remembered.

    Returns:
        64 hex digits, for `Recipe(weights=...)`.

    Raises:
        UsageError: it is none of these, or one of its entries isn't a tensor; the message names it.
        SourceNotFoundError: the file can't be read.
    """
    if isinstance(weights, (str, os.PathLike)):
        return file_weights_digest(os.fsdecode(weights), fresh=fresh)
    tensors = _tensors(weights)
    return remembered(tensors, lambda: hash_tensors(tensors), fresh=fresh)


def hash_tensors(tensors: Mapping[str, Any]) -> str:
    """The digest of these tensors, which come in the order of their names."""
    hasher = new_weights_hasher()
    for name, tensor in tensors.items():
        data = tensor_bytes(f"weights_digest: {name!r}", tensor)
        hasher.update(tensor_head(name, dtype_name(tensor.dtype), list(tensor.shape)))
        hasher.update(data.data)
    return hasher.hexdigest()


def _tensors(weights: Any) -> dict[str, Any]:
    """{name: tensor} of a module or state dict, in the order of the names.

    Raises:
        UsageError: it is neither, or an entry isn't a tensor.
    """
    import torch

    state: Any = weights
    if isinstance(weights, torch.nn.Module):
        # The tensors themselves, since these live as long as the module; also buffers that its state dict leaves out.
        state = {}
        if not _add_own(weights, "", state, torch.nn.Module):
            own = type(weights).state_dict is torch.nn.Module.state_dict
            state |= weights.state_dict(keep_vars=True) if own else weights.state_dict()
    elif hasattr(weights, "state_dict"):
        state = weights.state_dict()
    if not isinstance(state, Mapping) or not state:
        raise UsageError(
            f"weights_digest needs a state dict or a module, or the path of a safetensors file, not "
            f"{type(weights).__name__}" + (" without tensors" if isinstance(state, Mapping) else "")
        )
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"weights_digest: {name!r} is of type {type(tensor).__name__}, not a tensor")
    return {name: state[name] for name in sorted(state)}


def _add_own(module: Any, prefix: str, found: dict[str, Any], kind: Any) -> bool:
    """Add the parameters and buffers of a module and those in it; returns whether its state dict has nothing else.

    PyTorch's own functions take several times as long, which is most of the price of asking for a known digest.
    """
    for own in (module._parameters, module._buffers):
        for name, tensor in own.items():
            if tensor is not None:
                found[prefix + name] = tensor
    its = type(module)
    plain = not (
        module._state_dict_hooks
        or module._state_dict_pre_hooks
        or its.state_dict is not kind.state_dict
        or its._save_to_state_dict is not kind._save_to_state_dict
        or its.get_extra_state is not kind.get_extra_state
        or "state_dict" in module.__dict__
    )
    for name, child in module._modules.items():
        if child is not None and not _add_own(child, f"{prefix}{name}.", found, kind):
            plain = False
    return plain


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
