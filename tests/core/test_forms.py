"""The two stored forms of an object: one identity, every bit checked; raw ones can be mapped."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from core.helpers import (
    RAW,
    RECIPE,
    expect,
    fast_folder,
    flipped,
    get,
    in_child,
    key,
    object_file,
    overwrite,
    plain,
    put,
    result,
    sql,
)
from kit import object_files
from safetensors.numpy import load_file

import casstore
from casstore import fsio
from casstore.core import read
from casstore.errors import CorruptObjectError, MissError, StorePermissionError, UsageError
from casstore.model import Stored
from casstore.objects.files import map_file, read_into, read_unlisted
from casstore.objects.payload import Layout

CODECS = {"zstd": RECIPE, "raw": RAW}
SUFFIX = {"zstd": ".cso", "raw": ".st"}
OTHER = {"zstd": "raw", "raw": "zstd"}
by_codec = pytest.mark.parametrize("codec", CODECS)


def put_as(store: casstore.Store, codec: str, *names: str, **results: dict[str, Any]) -> None:
    """Store results in one form: result(name) for names, others as given."""
    with store.batch() as batch:
        for name, made in {**{name: result(name) for name in names}, **results}.items():
            batch.put(key(name, CODECS[codec]), made, allow_nonfinite=True)


def mapped(store: casstore.Store, name: str) -> dict[str, Any] | str:
    """What a mapping gives, as plain lists, or why it is missed."""
    try:
        return plain(store.get(key(name), as_numpy=True, mmap=True))
    except MissError as error:
        assert error.miss is not None
        return error.miss.reason


# -- one identity ------------------------------------------------------------------------------------------------------


def test_a_raw_object_is_its_payload_and_a_safetensors_file(store: casstore.Store) -> None:
    """`<digest>.st` can be read by safetensors, and its name is the BLAKE3 of its bytes."""
    made = {"t": np.arange(6, dtype=np.int16).reshape(2, 3), "u": np.ones((), np.float64), "e": np.zeros((0, 3), bool)}
    put_as(store, "raw", a=made)
    (path,) = object_files(store.path)
    assert path.name == blake3(path.read_bytes()).hexdigest() + ".st"
    found = load_file(path)
    assert found.keys() == made.keys()
    for name, array in made.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@by_codec
def test_tensors_that_are_there_in_one_form_arent_stored_in_the_other(store: casstore.Store, codec: str) -> None:
    """A put with the other codec finds the object: one row, one file, as it was; both keys are served."""
    put_as(store, codec, a={"t": np.arange(99), "of": "a"})
    (path,) = object_files(store.path)
    before = (path.suffix, path.stat().st_ino, path.read_bytes())
    put_as(store, OTHER[codec], b={"t": np.arange(99), "of": "b"})
    (path,) = object_files(store.path)
    assert (path.suffix, path.stat().st_ino, path.read_bytes()) == before
    assert before[0] == SUFFIX[codec]
    assert store.lookup(key("a")).digests == store.lookup(key("b")).digests  # type: ignore[union-attr]
    assert [get(store, name) for name in "ab"] == [{"t": list(range(99)), "of": name} for name in "ab"]


def test_the_form_is_no_part_of_a_recipe(store: casstore.Store) -> None:
    """Recipes that differ in their codec are one: what one of them stored the other finds."""
    assert (RAW, hash(RAW), RAW.digest, RAW.spec) == (RECIPE, hash(RECIPE), RECIPE.digest, RECIPE.spec)
    put_as(store, "raw", "a")
    assert plain(store.get(key("a", RECIPE), as_numpy=True)) == expect("a")
    with pytest.raises(UsageError, match="'lz4'"):
        casstore.Recipe("r", codec="lz4")  # type: ignore[arg-type]


def configure(store: casstore.Store, text: str) -> None:
    Path(store.path, "casstore.toml").write_text(text)


def test_the_form_of_recipes_that_dont_say_is_that_of_casstore_toml(
    store: casstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """[objects] codec is read at each put, and a recipe's own codec goes before it."""
    put(store, "a")
    configure(store, '[objects]\ncodec = "raw"\n')
    put(store, "b")
    with store.batch() as batch:
        batch.put(key("c", casstore.Recipe("r", codec="zstd")), result("c"))
    assert [object_file(store, name).suffix for name in "abc"] == [".cso", ".st", ".cso"]
    assert [get(store, name) for name in "abc"] == [expect(name) for name in "abc"]
    assert caplog.text == ""


