"""trim_padding: the forward of the real tokens only, equal to the whole one where it counts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from causal import CLOSE, LENGTH, WIDTH, causal, prompt, prompts, stacked
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from casstore.encoders.padding import trim_padding
from casstore.errors import EncoderError, UsageError

REAL = st.integers(1, LENGTH)


@st.composite
def masks(draw: st.DrawFn) -> Tensor:
    """Masks [N, L] of any kind: prefixes, holes, padding on the left, all, nothing."""
    row = st.integers(0, LENGTH).map(lambda n: [1] * n + [0] * (LENGTH - n))
    other = st.lists(st.integers(0, 1), min_size=LENGTH, max_size=LENGTH)
    return torch.tensor(draw(st.lists(row | other, min_size=1, max_size=4)))


def tokens_for(mask: Tensor, seed: int = 0) -> Tensor:
    """Random tokens, also where the mask has padding: nothing may depend on these."""
    return torch.randint(1, 50, mask.shape, generator=torch.Generator().manual_seed(seed))


def length_of(row: Tensor) -> int:
    """How much of an item counts: its ones if they are a prefix, else all."""
    ones = int(row.sum())
    return ones if ones and bool(row[:ones].all()) else LENGTH


@given(st.lists(REAL, min_size=1, max_size=5), st.integers(0, 99))
def test_real_tokens_get_what_the_whole_forward_gives(lengths: list[int], seed: int) -> None:
    """For any lengths: equal on the real tokens, zero behind them, and of the shape of the whole forward."""
    tokens, mask = stacked([prompt(real, seed=seed + i) for i, real in enumerate(lengths)])
    whole = causal().last(tokens, mask)
    found = trim_padding(causal().last, tokens, mask)
    assert (found.shape, found.dtype) == (whole.shape, whole.dtype)
    for i, real in enumerate(lengths):
        torch.testing.assert_close(found[i, :real], whole[i, :real], **CLOSE)
        assert not found[i, real:].any()


@given(st.lists(REAL, min_size=1, max_size=5))
def test_the_forward_sees_no_more_than_the_longest(lengths: list[int]) -> None:
    """It is called once, with the longest real prefix of the batch."""
    tokens, mask = stacked([prompt(real) for real in lengths])
    seen = []
    trim_padding(lambda t, m: seen.append((t, m)) or t, tokens, mask)  # type: ignore[func-returns-value]
    ((cut_tokens, cut_mask),) = seen
    longest = max(lengths)
    assert torch.equal(cut_tokens, tokens[:, :longest]) and torch.equal(cut_mask, mask[:, :longest])


@given(masks(), st.integers(0, 99))
def test_a_result_does_not_depend_on_the_rest_of_the_batch(mask: Tensor, seed: int) -> None:
    """Whatever masks are mixed, an item gets what it gets alone: zeros behind a prefix, all of it otherwise."""
    tokens = tokens_for(mask, seed)
    together = trim_padding(causal().last, tokens, mask)
    for i, row in enumerate(mask):
        alone = trim_padding(causal().last, tokens[i : i + 1], mask[i : i + 1])[0]
        torch.testing.assert_close(together[i], alone, **CLOSE)
        assert not together[i, length_of(row) :].any()


@pytest.mark.parametrize("zeros", [[5], [0, 1], [0, 11], list(range(12)), [3, 10, 11]])
def test_a_mask_that_is_no_prefix_falls_back_to_the_whole_forward(zeros: list[int]) -> None:
    """Holes, padding on the left, or no real token: nothing is cut and nothing of this item is zeroed."""
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[0, zeros] = 0
    tokens = tokens_for(mask)
    before = len(causal().shapes)
    found = trim_padding(causal().last, tokens, mask)
    assert causal().shapes[before:] == [(1, LENGTH)]
    assert torch.equal(found, causal().last(tokens, mask))


def test_an_item_with_holes_does_not_fill_the_tails_of_the_others() -> None:
    """In one batch with an item that can't be cut, the others are still zero behind their own last token."""
    tokens, mask = stacked([prompt(4, seed=1), prompt(12, seed=2), prompt(7, seed=3)])
    mask[1, 5] = 0
    whole = causal().last(tokens, mask)
    found = trim_padding(causal().last, tokens, mask)
    assert torch.equal(found[1], whole[1])
    for i, real in ((0, 4), (2, 7)):
        assert torch.equal(found[i, :real], whole[i, :real]) and not found[i, real:].any()


