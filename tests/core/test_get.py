"""Reading some of a result: by name, into the caller's memory, and its layout without a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
import torch
from core.helpers import RAW, RECIPE, examples, fast_folder, flipped, get, key, object_file, overwrite, put, sql
from hypothesis import given, settings

import casstore
from casstore.errors import CorruptObjectError, MissError, UsageError
from casstore.objects.container import frames_of
from casstore.objects.files import HEAD
from casstore.objects.payload import Layout

CODECS = {"zstd": RECIPE, "raw": RAW}
by_codec = pytest.mark.parametrize("codec", CODECS)


def store_one(store: casstore.Store, codec: str, result: dict[str, Any], name: str = "a") -> casstore.Key:
    with store.batch() as batch:
        batch.put(made := key(name, CODECS[codec]), result)
    return made


def large() -> dict[str, Any]:
    """Three tensors of 1.2 MiB that can't be compressed away, so the object is read in parts."""
    rng = np.random.default_rng(5)
    return {name: rng.standard_normal(300_000, np.float32) for name in ("a", "b", "c")}


def spans(store: casstore.Store, name: str) -> dict[str, tuple[int, int]]:
    """{tensor: (begin, end)} of its frames in a container."""
    path = object_file(store, name)
    data = path.read_bytes()
    ((text,),) = sql(store, "SELECT tensors FROM layouts JOIN objects ON layout_id = layouts.id")
    _, frames = frames_of(data, len(data), bytes.fromhex(path.stem), Layout.parse(text))
    return {name: (found[0].start, found[-1].start + found[-1].stored) for name, found in frames.items()}


# -- names -------------------------------------------------------------------------------------------------------------

TENSORS = {"a": np.arange(5, dtype=np.int16), "b": np.array(3, np.float32), "c": np.zeros((0, 2), bool)}
VALUES = {"v": [1, {"x": None}], "w": "text"}
SOME_NAMES = some.lists(some.sampled_from([*TENSORS, *VALUES]), max_size=4)


@pytest.fixture(scope="module")
def shared() -> Iterator[casstore.Store]:
    """One store that holds the same result in both forms (with a tensor that tells them apart)."""
    with fast_folder() as folder, casstore.open(folder / "s", create=True, durability="off") as store:
        for codec in CODECS:
            store_one(store, codec, {**TENSORS, "of": np.frombuffer(codec[:3].encode(), np.uint8), **VALUES}, codec)
        yield store


@settings(max_examples=examples(60))
@given(
    some.sampled_from(list(CODECS)), some.none() | SOME_NAMES, some.sets(some.sampled_from(list(TENSORS))),
    some.booleans(), some.booleans(),
)  # fmt: skip
def test_any_choice_of_names_and_memory_gives_just_these(
    shared: casstore.Store, codec: str, names: list[str] | None, own: set[str], of_torch: bool, as_numpy: bool
) -> None:
    """What was named, or is to be read into memory, comes with its own value, and nothing else comes."""
    out: dict[str, Any] = {name: np.ones_like(TENSORS[name]) for name in own}
    if of_torch:
        out = {name: torch.from_numpy(array) for name, array in out.items()}
    found = shared.get(key(codec), names=names, out=out, as_numpy=as_numpy)
    assert found.keys() == ({*TENSORS, *VALUES, "of"} if names is None else {*names, *own})
    for name, tensor in TENSORS.items():
        if name in found:
            assert isinstance(found[name], type(out[name]) if name in own else np.ndarray if as_numpy else torch.Tensor)
            assert name not in own or found[name] is out[name]
            plain = np.asarray(found[name])
            assert (plain.dtype, plain.shape, plain.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes())
    assert {name: found[name] for name in VALUES if name in found} == {
        name: value for name, value in VALUES.items() if name in found
    }


