"""Text encoders without the cost of padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from casstore.errors import EncoderError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Output = TypeVar("Output")


def trim_padding(
    forward: Callable[[Tensor, Tensor], Output],
    tokens: Tensor,
    mask: Tensor,
    *,
    pad_to: int | None = None,
    axis: int = 1,
    pooled: str | Collection[str | int] = (),
) -> Output:
    """Run a text encoder on the real tokens only, and pad what it returns with zeros.

        hidden = trim_padding(lambda tokens, mask: model(tokens, attention_mask=mask).last_hidden_state, tokens, mask)

    All items are cut to the length of the longest; what is returned is zero behind each item's own last token, so that
    it doesn't depend on the rest of the batch (but for rounding). Real tokens get what the whole forward would give
    them if no token looks at padding behind it: in causal models, and in others that mask it. What the encoder would
    compute *for* the padding is lost; use it only where that is dropped or masked later.

    An item whose mask isn't ones followed by zeros (padding on the left, holes), or has no ones, can't be cut: its
    batch is encoded at full length, and it is returned as it is; the padding of the others is still zero.

    Args:
        forward: called once with the cut tokens and mask. Returns a tensor, or a tuple, list or dict of tensors, also
            nested, whose first axis is the items.
        tokens: [N, L], or [N, L, ...] if they are embedded already.
        mask: [N, L] of 1 or True for real tokens and 0 or False for padding.
        pad_to: length of what is returned, L or more; default L.
        axis: which axis of the returned tensors is the length.
        pooled: names (of a dict) or positions (of a tuple or list) that have no such axis; returned as they are.

    Returns:
        What forward returns, of the same structure, with `pad_to` in place of the cut length.

    Raises:
        UsageError: shapes, mask or arguments that can't be meant.
        EncoderError: forward returned something that isn't in `pooled` and hasn't the length on this axis.
    """
    if tokens.ndim < 2 or mask.ndim != 2 or tokens.shape[:2] != mask.shape:
        raise UsageError(
            f"trim_padding: tokens {list(tokens.shape)} and mask {list(mask.shape)} don't fit; they are [N, L] both"
        )
    full = mask.shape[1]
    if pad_to is not None and pad_to < full:
        raise UsageError(f"trim_padding: pad_to is {pad_to}, less than the length of the tokens, {full}")
    if axis == 0:
        raise UsageError("trim_padding: axis 0 is the items; the length is another axis")
    lengths = _lengths(mask)
    cut = max(lengths, default=full)
    output = forward(tokens, mask) if cut == full else forward(tokens[:, :cut], mask[:, :cut])
    padder = _Padder(lengths, cut, full if pad_to is None else pad_to, axis)
    names = [pooled] if isinstance(pooled, str) else [*pooled]
    padded: Output = padder.pad(output, "the output", names)
    return padded


def _lengths(mask: Tensor) -> list[int]:
    """How many tokens of each item are encoded and kept: its real ones, or all if these aren't a prefix."""
    import torch

    real = mask != 0
    if not bool((real == mask).all()):
        # Additive masks mean the opposite: 0 is a real token there.
        raise UsageError("trim_padding: the mask has numbers besides 1 (a real token) and 0 (padding)")
    full = mask.shape[1]
    counts = real.sum(dim=1)
    prefix = torch.arange(full, device=mask.device) < counts[:, None]
    whole = (prefix != real).any(dim=1) | (counts == 0)
    lengths: list[int] = torch.where(whole, full, counts).tolist()
    return lengths


@dataclass(frozen=True, slots=True)
class _Padder:
    """Pads outputs of length `cut` to `pad_to`, and keeps `lengths[i]` tokens of item i."""

    lengths: list[int]
    cut: int
    pad_to: int
    axis: int

    def pad(self, value: Any, where: str, pooled: Collection[str | int] = ()) -> Any:
        """The same structure with all tensors padded, but for those in `pooled`."""
        import torch

        names = self._names(value)
        unknown = [name for name in pooled if name not in names]
        if unknown:
            raise UsageError(f"trim_padding: pooled has {unknown}, but forward returned {names or 'one tensor'}")
        if isinstance(value, torch.Tensor):
            return self._pad_tensor(value, where)
        if isinstance(value, MutableMapping):
            padded = copy.copy(value)  # of the same class, such as the outputs of transformers
            for name in names:
                if name not in pooled:
                    padded[name] = self.pad(value[name], f"{where}[{name!r}]")
            return padded
        if isinstance(value, tuple | list):
            parts = [part if i in pooled else self.pad(part, f"{where}[{i}]") for i, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if value is None:
            return None
        raise EncoderError(
            f"trim_padding: {where} is a {type(value).__name__}, which can't be padded; name it in pooled= to keep it"
        )

    def _names(self, value: Any) -> list[Any]:
        if isinstance(value, MutableMapping):
            return list(value)
        return list(range(len(value))) if isinstance(value, tuple | list) else []

    def _pad_tensor(self, tensor: Tensor, where: str) -> Tensor:
        axis = self.axis + tensor.ndim if self.axis < 0 else self.axis
        shape = list(tensor.shape)
        if not 0 < axis < len(shape) or shape[0] != len(self.lengths) or shape[axis] != self.cut:
            raise EncoderError(
                f"trim_padding: {where} has shape {shape} for {len(self.lengths)} items of {self.cut} tokens; its axis "
                f"{self.axis} isn't the tokens. If it has no such axis, name it in pooled="
            )
        if all(length == self.pad_to for length in self.lengths):
            return tensor
        shape[axis] = self.pad_to
        padded = tensor.new_zeros(shape)
        # Copying only what is kept, rather than multiplying by the mask: NaN behind the last token stays behind.
        for i, length in enumerate(self.lengths):
            padded[i].narrow(axis - 1, 0, length).copy_(tensor[i].narrow(axis - 1, 0, length))
        return padded