def test_nan_behind_the_last_token_is_zero_too() -> None:
    """What the encoder computes for padding, be it NaN, isn't in the result."""
    tokens, mask = stacked([prompt(3), prompt(6)])

    def forward(tokens: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask.bool(), 1.0, torch.nan)[..., None]

    assert torch.equal(trim_padding(forward, tokens, mask), mask[..., None].float())


def test_a_batch_without_padding_is_returned_as_it_is() -> None:
    """Nothing to trim: the very tensor of the forward, not a copy."""
    tokens, mask = stacked([prompt(LENGTH), prompt(LENGTH)])
    made = causal().last(tokens, mask)
    assert trim_padding(lambda tokens, mask: made, tokens, mask) is made


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16])
def test_masks_of_any_dtype(dtype: torch.dtype) -> None:
    """A mask of ones and zeros is one, whatever its dtype, and the forward gets it as it is."""
    tokens, mask = stacked(prompts(3))
    seen: list[torch.dtype] = []

    def forward(tokens: Tensor, mask: Tensor) -> Tensor:
        seen.append(mask.dtype)
        return causal().last(tokens, mask)

    assert torch.equal(trim_padding(forward, tokens, mask.to(dtype)), trim_padding(causal().last, tokens, mask))
    assert seen == [dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_outputs_of_any_dtype(dtype: torch.dtype) -> None:
    """The padded output has the dtype of the output."""
    tokens, mask = stacked(prompts(3))
    found = trim_padding(lambda tokens, mask: (tokens + 1).to(dtype), tokens, mask)
    assert found.dtype == dtype and torch.equal(found, ((tokens + 1) * mask).to(dtype))


class Pair(NamedTuple):
    """An output with names."""

    hidden: Tensor
    more: Any


def test_structures_stay_what_they_are() -> None:
    """Tuples, named tuples, lists and dicts, nested, keep their class and order; None stays None."""
    tokens, mask = stacked([prompt(3), prompt(5)])

    def forward(tokens: Tensor, mask: Tensor) -> Any:
        states = causal()(tokens, mask)
        return OrderedDict(pair=Pair(states[0], None), all=tuple(states), some=[states[1]], plain={"x": states[1]})

    found = trim_padding(forward, tokens, mask)
    first, last = trim_padding(causal(), tokens, mask)
    assert [type(value) for value in (found, *found.values())] == [OrderedDict, Pair, tuple, list, dict]
    assert found["pair"].more is None and len(found["all"]) == 2
    for tensor, wanted in [
        (found["pair"].hidden, first),
        (found["all"][0], first),
        (found["all"][1], last),
        (found["some"][0], last),
        (found["plain"]["x"], last),
    ]:
        assert torch.equal(tensor, wanted)


def test_the_dict_of_the_forward_is_not_changed() -> None:
    """An encoder may keep what it returned."""
    tokens, mask = stacked([prompt(3)])
    kept = {"hidden": causal().last(tokens[:, :3], mask[:, :3])}
    found = trim_padding(lambda tokens, mask: kept, tokens, mask)
    assert kept["hidden"].shape[1] == 3 and found["hidden"].shape[1] == LENGTH


@pytest.mark.parametrize("pad_to", [LENGTH, LENGTH + 1, 40])
@pytest.mark.parametrize("lengths", [[3, 5], [LENGTH, 2], [LENGTH]])
def test_pad_to_is_the_length_of_the_result(pad_to: int, lengths: list[int]) -> None:
    """Results may be padded further than the tokens were, with zeros."""
    tokens, mask = stacked([prompt(real) for real in lengths])
    found = trim_padding(causal().last, tokens, mask, pad_to=pad_to)
    assert found.shape == (len(lengths), pad_to, WIDTH)
    assert torch.equal(found[:, :LENGTH], trim_padding(causal().last, tokens, mask))
    assert not found[:, LENGTH:].any()


@pytest.mark.parametrize("axis", [2, -1])
def test_the_length_may_be_another_axis(axis: int) -> None:
    """[N, C, L] is padded along L."""
    tokens, mask = stacked(prompts(4))
    found = trim_padding(lambda tokens, mask: causal().last(tokens, mask).mT, tokens, mask, axis=axis)
    assert torch.equal(found.mT, trim_padding(causal().last, tokens, mask))


def test_tokens_may_be_embedded_already() -> None:
    """[N, L, C] is cut along L as [N, L] is."""
    tokens, mask = stacked([prompt(3), prompt(5)])
    embedded = causal().words(tokens)
    found = trim_padding(lambda embedded, mask: embedded * 1, embedded, mask)
    assert torch.equal(found, embedded * mask[..., None])


@pytest.mark.parametrize("pooled", ["pooled", ["pooled"], ("pooled", "count")])
def test_a_pooled_output_passes_if_told(pooled: Any) -> None:
    """What is named in `pooled` is returned as it is, whatever it is; the rest is padded."""
    tokens, mask = stacked([prompt(3), prompt(5)])
    mean = torch.ones(2, WIDTH)

    def forward(tokens: Tensor, mask: Tensor) -> dict[str, Any]:
        return {"hidden": causal().last(tokens, mask), "pooled": mean} | ({"count": 2} if len(pooled) == 2 else {})

    found = trim_padding(forward, tokens, mask, pooled=pooled)
    assert found["pooled"] is mean and found["hidden"].shape == (2, LENGTH, WIDTH)


def test_a_position_can_be_pooled() -> None:
    """Of a tuple, outputs are named by position."""
    tokens, mask = stacked([prompt(3)])
    hidden, mean = trim_padding(lambda t, m: (causal().last(t, m), torch.ones(1, WIDTH)), tokens, mask, pooled=[1])
    assert (hidden.shape, mean.shape) == ((1, LENGTH, WIDTH), (1, WIDTH))


@pytest.mark.parametrize(
    "wrong", [torch.ones(2, WIDTH), torch.ones(2), torch.ones(()), torch.ones(3, 5, WIDTH), torch.ones(2, LENGTH, 1), 7]
)
def test_an_output_without_the_length_is_refused(wrong: Any) -> None:
    """Pooled without being told, another number of items, the whole length, no tensor: an error that names it."""
    tokens, mask = stacked([prompt(3), prompt(5)])
    with pytest.raises(EncoderError, match=r"the output\['odd'\].*pooled="):
        trim_padding(lambda tokens, mask: {"odd": wrong}, tokens, mask)


@pytest.mark.parametrize("pooled", ["poled", [1], ["hidden", 0]])
def test_a_pooled_name_that_is_not_there_is_refused(pooled: Any) -> None:
    """A name that is misspelt isn't silently nothing."""
    tokens, mask = stacked([prompt(3)])
    with pytest.raises(UsageError, match="pooled has"):
        trim_padding(lambda tokens, mask: {"hidden": causal().last(tokens, mask)}, tokens, mask, pooled=pooled)
    with pytest.raises(UsageError, match="one tensor"):
        trim_padding(causal().last, tokens, mask, pooled=pooled)


@pytest.mark.parametrize(
    ("tokens", "mask", "options", "told"),
    [
        (torch.ones(5), torch.ones(5), {}, r"\[N, L\]"),
        (torch.ones(2, 5), torch.ones(2, 4), {}, r"\[2, 5\] and mask \[2, 4\]"),
        (torch.ones(2, 5), torch.ones(5), {}, r"\[N, L\]"),
        (torch.ones(1, 2), torch.tensor([[0.0, -torch.inf]]), {}, "besides 1"),
        (torch.ones(1, 2), torch.tensor([[1, 2]]), {}, "besides 1"),
        (torch.ones(1, 2), torch.ones(1, 2), {"pad_to": 1}, "pad_to is 1"),
        (torch.ones(1, 2), torch.ones(1, 2), {"axis": 0}, "axis 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_the_forward(
    tokens: Tensor, mask: Tensor, options: dict[str, Any], told: str
) -> None:
    """Shapes that don't fit, additive masks, a pad_to that would cut tokens: UsageError, and nothing is encoded."""
    with pytest.raises(UsageError, match=told):
        trim_padding(lambda tokens, mask: pytest.fail("was called"), tokens, mask, **options)


def test_no_items_are_no_items() -> None:
    """An empty batch stays one."""
    tokens = torch.ones(0, LENGTH, dtype=torch.long)
    assert trim_padding(causal().last, tokens, tokens).shape == (0, LENGTH, WIDTH)


def test_gradients_pass() -> None:
    """Whoever trains through the encoder can."""
    tokens, mask = stacked([prompt(3), prompt(5)])
    embedded = causal().words(tokens).requires_grad_()
    trim_padding(lambda embedded, mask: embedded * 2, embedded, mask).sum().backward()
    assert embedded.grad is not None and torch.equal(embedded.grad, (mask * 2.0)[..., None].expand_as(embedded))