@by_codec
@pytest.mark.parametrize("where", ["names", "out"])
def test_an_unknown_name_is_refused_with_a_list_of_what_there_is(store: casstore.Store, codec: str, where: str) -> None:
    """A name that isn't stored is a usage error that lists all names, also where other names are right."""
    asked = store_one(store, codec, {"t": np.ones(3), "u": np.ones(2), "v": 1})
    options: Any = {"names": ["t", "z"]} if where == "names" else {"out": {"t": np.zeros(3), "z": np.zeros(3)}}
    with pytest.raises(UsageError, match="has no 'z'; it has t, u, v"):
        store.get(asked, **options)
    with pytest.raises(UsageError, match="has no 'z'; it has t, u, v"):
        store.get_many([asked], **{k: (v if k == "names" else {"z": np.zeros((1, 3))}) for k, v in options.items()})


@by_codec
def test_a_value_cant_be_read_into_memory(store: casstore.Store, codec: str) -> None:
    """A value named in `out` is refused, where a silent return would leave the caller's memory as it was."""
    asked = store_one(store, codec, {"t": np.ones(3), "n": 1})
    with pytest.raises(UsageError, match="'n'"):
        store.get(asked, out={"n": np.zeros(())})
    with pytest.raises(UsageError, match="'n'"):
        store.get_many([asked], out={"n": np.zeros(1)})


def test_of_a_large_object_only_the_frames_that_are_asked_for_are_read(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the table's page not a byte of another tensor's frames is read from a container beyond 1 MiB."""
    asked = store_one(store, "zstd", large())
    places, seen, real = spans(store, "a"), [], os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        count = real(descriptor, buffers, offset)
        seen.append((offset, offset + count))
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    for name in places:
        seen.clear()
        assert store.get(asked, names=[name], as_numpy=True).keys() == {name}
        others = [(max(begin, HEAD), end) for other, (begin, end) in places.items() if other != name]
        assert seen and not any(b < end and begin < e for b, e in seen for begin, end in others)


def test_damage_in_a_tensor_that_isnt_asked_for_costs_the_others_nothing(store: casstore.Store) -> None:
    """With any bit of a large tensor's frames flipped the others are served, and only asking for it is a miss."""
    asked, made = store_one(store, "zstd", large()), large()
    path, (begin, end) = object_file(store, "a"), spans(store, "a")["b"]
    data = path.read_bytes()
    for position in (begin, (begin + end) // 2, end - 1):
        overwrite(path, flipped(data, position, 3))
        for name in ("a", "c"):
            assert np.array_equal(store.get(asked, names=[name], as_numpy=True)[name], made[name])
        assert store.status().damaged == 0
        with pytest.raises(MissError) as caught:
            store.get(asked, names=["b"])
        assert caught.value.miss is not None and caught.value.miss.reason == "damaged"
        assert store.status().damaged == 1
        sql(store, "UPDATE objects SET damaged_at = NULL")


def test_a_raw_object_is_checked_as_a_whole_whatever_is_asked_for(store: casstore.Store) -> None:
    """Its one checksum is of all tensors, so damage in another is a miss, too."""
    asked = store_one(store, "raw", large())
    path = object_file(store, "a")
    data = path.read_bytes()
    overwrite(path, flipped(data, len(data) - 1))
    with pytest.raises(MissError) as caught:
        store.get(asked, names=["a"])
    assert caught.value.miss is not None and caught.value.miss.reason == "damaged"


# -- layout ------------------------------------------------------------------------------------------------------------


@by_codec
def test_a_layout_comes_without_the_file(store: casstore.Store, codec: str) -> None:
    """Dtypes and shapes of an object are told from the index, also when its file is gone."""
    asked = store_one(store, codec, {"t": torch.zeros(2, 3, dtype=torch.bfloat16), "e": np.zeros((0,), bool), "n": 1})
    object_file(store, "a").unlink()
    hit = store.lookup(asked)
    assert isinstance(hit, casstore.Hit)
    found = store.layout(hit.digests[0])
    assert found is not None
    assert {name: (info.dtype, info.shape) for name, info in found.items()} == {
        "t": ("BF16", (2, 3)),
        "e": ("BOOL", (0,)),
    }
    assert store.layout(hit.digests[0].upper()) == found


def test_an_unknown_digest_has_no_layout(store: casstore.Store) -> None:
    """A digest that the store doesn't hold gives None."""
    assert store.layout("ab" * 32) is None


@pytest.mark.parametrize("nonsense", ["", "ab" * 31, "ab" * 33, "xy" * 32, "ab " * 32, "é" * 64, 7, None, bytes(32)])
def test_what_is_no_digest_is_refused(store: casstore.Store, nonsense: Any) -> None:
    """Anything but 64 hex digits is a usage error that says so."""
    with pytest.raises(UsageError, match="64 hex digits"):
        store.layout(nonsense)


@pytest.mark.parametrize("change", ["F64", "garbage"])
def test_a_layout_whose_row_was_changed_isnt_told(store: casstore.Store, change: str) -> None:
    """Text in the index that doesn't match its digest is an error, readable or not, never another dtype."""
    asked = store_one(store, "zstd", {"t": np.zeros(2, np.int64)})
    hit = store.lookup(asked)
    assert isinstance(hit, casstore.Hit)
    new = "replace(tensors, 'I64', 'F64')" if change == "F64" else "substr(tensors, 3)"
    sql(store, f"UPDATE layouts SET tensors = {new}")
    with pytest.raises(CorruptObjectError):
        store.layout(hit.digests[0])


# -- into the caller's memory ------------------------------------------------------------------------------------------

DTYPES = ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "complex64", "bool", "int64", "uint8"]


@by_codec
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 1, 3), (1,)])
def test_the_callers_tensor_is_returned_and_holds_the_stored_bits(
    shared: casstore.Store, codec: str, dtype: str, shape: tuple[int, ...]
) -> None:
    """Each dtype, rank 0 and empty included, is read into the given tensor and nowhere else."""
    bits = torch.arange(96, dtype=torch.uint8) % 2  # sound for bool, finite for all
    kind = getattr(torch, dtype)
    count = int(np.prod(shape))
    made = bits[: count * kind.itemsize].view(kind).reshape(shape) if count else torch.zeros(shape, dtype=kind)
    asked = store_one(shared, codec, {"t": made, "u": torch.ones(3)}, f"{dtype} {shape} {codec}")
    out = torch.zeros(shape, dtype=kind)
    found = shared.get(asked, out={"t": out})
    assert found["t"] is out
    assert torch.equal(out.reshape(-1).view(torch.uint8), made.reshape(-1).view(torch.uint8))
    assert torch.equal(found["u"], torch.ones(3))