@pytest.mark.parametrize(
    "text", ['[objects]\ncodec = "lz4"', "[objects]\ncodec = 3", "objects = 3", "[objects", "[objects]\ncodec = []"]
)
def test_a_mistake_in_casstore_toml_costs_no_result(
    store: casstore.Store, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was put is stored compressed, and a warning tells the file and what is wrong."""
    configure(store, text)
    put(store, "a")
    assert object_file(store, "a").suffix == ".cso"
    assert get(store, "a") == expect("a")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "casstore.toml" in caplog.text and "codec 'zstd'" in caplog.text


# -- damage ------------------------------------------------------------------------------------------------------------


def test_no_flipped_bit_or_cut_of_a_raw_object_ever_changes_a_tensor(store: casstore.Store) -> None:
    """Each bit of its file, flipped, and each length but its own, is a miss; reading and mapping agree."""
    put_as(store, "raw", a={"t": np.arange(4, dtype=np.int16), "b": np.ones(3, bool)})
    path, right = object_file(store, "a"), get(store, "a")
    data = path.read_bytes()
    wrong = [flipped(data, bit // 8, bit % 8) for bit in range(8 * len(data))]
    wrong += [data[:length] for length in range(len(data))] + [data + b"\0", data + data]
    ((digest, text, xxh3),) = sql(store, "SELECT objects.digest, tensors, stored_xxh3 FROM objects JOIN layouts")
    stored, layout = Stored(digest, "raw", text, len(data), xxh3), Layout.parse(text)
    memory = {"t": np.zeros(8, np.uint8), "b": np.zeros(3, np.uint8)}
    for number, bad in enumerate(wrong):
        overwrite(path, bad)
        for read_it in (
            lambda: read_into(str(path), stored, layout, memory),
            lambda: read_unlisted(str(path), "raw", digest, layout, memory),
            lambda: map_file(str(path), stored, check=True),
        ):
            with pytest.raises(CorruptObjectError):
                read_it()
        if number % 50 == 0:  # the way through the store takes long
            assert (get if number % 100 else mapped)(store, "a") == "damaged"
            sql(store, "UPDATE objects SET damaged_at = NULL")
    overwrite(path, data)
    assert get(store, "a") == mapped(store, "a") == right


@by_codec
def test_a_put_in_the_other_form_heals_a_damaged_object(store: casstore.Store, codec: str) -> None:
    """After a put with the other codec every key of the object is served, the file is of that form, and what was
    damaged is in quarantine."""
    put_as(store, codec, a={"t": np.arange(99), "of": "a"}, b={"t": np.arange(99), "of": "b"})
    path = object_file(store, "a")
    bad = flipped(path.read_bytes(), path.stat().st_size - 1, 2)
    overwrite(path, bad)
    assert [get(store, name) for name in "ab"] == ["damaged"] * 2
    put_as(store, OTHER[codec], a={"t": np.arange(99), "of": "a"})
    assert [get(store, name) for name in "ab"] == [{"t": list(range(99)), "of": name} for name in "ab"]
    assert [file.suffix for file in object_files(store.path)] == [SUFFIX[OTHER[codec]]]
    (kept,) = Path(store.path, "quarantine").iterdir()
    assert kept.name.startswith(path.stem) and kept.suffix == path.suffix
    assert kept.read_bytes() == bad
    assert store.verify(deep=True).findings == ()


def test_a_file_in_the_other_form_stands_in_for_a_lost_one(store: casstore.Store) -> None:
    """Where the row's file is gone and the other form is there, sound, it is served; a changed one is a miss."""
    for codec in CODECS:
        put_as(store, codec, codec)
        path = object_file(store, codec)
        with fast_folder() as folder, casstore.open(folder / "s", create=True, durability="off") as other:
            put_as(other, OTHER[codec], codec)
            (there,) = object_files(other.path)
            stand_in = path.with_suffix(there.suffix)
            shutil.copy(there, stand_in)
        path.unlink()
        assert get(store, codec) == expect(codec)
        assert store.status().damaged == 0
        data = stand_in.read_bytes()
        overwrite(stand_in, flipped(data, len(data) - 1))
        assert get(store, codec) == "damaged"
        sql(store, "UPDATE objects SET damaged_at = NULL")


COLUMNS = {
    "objects.codec": ["raw", "zstd", "sav", ""],
    "objects.stored_bytes": [0, 1, 10**9],
    "objects.stored_xxh3": [0],
    "objects.layout_id": ["(SELECT max(id) FROM layouts)", "(SELECT min(id) FROM layouts)", 10**6],
    "layouts.nbytes": [0, 10**9],
    "layouts.tensors": ["replace(tensors, 'I16', 'U16')", "replace(tensors, 'I16', 'F16')", "''"],
    "layouts.digest": ["zeroblob(32)"],
    "objects.digest": ["zeroblob(32)"],
}
DTYPES = {"raw": np.int16, "zstd": np.uint16}
CHANGES = [(column, value) for column, values in COLUMNS.items() for value in values]
_copies = itertools.count()


@pytest.fixture(scope="module")
def pristine() -> Iterator[Path]:
    """A folder with a store that holds two objects of equal size, in both forms; copies of it are made beside it."""
    with fast_folder() as folder:
        with casstore.open(folder / "s", create=True, durability="off") as store:
            put_as(store, "raw", raw={"t": np.arange(40, dtype=np.int16)})
            put_as(store, "zstd", zstd={"u": np.arange(40, dtype=np.uint16)})
        (folder / "s" / "ballast").unlink(missing_ok=True)
        yield folder / "s"


@by_codec
@pytest.mark.parametrize(("column", "value"), CHANGES)
def test_whatever_the_index_says_of_a_file_no_other_bytes_are_served(
    pristine: Path, codec: str, column: str, value: Any
) -> None:
    """With any column about one object changed, each way to read gives its own bytes or a miss, and one put heals."""
    path = pristine.parent / str(next(_copies))
    shutil.copytree(pristine, path)
    table, name = column.split(".")
    new = value if isinstance(value, str) and ("(" in value or value == "''") else repr(value)
    joined = f"SELECT o.digest, {table[0]}.rowid FROM objects o JOIN layouts l ON o.layout_id = l.id WHERE o.codec = ?"
    ((_, row),) = sql(path, joined, codec)
    sql(path, f"UPDATE {table} SET {name} = {new} WHERE rowid = ?", row)
    right = {"raw": {"t": list(range(40))}, "zstd": {"u": list(range(40))}}
    results = {name: {"tu"[name == "zstd"]: np.arange(40, dtype=dtype)} for name, dtype in DTYPES.items()}
    with casstore.open(path) as store:
        for each in CODECS:
            found = store.get_many([key(each)] * 6, as_numpy=True, on_miss="return")
            for one in found:
                assert isinstance(one, casstore.Miss) or (
                    plain(one) == right[each] and [array.dtype for array in one.values()] == [DTYPES[each]]
                )
            assert get(store, each) in (right[each], "damaged", "new")
            try:
                assert mapped(store, each) in (right[each], "damaged", "new")
            except UsageError as error:
                assert "repack" in str(error)
        put_as(store, codec, **{codec: results[codec]})
        (healed,) = store.get(key(codec), as_numpy=True).values()
        assert (healed.dtype, healed.tolist()) == (DTYPES[codec], list(range(40)))


# -- mapping -----------------------------------------------------------------------------------------------------------


def mapping_of(address: int) -> str:
    """The file that is mapped at an address of this process."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            if begin <= address < end:
                return fields[5].rstrip("\n") if len(fields) > 5 else ""
    return ""


@pytest.mark.parametrize("as_numpy", [False, True])
def test_a_mapped_tensor_lies_in_the_file(store: casstore.Store, as_numpy: bool) -> None:
    """No byte is copied: the data of every tensor is inside a mapping of the object's file, aligned."""
    made = {"t": np.arange(5000), "h": np.arange(7, dtype=np.float16), "s": np.array(3, np.int8), "b": np.ones(3, bool)}
    put_as(store, "raw", a=made)
    found = store.get(key("a"), as_numpy=as_numpy, mmap=True)
    for name, array in made.items():
        tensor = found[name]
        assert np.array_equal(np.asarray(tensor), array)
        address = tensor.ctypes.data if as_numpy else tensor.data_ptr()
        assert mapping_of(address) == str(object_file(store, "a"))
        assert address % array.itemsize == 0


def test_what_is_written_to_a_mapping_stays_private(store: casstore.Store) -> None:
    """A changed view changes neither the file, nor another mapping, nor a later read, here or elsewhere."""
    put_as(store, "raw", a={"t": np.arange(5000)})
    before = object_file(store, "a").read_bytes()
    first, second = (store.get(key("a"), mmap=True)["t"] for _ in range(2))
    first.fill_(7)
    assert first.sum() == 7 * 5000
    assert object_file(store, "a").read_bytes() == before
    assert second.tolist() == get(store, "a")["t"] == mapped(store, "a")["t"] == list(range(5000))  # type: ignore[index]
    assert in_child(lambda: get(store, "a") == mapped(store, "a") == {"t": list(range(5000))})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool", "uint8", "float64"])
def test_every_dtype_and_shape_can_be_mapped(store: casstore.Store, dtype: str) -> None:
    """Rank 0 and empty tensors, values and names included, a mapping gives what a read gives."""
    kind = getattr(torch, dtype)
    bits = torch.ones(24 * 16, dtype=torch.uint8)
    made = {"t": bits[: 24 * kind.itemsize].view(kind).reshape(4, 6), "e": torch.zeros(0, 3, dtype=kind), "n": [1]}
    put_as(store, "raw", a={**made, "s": made["t"][0, 0].clone()}, b={"e": made["e"]})
    for name, names in (("a", None), ("a", ["t", "n"]), ("a", ["e"]), ("a", ["s"]), ("a", []), ("b", None)):
        one, other = store.get(key(name), names=names, mmap=True), store.get(key(name), names=names)
        assert one.keys() == other.keys()
        for part, value in other.items():
            if isinstance(value, torch.Tensor):
                assert (one[part].dtype, one[part].shape) == (value.dtype, value.shape)
                assert one[part].flatten().view(torch.uint8).tolist() == value.flatten().view(torch.uint8).tolist()
            else:
                assert one[part] == value


def test_a_damaged_file_is_never_mapped(store: casstore.Store) -> None:
    """A bit flipped before the first mapping is a miss that is noted, and a put heals it."""
    put_as(store, "raw", "a")
    path = object_file(store, "a")
    overwrite(path, flipped(path.read_bytes(), path.stat().st_size - 5))
    assert mapped(store, "a") == "damaged"
    assert store.status().damaged == 1
    put_as(store, "raw", "a")
    assert mapped(store, "a") == expect("a")


def test_a_mapping_is_checked_once(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first mapping of an object in a process reads and checks all of it, and later ones don't."""
    put_as(store, "raw", "a", "b")
    checks, real = [], read.map_file

    def watched(*arguments: Any, check: bool) -> Any:
        checks.append(check)
        return real(*arguments, check=check)

    monkeypatch.setattr(read, "map_file", watched)
    for name in "aaba":
        assert mapped(store, name) == expect(name)
    assert checks == [True, False, True, False]


@pytest.mark.parametrize("names", [None, ["t"]])
def test_a_compressed_object_cant_be_mapped(store: casstore.Store, names: list[str] | None) -> None:
    """It is a usage error that says how to change that, and following it helps."""
    put_as(store, "zstd", "a")
    with pytest.raises(UsageError, match="casstore repack --codec raw"):
        store.get(key("a"), names=names, mmap=True)
    store.repack("raw", yes=True)
    assert mapped(store, "a") == expect("a")


def test_a_mapping_takes_no_memory_of_the_caller(store: casstore.Store) -> None:
    """mmap together with `out` is refused, where a silent return would leave the caller's memory as it was."""
    put_as(store, "raw", a={"t": np.ones(3)})
    with pytest.raises(UsageError, match="mapping"):
        store.get(key("a"), out={"t": np.zeros(3)}, mmap=True)


def replace_under_a_view(store: casstore.Store) -> Any:
    """T52: hold a view of an entry, put other content under its key, and collect; the view."""
    put_as(store, "raw", a={"t": np.arange(5000)})
    view = store.get(key("a"), mmap=True)["t"]
    store.forget(key("a")).execute()
    put_as(store, "raw", a={"t": np.arange(5000) + 1})
    report = store.gc(yes=True, grace_hours=0)
    assert (report.condemned, report.swept) == (1, 1)
    return view


def test_a_view_outlives_its_object(store: casstore.Store) -> None:
    """T52 on POSIX: after other content was put and gc has taken the old file, the view still holds the old content,
    and new readers see the new."""
    view = replace_under_a_view(store)
    assert len(object_files(store.path)) == 1
    assert view.tolist() == list(range(5000))
    assert get(store, "a") == mapped(store, "a") == {"t": list(range(1, 5001))}
    assert in_child(lambda: get(store, "a") == {"t": list(range(1, 5001))})


def test_a_view_outlives_a_repack(store: casstore.Store) -> None:
    """The file of a view may be stored in the other form meanwhile."""
    put_as(store, "raw", a={"t": np.arange(5000)})
    view = store.get(key("a"), mmap=True)["t"]
    assert store.repack("zstd", yes=True).done == 1
    assert [path.suffix for path in object_files(store.path)] == [".cso"]
    assert view.tolist() == list(range(5000)) == get(store, "a")["t"]  # type: ignore[index]


@pytest.mark.parametrize("change", ["gc", "repack"])
def test_a_file_that_cant_be_removed_is_left_for_the_next_gc(
    store: casstore.Store, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T52 elsewhere: where the system keeps a mapped file from being removed, gc and repack are no errors, the view and
    the new content are right, and a later gc takes the file."""
    real = fsio.unlink

    def refuse(path: str) -> bool:
        if f"{os.sep}objects{os.sep}" in path:
            raise StorePermissionError(f"{path} is in use")
        return real(path)

    monkeypatch.setattr(fsio, "unlink", refuse)
    if change == "gc":
        view = replace_under_a_view(store)
        new = {"t": list(range(1, 5001))}
    else:
        put_as(store, "raw", a={"t": np.arange(5000)})
        view, new = store.get(key("a"), mmap=True)["t"], {"t": list(range(5000))}
        assert store.repack("zstd", yes=True).done == 1
    assert len(object_files(store.path)) == 2
    assert view.tolist() == list(range(5000))
    assert get(store, "a") == new
    assert store.gc(yes=True, grace_hours=0).leftovers == 0
    monkeypatch.undo()
    assert store.gc(yes=True, grace_hours=0).leftovers == 1
    assert len(object_files(store.path)) == 1
    assert get(store, "a") == new
    assert view.tolist() == list(range(5000))


# -- T26 ---------------------------------------------------------------------------------------------------------------


def t26() -> dict[str, Any]:
    """What doesn't survive other containers."""
    base = torch.linspace(-3, 3, 24)
    return {
        "bf16": base.to(torch.bfloat16),
        "e4m3": base.to(torch.float8_e4m3fn),
        "e5m2": base.to(torch.float8_e5m2),
        "fp16": base.to(torch.float16),
        "int32": base.to(torch.int32),
        "bool": base > 0,
        "uint8": torch.arange(24, dtype=torch.uint8),
        "rank 0": torch.tensor(-0.0, dtype=torch.bfloat16),
        "rank 0 e5m2": torch.tensor(1.5).to(torch.float8_e5m2),
        "empty": torch.zeros(3, 0, 2, dtype=torch.bfloat16),
        "transposed": base.reshape(4, 6).T,
        "strided": base.to(torch.bfloat16)[1::3],
        "nan": torch.tensor([0x7FC1, 0xFF81 - 0x10000, 0], dtype=torch.int16).view(torch.bfloat16),
        "big endian": np.arange(6, dtype=">f4").reshape(2, 3),
        "big endian int": np.arange(6, dtype=">i8")[::-2],
    }


def bits(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """dtype, shape and the bytes, row-major and little endian."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value, value.dtype.newbyteorder("=")))
    return str(value.dtype), tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@by_codec
@pytest.mark.parametrize("way", ["get", "get into memory", "get_many", "get_many into memory", "mapped"])
def test_every_kind_of_tensor_survives_the_store(store: casstore.Store, codec: str, way: str) -> None:
    """T26: dtype, shape and bytes are equal for each dtype, stride, rank and byte order, in both forms, by each way."""
    made = t26()
    put_as(store, codec, a={name.replace(" ", "_"): tensor for name, tensor in made.items()})
    if codec == "zstd" and way == "mapped":
        store.repack("raw", yes=True)
    layout = store.lookup(key("a")).layout  # type: ignore[union-attr]
    out = {name: torch.zeros(info.shape, dtype=getattr(torch, NAMES[info.dtype])) for name, info in layout.items()}
    if way == "get_many into memory":
        out = {name: tensor.expand(5, *tensor.shape).clone() for name, tensor in out.items()}
    found: Any = {
        "get": lambda: store.get(key("a")),
        "get into memory": lambda: store.get(key("a"), out=out),
        "get_many": lambda: store.get_many([key("a")] * 5)[4],
        "get_many into memory": lambda: store.get_many([key("a")] * 5, out=out)[4],
        "mapped": lambda: store.get(key("a"), mmap=True),
    }[way]()
    for name, tensor in made.items():
        assert bits(found[name.replace(" ", "_")]) == bits(tensor), name


NAMES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F16": "float16", "F32": "float32",
    "I32": "int32", "I64": "int64", "BOOL": "bool", "U8": "uint8",
}  # fmt: skip


@by_codec
@pytest.mark.parametrize("name", ["bf16", "e4m3", "e5m2"])
def test_what_numpy_lacks_is_a_clear_error_as_an_array(store: casstore.Store, codec: str, name: str) -> None:
    """T26: without torch there is no wrong array but a usage error that names the tensor and what to do."""
    put_as(store, codec, a={name: t26()[name]})
    for read_it in (
        lambda: store.get(key("a"), as_numpy=True),
        lambda: store.get_many([key("a")] * 9, as_numpy=True),
        lambda: store.get(key("a"), as_numpy=True, mmap=codec == "raw"),
    ):
        with pytest.raises(UsageError, match=f"'{name}' is .*read it as a torch tensor"):
            read_it()
