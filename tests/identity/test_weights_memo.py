"""A digest of weights is computed once, and again when anything has changed that can be seen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit import spy
from torch import nn

from casstore.errors import UsageError
from casstore.identity import weights_memo
from casstore.identity.weights import weights_digest

LARGE = 100_000  # elements; much more than a sample has


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each time that tensors are hashed whole."""
    return spy(monkeypatch, "casstore.identity.weights.hash_tensors")


def model() -> nn.Module:
    """Parameters, buffers that are saved, and a parameter that is used twice."""
    made = nn.Sequential(nn.Linear(300, 200), nn.BatchNorm1d(200), nn.Linear(200, 200))
    made.append(made[2])
    return made


def test_a_module_that_stays_as_it_is_is_hashed_once(hashed: list[Any]) -> None:
    """Asked again, also after work that writes nothing, it has the same digest for next to nothing."""
    module = model().eval()
    digest = weights_digest(module)
    module(torch.ones(2, 300))
    assert weights_digest(module) == digest
    assert len(hashed) == 1


def test_a_state_dict_is_known_by_its_tensors(hashed: list[Any]) -> None:
    """The dict may be another one, in another order, as long as the tensors are the same objects."""
    state = {"a": torch.ones(3), "b": torch.zeros(4)}
    assert weights_digest(state) == weights_digest(dict(reversed(state.items())))
    assert len(hashed) == 1
    assert weights_digest({"b": state["a"], "a": state["b"]}) != weights_digest(state)


@torch.no_grad()
def _grow(module: nn.Module) -> None:
    module[0].weight[150, 7] += 1  # type: ignore[index]


def _train(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.ones(2, 300)).sum().backward()
    optimizer.step()


def _load(module: nn.Module) -> None:
    module.load_state_dict({name: tensor + 1 for name, tensor in module.state_dict().items()})


def _replace(module: nn.Module) -> None:
    module[0].bias = nn.Parameter(torch.ones(200))  # type: ignore[union-attr]


def _point_elsewhere(module: nn.Module) -> None:
    module[0].weight.data = torch.ones(200, 300)  # type: ignore[union-attr]


def _through_data(module: nn.Module) -> None:
    module[0].weight.data.mul_(2)  # type: ignore[union-attr,operator]


def _rename(module: nn.Module) -> None:
    module.register_module("last", module[2])  # type: ignore[index]


def _half(module: nn.Module) -> None:
    module.half()


def _count_a_batch(module: nn.Module) -> None:
    module(torch.ones(2, 300))  # in training, batch norms keep statistics


@pytest.mark.parametrize(
    "change",
    [_grow, _train, _load, _replace, _point_elsewhere, _through_data, _rename, _half, _count_a_batch],
    ids=lambda change: change.__name__,
)
def test_a_change_of_a_module_is_seen(change: Callable[[nn.Module], None]) -> None:
    """Writes, training, loading, other tensors, names and dtypes: the next digest is that of the module as it is."""
    module = model()
    before = weights_digest(module)
    change(module)
    after = weights_digest(module)
    assert after != before and after == weights_digest(module, fresh=True)


def test_a_write_past_pytorch_is_seen_in_the_sample_only() -> None:
    """Through `.data`, the first and the last element are in the sample; one far from both isn't, unless fresh."""
    for place in (0, LARGE - 1):
        state = {"w": torch.zeros(LARGE)}
        before = weights_digest(state)
        state["w"].data[place] = 1
        assert weights_digest(state) != before
    state = {"w": torch.zeros(LARGE)}
    before = weights_digest(state)
    state["w"].data[LARGE // 2 + 700] = 1
    assert weights_digest(state) == before
    assert weights_digest(state, fresh=True) != before
    assert weights_digest(state) != before, "what was found fresh is remembered"


def test_a_new_tensor_in_the_memory_of_an_old_one_is_another() -> None:
    """Storage, version, shape and sample may all be as before: only the very same tensor object is believed."""
    memory = torch.zeros(LARGE)
    one, other = memory[:], memory[:]
    before = weights_digest({"w": one})
    memory.data[LARGE // 2 + 700] = 1
    weights_memo._known[(id(other),)] = weights_memo._known[(id(one),)]  # as if it had got the id of the first
    assert weights_digest({"w": other}) != before


def test_nothing_is_kept_alive() -> None:
    """A module goes when its last user lets it go, and what was remembered of it goes too."""
    gc.collect()
    known = len(weights_memo._known)
    module = model()
    weights_digest(module)
    assert len(weights_memo._known) == known + 1
    watched = weakref.ref(module[0].weight)  # type: ignore[index]
    del module
    gc.collect()
    assert watched() is None and len(weights_memo._known) == known


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(2, 3, 4).mT,
        torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last),
        torch.arange(10_000.0)[::3],
        torch.tensor(1.0),
        torch.empty(0),
        torch.ones(1).expand(4000),
        torch.arange(10_000.0)[5000:],
    ],
    ids=["transposed", "channels last", "strided", "scalar", "empty", "expanded", "offset"],
)
def test_the_sample_is_of_any_tensor(tensor: torch.Tensor, hashed: list[Any]) -> None:
    """However a tensor lies in memory, it is remembered, and a write through `.data` to its end is seen."""
    state = {"t": tensor}
    first = weights_digest(state)
    assert weights_digest(state) == first and len(hashed) == 1
    if tensor.numel():
        tensor.data[(-1,) * tensor.dim()] += 1
        assert weights_digest(state) != first