@by_codec
def test_a_tensor_with_a_gradient_and_a_slice_of_a_batch_can_be_read_into(store: casstore.Store, codec: str) -> None:
    """Parameters are filled without autograd minding, and of a batch only the slot that was given changes."""
    made = torch.arange(6.0).reshape(2, 3)
    asked = store_one(store, codec, {"t": made})
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    assert store.get(asked, out={"t": parameter})["t"] is parameter
    assert parameter.requires_grad and torch.equal(parameter.detach(), made)
    batch = torch.full((3, 2, 3), 7.0)
    store.get(asked, out={"t": batch[1]})
    assert torch.equal(batch, torch.stack([torch.full((2, 3), 7.0), made, torch.full((2, 3), 7.0)]))


def read_only() -> np.ndarray[Any, Any]:
    array = np.zeros((4, 6), np.float32)
    array.flags.writeable = False
    return array


UNFIT: dict[str, Callable[[], Any]] = {
    "another dtype": lambda: np.zeros((4, 6), np.int32),
    "a wider dtype": lambda: torch.zeros(4, 6, dtype=torch.float64),
    "bytes": lambda: np.zeros((4, 24), np.uint8),
    "another shape": lambda: np.zeros((6, 4), np.float32),
    "flat": lambda: torch.zeros(24),
    "too few": lambda: torch.zeros(3, 6),
    "an axis more": lambda: np.zeros((1, 4, 6), np.float32),
    "transposed": lambda: torch.zeros(6, 4).T,
    "transposed array": lambda: np.zeros((6, 4), np.float32).T,
    "every second": lambda: np.zeros((4, 12), np.float32)[:, ::2],
    "expanded": lambda: torch.zeros(1, 6).expand(4, 6),
    "read-only": read_only,
    "big endian": lambda: np.zeros((4, 6), ">f4"),
    "objects": lambda: np.zeros((4, 6), object),
    "text": lambda: np.zeros((4, 6), "<U1"),
    "masked": lambda: np.ma.masked_all((4, 6), np.float32),
    "no memory": lambda: torch.zeros(4, 6, device="meta"),
    "sparse": lambda: torch.zeros(4, 6).to_sparse(),
    "negated view": lambda: torch._neg_view(torch.zeros(4, 6)),
    "conjugated view": lambda: torch.zeros(4, 6, dtype=torch.complex64).conj(),
    "a list": lambda: [[0.0] * 6] * 4,
    "None": lambda: None,
}


