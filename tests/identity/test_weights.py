"""The digest of weights: names, dtypes, shapes and bytes count, nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from blake3 import blake3
from kit import DATA

from casstore.errors import UsageError
from casstore.identity.weights import weights_digest

ENCODER = DATA / "taef2" / "encoder.safetensors"


def state() -> dict[str, torch.Tensor]:
    """A small state dict, equal every time."""
    return {
        "conv.weight": torch.arange(24, dtype=torch.float32).reshape(2, 3, 4),
        "conv.bias": torch.tensor([1.0, -0.0], dtype=torch.bfloat16),
        "steps": torch.tensor(7),
        "empty": torch.empty(0, 3),
    }


def with_flipped_bit(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that differs in the lowest bit of its first byte."""
    copy = tensor.clone()
    copy.view(torch.uint8).view(-1)[0] ^= 1
    return copy


def test_the_digest_is_blake3_of_heads_and_bytes() -> None:
    """Per tensor in the order of names: length and text of [name, dtype, shape], then the bytes."""
    hasher = blake3(derive_key_context="casstore weights 1")
    for head, data in ((b'["a","U8",[2]]', b"\1\2"), (b'["b","F32",[]]', b"\0\0\x80\x3f")):
        hasher.update(len(head).to_bytes(8, "little") + head + data)
    weights = {"b": torch.tensor(1.0), "a": torch.tensor([1, 2], dtype=torch.uint8)}
    assert weights_digest(weights) == hasher.hexdigest()


def test_the_order_of_the_dict_does_not_matter() -> None:
    """A state dict that was filled in another order is the same model."""
    assert weights_digest(dict(reversed(state().items()))) == weights_digest(state())


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update({"conv.weight": with_flipped_bit(s["conv.weight"])}),
        lambda s: s.update({"conv.bias": s["conv.bias"].abs()}),
        lambda s: s.update({"conv.bias2": s.pop("conv.bias")}),
        lambda s: s.update({"conv.bias": s["conv.bias"].view(torch.float16)}),
        lambda s: s.update({"conv.weight": s["conv.weight"].reshape(3, 2, 4)}),
        lambda s: s.update({"empty": torch.empty(3, 0)}),
        lambda s: s.pop("empty"),
        lambda s: s.update({"further": torch.empty(0)}),
    ],
    ids=["bit", "sign of zero", "name", "dtype", "shape", "shape of nothing", "one less", "one more"],
)
def test_any_change_of_the_model_changes_the_digest(change: Any) -> None:
    """One bit, name, dtype, shape or entry is enough."""
    changed = state()
    change(changed)
    assert weights_digest(changed) != weights_digest(state())


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.repeat_interleave(2, -1)[..., ::2],
        lambda t: t.mT.contiguous().mT,
        lambda t: torch.cat([t, t])[2:],
        lambda t: torch._neg_view(-t),
        lambda t: t.clone().requires_grad_(),
        torch.nn.Parameter,
    ],
    ids=["strided", "transposed", "offset", "negated", "requires grad", "parameter"],
)
def test_how_a_tensor_lies_in_memory_does_not_matter(view: Any) -> None:
    """Views with equal values have equal digests."""
    tensor = state()["conv.weight"]
    assert weights_digest({"w": view(tensor)}) == weights_digest({"w": tensor})


def test_a_column_of_a_single_row_is_digested_like_any_tensor() -> None:
    """A tensor of one element may have any stride; it equals a fresh one."""
    column = torch.arange(5.0).reshape(1, 5)[:, 2]
    assert column.stride() == (5,)
    assert weights_digest({"w": column}) == weights_digest({"w": torch.tensor([2.0])})


def test_a_module_is_its_state_dict() -> None:
    """A module and its state dict, buffers included, have one digest; computing it changes nothing in the module."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = weights_digest(dict(module.state_dict()))
    assert weights_digest(module) == before == weights_digest(module.state_dict())
    assert all(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize(
    "entry",
    [3, None, [1.0], torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")],
    ids=["int", "None", "list", "sparse", "meta"],
)
def test_an_entry_without_plain_bytes_is_refused_by_name(entry: Any) -> None:
    """What isn't a tensor with bytes of its own is a UsageError that names the entry."""
    with pytest.raises(UsageError, match="'extra'"):
        weights_digest({**state(), "extra": entry})


@pytest.mark.parametrize("weights", [{}, None, b"model.safetensors", [torch.ones(1)], torch.nn.ReLU()], ids=repr)
def test_what_is_no_model_is_refused(weights: Any) -> None:
    """Only a module or a filled state dict has weights."""
    with pytest.raises(UsageError, match="state dict or a module"):
        weights_digest(weights)


@pytest.mark.skipif(not ENCODER.is_file(), reason=f"the real weights aren't at {ENCODER}")
def test_every_tensor_of_a_real_model_counts() -> None:
    """Two loads of a real file agree in reversed order, and a bit in any tensor is noticed."""
    from safetensors.torch import load_file

    weights = load_file(ENCODER)
    digest = weights_digest(weights)
    assert weights_digest(dict(reversed(load_file(ENCODER).items()))) == digest
    for name in list(weights)[::8]:
        assert weights_digest({**weights, name: with_flipped_bit(weights[name])}) != digest, name
