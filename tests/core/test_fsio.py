"""The one place that changes the file system: typed errors, whole writes, flushes."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path

import pytest
from core.helpers import in_child, mount_tmpfs

from casstore import fsio
from casstore.errors import CasstoreError, NoSpaceError, StoreIOError, StorePermissionError


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoSpaceError),
        (errno.EDQUOT, NoSpaceError),
        (errno.EFBIG, NoSpaceError),
        (errno.EACCES, StorePermissionError),
        (errno.EPERM, StorePermissionError),
        (errno.EROFS, StorePermissionError),
        (errno.EIO, StoreIOError),
        (errno.ESTALE, StoreIOError),
        (None, StoreIOError),
    ],
)
def test_an_error_of_the_system_gets_its_class_its_path_and_its_number(
    number: int | None, kind: type[CasstoreError], tmp_path: Path
) -> None:
    """The message names action and path, errno and filename are kept, and the cause is the system's error."""
    cause = OSError(number, os.strerror(number)) if number else OSError("odd")
    with pytest.raises(kind, match=f"can't flush {tmp_path}/x: .*(Check|Free)") as caught, \
            fsio.errors_typed("flush", tmp_path / "x"):  # fmt: skip
        raise cause
    assert type(caught.value) is kind
    assert isinstance(caught.value, OSError)
    assert (caught.value.errno, caught.value.filename) == (number, f"{tmp_path}/x")
    assert caught.value.__cause__ is cause


def test_casstores_own_errors_pass_unchanged() -> None:
    """An error that is typed already isn't wrapped again."""
    mine = NoSpaceError("full")
    with pytest.raises(NoSpaceError) as caught, fsio.errors_typed("write", "x"):
        raise mine
    assert caught.value is mine


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that takes one byte at a time still gets all chunks, of any element type, in order."""
    real = os.write
    monkeypatch.setattr(fsio.os, "write", lambda descriptor, data: real(descriptor, bytes(data[:1])))
    path = str(tmp_path / "x")
    words = memoryview(bytes(range(8))).cast("I")
    assert fsio.write_new(path, [b"abc", b"", words], 0o400) == 11
    monkeypatch.undo()
    assert Path(path).read_bytes() == b"abc" + bytes(range(8))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o400


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    """write_new refuses a name that is taken, and leaves what is there."""
    (tmp_path / "x").write_text("theirs")
    with pytest.raises(StoreIOError, match="EEXIST"):
        fsio.write_new(str(tmp_path / "x"), [b"mine"])
    assert (tmp_path / "x").read_text() == "theirs"


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """Whatever goes wrong between the chunks, also an interrupt, the half-written file is removed."""

    def chunks():  # type: ignore[no-untyped-def]
        yield b"abc"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fsio.write_new(str(tmp_path / "x"), chunks())
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_shorter_than_what_was_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes that are acknowledged and lost are noticed by the size of the file."""
    monkeypatch.setattr(fsio.os, "write", lambda _, data: len(data))
    with pytest.raises(StoreIOError, match="EIO"):
        fsio.write_new(str(tmp_path / "x"), [b"abc"])
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


def test_many_files_are_each_flushed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flush_files flushes every path, files and folders, and one that is named twice only once."""
    names = [str(tmp_path / f"f{n}") for n in range(20)]
    for name in names:
        Path(name).write_bytes(b"x")
    flushed: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(fsio.os, "fsync", fsync)
    fsio.flush_files([*names, *names, str(tmp_path)])
    assert sorted(flushed) == sorted([*names, str(tmp_path)])


@pytest.mark.parametrize("count", [1, 3])
def test_a_failing_fsync_is_an_error(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in any of the flushing threads comes out, and names the file."""
    names = [str(tmp_path / f"f{n}") for n in range(count)]
    for name in names:
        Path(name).write_bytes(b"x")
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == names[-1]:
            raise OSError(errno.EIO, "bad")
        real(descriptor)

    monkeypatch.setattr(fsio.os, "fsync", fsync)
    with pytest.raises(StoreIOError, match=f"flush {names[-1]}"):
        fsio.flush_files(names)


def test_syncfs_is_really_called_and_its_error_is_told(tmp_path: Path) -> None:
    """It succeeds on a folder's descriptor and is a typed error, with the path, on one that isn't open."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fsio.flush_filesystem(descriptor, str(tmp_path))
    os.close(descriptor)
    with pytest.raises(StoreIOError, match="EBADF"):
        fsio.flush_filesystem(descriptor, str(tmp_path))


def test_link_never_replaces_and_says_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A taken name is left alone and counts as done; a file system without links gives False; other errors raise."""
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert fsio.link(a, c) and fsio.same_file(a, c)
    assert fsio.link(a, b) and Path(b).read_text() == "b" and not fsio.same_file(a, b)
    with pytest.raises(StoreIOError, match="link"):
        fsio.link(str(tmp_path / "missing"), str(tmp_path / "d"))

    def refuse(*_: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links")

    monkeypatch.setattr(fsio.os, "link", refuse)
    assert fsio.link(a, str(tmp_path / "d")) is False


def test_unlink_tells_whether_there_was_a_file(tmp_path: Path) -> None:
    """A name that is gone already is no error."""
    (tmp_path / "a").write_text("a")
    assert fsio.unlink(str(tmp_path / "a")) is True
    assert fsio.unlink(str(tmp_path / "a")) is False


def test_sizes_and_identities_of_what_is_missing_are_none_and_false(tmp_path: Path) -> None:
    """A missing file, also below a file, has no size and is the same as nothing."""
    (tmp_path / "a").write_text("abc")
    assert fsio.size_of(str(tmp_path / "a")) == 3
    assert fsio.size_of(str(tmp_path / "b")) is fsio.size_of(str(tmp_path / "a" / "b")) is None
    assert not fsio.same_file(str(tmp_path / "a"), str(tmp_path / "b"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_type_of_a_file_system_is_known_at_the_root() -> None:
    """Every Linux tells the type of its root."""
    assert fsio.filesystem_type("/")


@pytest.mark.parametrize("name", ["plain", "a b\\c", "é", "写真"])
def test_the_type_is_that_of_the_deepest_mount(tmp_path: Path, name: str) -> None:
    """A mount inside a mount counts, whatever its path is written with; a sibling whose name begins alike doesn't."""

    def work() -> list[str] | None:
        inside, beside = tmp_path / name, tmp_path / (name + "c")
        inside.mkdir()
        beside.mkdir()
        if not mount_tmpfs(inside, "1m"):
            return None
        (inside / "deep").mkdir()
        return [fsio.filesystem_type(str(place)) for place in (inside, inside / "deep", beside, tmp_path)]

    found = in_child(work)
    if found is None:
        pytest.skip("mounting isn't allowed here")
    outside = fsio.filesystem_type(str(tmp_path))
    assert found == ["tmpfs", "tmpfs", outside, outside]


@pytest.mark.parametrize(
    ("release", "kind", "usable"),
    [
        ("5.8.0-generic", "ext4", True),
        ("5.7.19", "ext4", False),
        ("6.1", "xfs", True),
        ("10.0.0", "tmpfs", True),
        ("6.1.0", "nfs4", False),
        ("6.1.0", "", False),
    ],
)
def test_syncfs_is_trusted_only_where_it_reports_errors(
    release: str, kind: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes Linux 5.8 and a file system from the list."""
    uname = os.uname_result(("Linux", "host", release, "", ""))
    monkeypatch.setattr(fsio.os, "uname", lambda: uname)
    monkeypatch.setattr(fsio, "filesystem_type", lambda _: kind)
    assert fsio.has_syncfs("/") is usable