@by_codec
@pytest.mark.parametrize("kind", UNFIT)
def test_memory_that_doesnt_fit_is_refused_and_nothing_is_written(
    shared: casstore.Store, codec: str, kind: str
) -> None:
    """A wrong dtype, shape, stride, device or kind of memory is a usage error that names the tensor, before any memory
    that was given, fitting or not, is touched."""
    dtype = np.complex64 if kind == "conjugated view" else np.float32
    made = {"t": np.ones((4, 6), dtype), "first": np.ones(5), "last": np.ones(5, bool)}
    asked = store_one(shared, codec, made, f"{kind} {codec}")
    unfit, fitting = UNFIT[kind](), {"first": np.zeros(5), "last": np.zeros(5, bool)}
    with pytest.raises(UsageError, match=r"out\['t'\]"):
        shared.get(asked, out={"t": unfit, **fitting})
    assert not fitting["first"].any() and not fitting["last"].any()
    if isinstance(unfit, np.ndarray) and kind not in ("objects", "text", "masked"):
        assert not unfit.any()
    if isinstance(unfit, torch.Tensor) and kind != "no memory":
        assert not unfit.to_dense().resolve_conj().resolve_neg().any()


def test_results_are_on_the_cpu_whatever_torchs_default_device_is(store: casstore.Store) -> None:
    """A default device that a training script has set doesn't reach into the store, for reading or for putting."""
    made = {
        "t": torch.ones(3),
        "s": torch.tensor(2.0),
        "e": torch.zeros(0, 2),
        "f": torch.ones(2).to(torch.float8_e5m2),
    }
    raw = {"t": torch.ones(4), "e": torch.zeros(0, 2)}
    previous = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        one, other = store_one(store, "zstd", made), store_one(store, "raw", raw, "b")
        found = [store.get(one), store.get(other), store.get(other, mmap=True), *store.get_many([one, other])]
    finally:
        torch.set_default_device(previous)
    for result, right in zip(found, [made, raw, raw, made, raw], strict=True):
        assert all(torch.equal(result[name].view(torch.uint8) if tensor.dim() else result[name],
                               tensor.view(torch.uint8) if tensor.dim() else tensor)
                   for name, tensor in right.items())  # fmt: skip


def test_a_damaged_object_is_a_miss_whatever_memory_was_given(store: casstore.Store) -> None:
    """With `out`, too, no bytes are served that fail their checksum."""
    asked = store_one(store, "zstd", {"t": np.arange(99)})
    path = object_file(store, "a")
    overwrite(path, flipped(path.read_bytes(), path.stat().st_size - 1))
    with pytest.raises(MissError):
        store.get(asked, out={"t": np.zeros(99, np.int64)})
    assert get(store, "a") == "damaged"
    put(store, a={"t": np.arange(99)})
    out = np.zeros(99, np.int64)
    assert store.get(asked, out={"t": out})["t"] is out and np.array_equal(out, np.arange(99))