def test_the_sample_on_another_device_is_the_same_bytes() -> None:
    """What is gathered on a device is what would be read from memory, for views with an offset too."""
    whole = torch.arange(LARGE, dtype=torch.int16)
    tensors = [whole[7:], whole[:100], torch.tensor(3.0)]
    raw = [tensor.numpy().tobytes() for tensor in tensors]
    wanted = b"".join(data[begin:end] for data in raw for begin, end in weights_memo.pieces(len(data)))
    assert weights_memo.sampled_there([(tensor, tensor.nbytes) for tensor in tensors]) == wanted


@pytest.mark.parametrize("nbytes", [1, 4096, 4097, 5000, 1 << 20])
def test_a_sample_reaches_from_the_beginning_to_the_end(nbytes: int) -> None:
    """It is all of a small tensor, and 4 KiB of a large one, first and last byte included."""
    found = weights_memo.pieces(nbytes)
    assert (found[0][0], found[-1][1]) == (0, nbytes)
    assert sum(end - begin for begin, end in found) == min(nbytes, 4096)


class Wrapped(torch.Tensor):
    """A subclass, which may keep its numbers anywhere."""


def test_tensors_without_a_version_are_hashed_each_time(hashed: list[Any]) -> None:
    """Inference tensors and subclasses can't be watched; their digest is right all the same."""
    with torch.inference_mode():
        state = {"w": torch.ones(3)}
    plain = weights_digest({"w": torch.ones(3)})
    for tensors in (state, {"w": torch.ones(3).as_subclass(Wrapped)}):
        assert weights_digest(tensors) == weights_digest(tensors) == plain
    assert len(hashed) == 5


# -- modules ---------------------------------------------------------------------------------------------------------


class Rotary(nn.Module):
    """A parameter, and a buffer that its state dict doesn't have."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("frequencies", torch.tensor([frequency]), persistent=False)


def test_a_buffer_that_is_not_saved_counts() -> None:
    """Two modules with one state dict differ if such a buffer does, and both differ from the state dict alone."""
    one, other = Rotary(1.0), Rotary(2.0)
    assert len({weights_digest(one), weights_digest(other), weights_digest(one.state_dict())}) == 3
    assert weights_digest(one) == weights_digest({**one.state_dict(), "frequencies": torch.tensor([1.0])})


class SavedOtherwise(nn.Linear):
    """A module that saves what it makes for the purpose."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {name: tensor * 2 for name, tensor in super().state_dict(*args, **options).items()}


def test_a_module_that_saves_in_a_way_of_its_own_is_what_it_saves() -> None:
    """Tensors made by `state_dict()` count as they are, and their changes are seen."""
    module = SavedOtherwise(3, 2)
    assert weights_digest(module) == weights_digest(module.state_dict())
    before = weights_digest(module)
    module.weight.data[1, 1] += 1
    assert weights_digest(module) not in (before, weights_digest(nn.Linear(3, 2)))


class WithExtra(nn.Linear):
    """A module whose state dict has more than tensors."""

    def get_extra_state(self) -> Any:
        return {"any": 1}


def test_an_extra_state_that_is_no_tensor_is_refused_by_name() -> None:
    """What `get_extra_state` adds to a state dict has no bytes of its own."""
    with pytest.raises(UsageError, match="_extra_state"):
        weights_digest(WithExtra(1, 1))
