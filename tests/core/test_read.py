"""Reading: what was stored, or a miss with its reason; never anything else."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as some
import numpy as np
import pytest
from core.helpers import (
    child,
    examples,
    expect,
    fast_folder,
    flipped,
    get,
    handle_of,
    in_child,
    key,
    object_file,
    overwrite,
    plain,
    put,
    result,
    sql,
)
from hypothesis import given, settings

import casstore
from casstore.core import read
from casstore.errors import MissError, UsageError
from casstore.index.tables import metadata

# -- round trips -------------------------------------------------------------------------------------------------------

DTYPES = some.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="?"),
    arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)
TENSORS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
NAMES = some.text(some.characters(exclude_characters=".", codec="utf-8"), min_size=1, max_size=8).filter(
    lambda name: unicodedata.is_normalized("NFC", name)
)
JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**53), 2**53) | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(some.characters(codec="utf-8"), max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[casstore.Store]:
    """One store for all examples of this module; each uses keys of its own."""
    with fast_folder() as folder, casstore.open(folder / "s", create=True, durability="off") as store:
        yield store


@settings(max_examples=examples(60))
@given(
    some.dictionaries(NAMES, TENSORS, min_size=1, max_size=3),
    some.dictionaries(NAMES, JSON, max_size=3),
    some.text(max_size=20),
)
def test_every_result_comes_back_bit_by_bit(
    shared: casstore.Store, tensors: dict[str, Any], values: dict[str, Any], text: str
) -> None:
    """Random tensors (NaN and byte order included) and values under a random text come back equal, of equal types."""
    values = {name: value for name, value in values.items() if name not in tensors}
    shared.forget(key(text)).execute()
    with shared.batch() as batch:
        batch.put(key(text), tensors | values, allow_nonfinite=True)
    found = shared.get(key(text), as_numpy=True)
    assert found.keys() == tensors.keys() | values.keys()
    for name, tensor in tensors.items():
        native = tensor.astype(tensor.dtype.newbyteorder("="))
        assert (found[name].dtype, found[name].shape) == (native.dtype, native.shape)
        assert found[name].tobytes() == native.tobytes()
    returned = {name: found[name] for name in values}
    assert json.dumps(returned, sort_keys=True) == json.dumps(values, sort_keys=True)


def test_get_returns_torch_tensors_that_own_their_memory(store: casstore.Store) -> None:
    """Changing one returned tensor changes neither another of the same result nor what the next get returns."""
    import torch

    made = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.ones(3, dtype=torch.bfloat16)}
    with store.batch() as batch:
        batch.put(key("k"), made)
    found = store.get(key("k"))
    found["a"].zero_()
    assert torch.equal(found["b"], made["b"])
    assert torch.equal(store.get(key("k"))["a"], made["a"])


def test_lookup_tells_dtypes_shapes_and_values_without_the_files(store: casstore.Store) -> None:
    """A Hit comes from the index alone: the object's file isn't opened, it may even be gone."""
    put(store, a={"t": np.zeros((2, 3), np.float32), "n": [1]})
    object_file(store, "a").unlink()
    hit = store.lookup(key("a"))
    assert isinstance(hit, casstore.Hit)
    assert {name: (info.dtype, info.shape) for name, info in hit.layout.items()} == {"t": ("F32", (2, 3))}
    assert hit.values == {"n": [1]}


def test_a_miss_is_a_key_error_that_carries_its_reason(store: casstore.Store) -> None:
    """What was never stored raises a MissError whose `miss` equals the answer of lookup."""
    with pytest.raises(KeyError) as caught:
        store.get(key("a"))
    assert isinstance(caught.value, MissError)
    assert caught.value.miss == store.lookup(key("a")) == casstore.Miss("new")


def test_keys_that_differ_in_one_part_never_answer_for_each_other(store: casstore.Store) -> None:
    """Content, kind, recipe, resolution, variation and params each tell keys apart; the misses say what is stored."""
    other = casstore.Recipe("r", code=2)
    content = casstore.model.Content("file", bytes(32), 1)
    kept = casstore.Key.content(content, casstore.Recipe("r"), resolution="64x64")
    near = {
        "resolution": casstore.Key.content(content, casstore.Recipe("r"), resolution="64x128"),
        "variation": casstore.Key.content(content, casstore.Recipe("r"), resolution="64x64", variation=1),
        "recipe": casstore.Key.content(content, other, resolution="64x64"),
    }
    unlike = [
        casstore.Key.content(casstore.model.Content("file", bytes(31) + b"1", 1), casstore.Recipe("r")),
        casstore.Key.content(casstore.model.Content("text", bytes(32), 1), casstore.Recipe("s"), resolution="64x64"),
    ]
    with store.batch() as batch:
        batch.put(kept, result("kept"))
    found = {reason: store.lookup(asked) for reason, asked in near.items()}
    assert {reason: miss.reason for reason, miss in found.items() if isinstance(miss, casstore.Miss)} == {
        reason: reason for reason in near
    }
    assert [store.lookup(asked) for asked in unlike] == [casstore.Miss("new")] * 2
    assert plain(store.get(kept, as_numpy=True)) == expect("kept")


def test_a_key_brings_its_recipe_and_a_path_needs_one(store: casstore.Store) -> None:
    """A recipe beside a key, or a path without a recipe, is a usage error."""
    with pytest.raises(UsageError, match="already"):
        store.get(key("a"), casstore.Recipe("r"))
    with pytest.raises(UsageError, match="which recipe"):
        store.get("a.jpg")


# -- damaged files -----------------------------------------------------------------------------------------------------


def test_no_flipped_bit_in_a_file_ever_changes_a_tensor(store: casstore.Store) -> None:
    """Whichever bit of an object's file is flipped, `get` misses as damaged (or is right), and marks the object."""
    made = {"f": np.linspace(0, 1, 300, dtype=np.float32), "i": np.arange(100), "u": np.zeros(500, np.uint8)}
    put(store, a=made)
    path, rng = object_file(store, "a"), random.Random(2)
    data = path.read_bytes()
    right = get(store, "a")
    positions = {*range(60), *rng.sample(range(60, len(data)), 100)}
    for position in sorted(positions):
        overwrite(path, flipped(data, position, rng.randrange(8)))
        found = get(store, "a")
        assert found in (right, "damaged")
        assert (found == "damaged") == bool(store.status().damaged)
        sql(store, "UPDATE objects SET damaged_at = NULL")
    overwrite(path, data)
    assert get(store, "a") == right


