"""The digest of the weights in a safetensors file: that of the tensors in it, read strictly, remembered by state."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit import DATA, ROOT, spy
from safetensors.torch import load_file, save_file

from casstore.errors import SourceNotFoundError, UsageError
from casstore.identity import weight_files
from casstore.identity.dtypes import TORCH_NAME
from casstore.identity.weights import weights_digest

ENCODER = DATA / "taef2" / "encoder.safetensors"


def state() -> dict[str, torch.Tensor]:
    """A tensor of each dtype that safetensors can hold, some empty, some without dimensions."""
    found = {
        f"layer.{short}": torch.arange(12).to(getattr(torch, name)).reshape(3, 4)
        for short, name in TORCH_NAME.items()
        if short not in ("F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "U16", "U32", "U64")
    }
    return found | {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 3), "ünï": torch.ones(2)}


def raw(header: Any, data: bytes = b"") -> bytes:
    """A file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin: int, end: int, shape: Any = None, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute has passed since the files of the test were written."""
    import time

    monkeypatch.setattr(weight_files, "_now_ns", lambda: time.time_ns() + 60 * 10**9)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each time that a file is read."""
    return spy(monkeypatch, "casstore.identity.weight_files.hash_file")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of weights."""
    save_file(state(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


# -- what it is ------------------------------------------------------------------------------------------------------


def test_a_file_has_the_digest_of_its_state_dict(file: Path) -> None:
    """Of every dtype, from a path or a string; metadata and the order in the file don't count."""
    assert weights_digest(file) == weights_digest(str(file)) == weights_digest(load_file(file))


def test_a_file_larger_than_the_buffer_is_hashed_in_pieces(tmp_path: Path) -> None:
    """Tensors of several MiB come to the same digest."""
    weights = {"a": torch.arange(700_000), "b": torch.randn(300, 1111)}
    save_file(weights, tmp_path / "m.safetensors")
    assert weights_digest(tmp_path / "m.safetensors") == weights_digest(weights)


@pytest.mark.skipif(not ENCODER.is_file(), reason=f"the real weights aren't at {ENCODER}")
def test_a_real_file_has_the_digest_of_its_state_dict() -> None:
    """A published model."""
    assert weights_digest(ENCODER) == weights_digest(load_file(ENCODER))


def test_a_file_is_digested_without_torch(file: Path) -> None:
    """Nothing needs torch for it."""
    code = "import sys, casstore; print(casstore.weights_digest(sys.argv[1]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, file], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [weights_digest(file), "False"]


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        raw(b"{}"),
        raw(b"[]"),
        raw(b"{"),
        raw(b'{"a":1}'),
        raw(b"\xff\xff"),
        raw(b"[" * 5000),
        raw({"a": tensor(0, 2)}, b"\1"),
        raw({"a": tensor(0, 2)}, b"\1\2\3"),
        raw({"a": tensor(1, 2)}, b"\1\2"),
        raw({"a": tensor(0, 2), "b": tensor(1, 3)}, b"\1\2\3"),
        raw({"a": tensor(0, 1), "b": tensor(2, 3)}, b"\1\2\3"),
        raw({"a": tensor(0, 2, [3])}, b"\1\2"),
        raw({"a": tensor(0, 2, [-1, -2])}, b"\1\2"),
        raw({"a": tensor(0, 2, [2.0])}, b"\1\2"),
        raw({"a": tensor(0, 1, [True])}, b"\1"),
        raw({"a": tensor(0, 2, "2")}, b"\1\2"),
        raw({"a": tensor(0, 2, None, "F4")}, b"\1\2"),
        raw({"a": tensor(0, 2, None, ["U8"])}, b"\1\2"),
        raw(b'{"a":' + json.dumps(tensor(0, 1)).encode() + b',"a":' + json.dumps(tensor(0, 1)).encode() + b"}", b"\1"),
        raw(b'{"\\ud800":' + json.dumps(tensor(0, 1)).encode() + b"}", b"\1"),
        (1 << 62).to_bytes(8, "little") + b"{}",
    ],
)
def test_what_is_no_sound_safetensors_file_is_refused(data: bytes, tmp_path: Path) -> None:
    """Holes, overlaps, doubles, wrong sizes, trailing or missing bytes, unknown dtypes: a UsageError that names it."""
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(UsageError, match="weights_digest: "):
        weights_digest(tmp_path / "m.safetensors")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_digested(data: bytes) -> None:
    """No file makes it raise anything else."""
    import tempfile

    with tempfile.NamedTemporaryFile() as stream:
        for content in (data, raw(data), raw({"a": tensor(0, len(data))}, data)):
            stream.seek(0), stream.truncate(), stream.write(content), stream.flush()
            try:
                weights_digest(stream.name, fresh=True)
            except UsageError:
                continue


def _zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", b"x")
    return stream.getvalue()


@pytest.mark.parametrize("data", [_zip(), b"\x80\x02}q\x00."], ids=["zip", "bare"])
def test_a_pickle_is_refused_with_the_reason(data: bytes, tmp_path: Path) -> None:
    """A checkpoint of torch.save can run code: the message says so and what to do."""
    (tmp_path / "model.pt").write_bytes(data)
    with pytest.raises(UsageError, match=r"is a pickle, which can run code.*save_file"):
        weights_digest(tmp_path / "model.pt")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, a folder and a name that can't be are not-found errors with the path."""
    for path in (tmp_path / "nothing.safetensors", tmp_path, "nul\0"):
        with pytest.raises(SourceNotFoundError, match="weights_digest: can't read"):
            weights_digest(path)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """Nobody waits for its writer."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="isn't a regular file"):
        weights_digest(tmp_path / "pipe")


def test_a_file_that_is_written_meanwhile_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest of half the old and half the new bytes is none."""
    real = weight_files.hash_file

    def hash_file(stream: Any, path: str) -> str:
        with open(path, "ab") as other:
            other.write(b"more")
        return "ab" * 32

    monkeypatch.setattr(weight_files, "hash_file", hash_file)
    with pytest.raises(UsageError, match="changed while it was read"):
        weights_digest(file)
    monkeypatch.setattr(weight_files, "hash_file", real)
    with pytest.raises(UsageError, match="isn't a safetensors file"):
        weights_digest(file)


# -- what is remembered ----------------------------------------------------------------------------------------------


def test_an_old_file_is_read_once(file: Path, hashed: list[Any], later: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its state stays the same, by whatever name the folder has; `fresh` reads it again."""
    digest = weights_digest(file)
    monkeypatch.chdir(file.parent)
    assert weights_digest("model.safetensors") == digest and len(hashed) == 1
    assert weights_digest(file, fresh=True) == digest and len(hashed) == 2


def test_a_young_file_is_read_again(file: Path, hashed: list[Any]) -> None:
    """Written less than 2 s ago, it may change within a tick of the clock: nothing is remembered of it."""
    assert weights_digest(file) == weights_digest(file) and len(hashed) == 2


@pytest.mark.parametrize("how", ["rewritten", "replaced"])
def test_a_file_that_has_changed_is_read_again(file: Path, later: None, how: str) -> None:
    """New bytes of the same size and mtime, in place or under the name, have their own digest."""
    before, found = weights_digest(file), file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    if how == "rewritten":
        file.write_bytes(data)
    else:
        (file.parent / "new").write_bytes(data)
        (file.parent / "new").replace(file)
    while file.stat().st_ctime_ns == found.st_ctime_ns or file.stat().st_mtime_ns != found.st_mtime_ns:
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert weights_digest(file) == weights_digest(load_file(file)) != before