@pytest.mark.parametrize("change", ["cut", "longer", "empty", "gone", "another object"])
def test_a_file_that_isnt_whole_is_a_miss_and_marked(store: casstore.Store, change: str) -> None:
    """T19: a cut, empty, missing or exchanged file is Miss("damaged"), v_objects says so, others are served."""
    put(store, "a", "b")
    path, other = object_file(store, "a"), object_file(store, "b")
    data = path.read_bytes()
    path.unlink()
    if change != "gone":
        new = {"cut": data[:-1], "longer": data + b"x", "empty": b"", "another object": other.read_bytes()}
        path.write_bytes(new[change])
    assert [get(store, "a"), get(store, "b")] == ["damaged", expect("b")]
    marked = store.sql("SELECT digest FROM v_objects WHERE damaged_at IS NOT NULL").rows
    assert marked == [(path.stem,)]
    assert store.lookup(key("a")).reason == "damaged"  # type: ignore[union-attr]


def test_an_object_that_was_healed_before_its_damage_is_noted_stays_healthy(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that saw the damage marks nothing if a put by another process healed the object in the meantime."""
    put(store, "a")
    path = object_file(store, "a")
    overwrite(path, b"")
    real = read.damaged

    def note(*arguments: Any) -> Any:
        in_child(lambda: put(store, "a"))
        return real(*arguments)

    monkeypatch.setattr(read, "damaged", note)
    assert get(store, "a") in ("damaged", expect("a"))
    monkeypatch.undo()
    assert get(store, "a") == expect("a")


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first read that finds nothing (a heal was on its way) is followed by a second that serves, with no mark."""
    put(store, "a")
    path = object_file(store, "a")
    away = path.with_suffix(".away")
    path.rename(away)
    real = read.object_rows

    def rows(*arguments: Any) -> Any:
        away.rename(path)
        return real(*arguments)

    monkeypatch.setattr(read, "object_rows", rows)
    monkeypatch.setattr(handle_of(store).index, "write", None)  # nobody gets as far as noting damage
    assert get(store, "a") == expect("a")


def test_a_reader_without_rights_still_reports_the_miss(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the damage can't be noted for lack of permission, `get` is the same miss."""
    put(store, "a")
    object_file(store, "a").unlink()

    def refuse() -> Any:
        raise casstore.errors.StorePermissionError("no")

    monkeypatch.setattr(handle_of(store).index, "write", refuse)
    assert get(store, "a") == "damaged"


# -- damaged rows ------------------------------------------------------------------------------------------------------

TABLES = ("hashes", "recipes", "schema_stamps", "layouts", "value_sets", "objects", "variants", "variant_parts")
FLIPS = [
    f"{table}.{column.name}-{kind}"
    for table in TABLES
    for column in metadata.tables[table].c
    for kind in ("low", "high", "next")
    if kind != "next" or (column.foreign_keys and not column.primary_key)
]
COUNTER = itertools.count()
RECIPE = casstore.Recipe("r", code=7)
SAMPLES = ("a", "b")


def sample_key(name: str) -> casstore.Key:
    content = casstore.model.Content("file", name.encode() * 32, 5, 64, 64, 1, "note")
    return casstore.Key.content(content, RECIPE, resolution="64x64", params={"p": name})


def sample_result(name: str) -> dict[str, Any]:
    return {f"t{name}": result(name)["t"], "from": name}


@pytest.fixture(scope="module")
def pristine() -> Iterator[Path]:
    """A folder with a store that holds two variants; copies of it are made beside it."""
    with fast_folder() as folder:
        with casstore.open(folder / "s", create=True, durability="off") as store, store.batch() as batch:
            for name in SAMPLES:
                batch.put(sample_key(name), sample_result(name))
        (folder / "s" / "ballast").unlink(missing_ok=True)
        yield folder / "s"


def corrupted(value: Any, kind: str) -> Any:
    """A value with a low or a high bit flipped (which makes text invalid UTF-8), or the id of the next row."""
    if value is None:
        return 1
    if isinstance(value, int):
        return value + 1 if kind == "next" else value ^ (1 << 40 if kind == "high" else 1 << 6)
    data = value.encode() if isinstance(value, str) else value
    return flipped(data, len(data) // 2, 7 if kind == "high" else 0)


@pytest.fixture
def corrupt(pristine: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the store in which one column of the first row is changed; the parameter says which and how."""
    column, kind = request.param.split("-")
    table, name = column.split(".")
    path = pristine.parent / str(next(COUNTER))
    shutil.copytree(pristine, path)
    ((value,),) = sql(path, f"SELECT {name} FROM {table} LIMIT 1")
    new = corrupted(value, kind)
    cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
    first = "id" if "id" in metadata.tables[table].c else "variant_id"
    sql(path, f"UPDATE {table} SET {name} = {cast} WHERE {first} = (SELECT min({first}) FROM {table})", new)
    return path


def served(store: casstore.Store, name: str) -> dict[str, Any] | str:
    try:
        return plain(store.get(sample_key(name), as_numpy=True))
    except MissError as error:
        assert error.miss is not None
        return error.miss.reason


@pytest.mark.parametrize("corrupt", FLIPS, indirect=True)
def test_no_flipped_bit_in_the_index_serves_another_tensor(corrupt: Path) -> None:
    """Whatever column is changed, each key gives its own result or a miss, and lookup tells no other's values."""
    misses = ("damaged", "new", "resolution", "variation", "recipe")
    with casstore.open(corrupt) as store:
        for name in SAMPLES:
            hit = store.lookup(sample_key(name))
            assert isinstance(hit, casstore.Miss) or hit.values == {"from": name}
            assert served(store, name) in (plain(sample_result(name)), *misses)


@pytest.mark.parametrize("corrupt", FLIPS, indirect=True)
def test_whatever_bit_of_the_index_was_flipped_one_put_heals_the_key(corrupt: Path) -> None:
    """After a changed column a key is encoded at most once more; from then on it is served."""
    calls: list[int] = []

    def encode() -> dict[str, Any]:
        calls.append(1)
        return sample_result("a")

    with casstore.open(corrupt) as store:
        for _ in range(2):
            found = store.get_or_encode(sample_key("a"), encode, as_numpy=True)
            assert plain(found) == plain(sample_result("a"))
    assert len(calls) <= 1


def test_a_miss_after_damage_is_noted_is_the_same_in_every_process(store: casstore.Store) -> None:
    """The mark is in the index, so that another process misses without opening the file."""
    put(store, "a")
    object_file(store, "a").unlink()
    assert get(store, "a") == "damaged"
    with child(lambda _: get(store, "a")) as other:
        assert other.result() == "damaged"


def test_a_key_that_is_stored_while_its_absence_is_explained_is_a_hit(
    store: casstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miss and its reason come from one state: nobody is told that a key is missing because it is there."""
    from casstore.core import read

    honest, calls = read.find_variants, []

    def overtaken(connection: Any, keys: Any) -> Any:
        found = honest(connection, keys)
        if not calls:
            calls.append(1)
            with casstore.open(store.path) as other:
                put(other, "a")
        return found

    monkeypatch.setattr(read, "find_variants", overtaken)
    assert get(store, "a") == expect("a")
