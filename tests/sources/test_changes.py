"""Whatever happens to files between scans, each scan tells what they hold: held against a model that hashes all."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import examples, fast_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import FakeEncoder, build, clock_ahead, edit_in_place, expected_of, picture

import casstore
from casstore.identity.digests import file_digest

ENDINGS = {"all": None, "png": (".png",), "jpg": (".jpg",)}
PLACES = ["", "x/", "x/y/", "z/", "link/"]
FILES = [place + name for place in PLACES for name in ("a.png", "b.PNG", "c.jpg")]
FOLDERS = ["x", "x/y", "z", "z/new", "w"]
TIMES = [-(10**18) - 1, -1, 0, 10**18 + 7, 4 * 10**18]  # before 1970, long ago, in the future

files, numbers = st.sampled_from(FILES), st.integers(0, 3)
EDIT = st.one_of(
    st.tuples(st.sampled_from(["write", "forge", "replace", "recreate"]), files, numbers),
    st.tuples(st.sampled_from(["rename", "swap", "copy", "hardlink"]), files, files),
    st.tuples(st.sampled_from(["touch", "chmod", "delete", "fifo"]), files),
    st.tuples(st.just("utime"), files, st.sampled_from(TIMES)),
    st.tuples(st.just("retarget"), files, st.sampled_from(["1", "2", "nowhere"])),
    st.tuples(st.just("relink"), st.sampled_from(["one", "two", "nowhere"])),
    st.tuples(st.just("folder"), st.sampled_from(FOLDERS)),
    st.tuples(st.just("rmtree"), st.sampled_from(FOLDERS)),
    st.tuples(st.sampled_from(["move", "exchange"]), st.sampled_from(FOLDERS), st.sampled_from(FOLDERS)),
)
SCAN = st.tuples(
    st.just("scan"),
    st.sampled_from(["honest", "honest", "honest", "trust", "rehash", "stop"]),
    st.sampled_from(list(ENDINGS)),
    st.sampled_from(["", "", "", "x", "z"]),
    st.booleans(),  # whether the clock says that what was written just now is settled
)


def data(number: int, size: int = 8) -> bytes:
    """Bytes of few kinds and sizes, so that equal sizes and equal contents are common."""
    return bytes([65 + number]) * size


class World:
    """A data folder, the edits that happen to it, and what a scan of it has to say."""

    def __init__(self, store: casstore.Store, place: Path) -> None:
        self.store, self.root, self.place = store, place / "data", place
        self.unchanged: set[tuple[str, str]] = set()  # (endings, folder) of which nothing has to be hashed
        for name in ("one/a.png", "one/c.jpg", "two/a.png"):
            self.fill(place / "outside" / name, data(len(name)))
        for name in ("1", "2"):
            self.fill(place / "targets" / name, data(int(name)))
            os.utime(place / "targets" / name, ns=(10**18, 10**18))
        for name in ("a.png", "c.jpg", "x/a.png", "x/b.PNG", "x/y/a.png", "z/c.jpg"):
            self.fill(self.root / name, data(0))
        (self.root / "link").symlink_to(place / "outside" / "one")

    @staticmethod
    def fill(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def step(self, name: str, *arguments: Any) -> None:
        """One edit, or nothing where it isn't possible; or one scan with all its checks."""
        if name == "scan":
            self.scan(*arguments)
            return
        self.unchanged.clear()
        with contextlib.suppress(OSError):
            getattr(self, "do_" + name)(*arguments)

    # -- edits ---------------------------------------------------------------------------------------------------

    def do_write(self, name: str, number: int) -> None:
        if (self.root / name).is_fifo():  # which would wait for a reader
            (self.root / name).unlink()
        self.fill(self.root / name, data(number, 8 + number))

    def do_forge(self, name: str, number: int) -> None:
        """Other bytes, in place; size and mtime as before."""
        path = self.root / name
        before = path.stat()
        with open(path, "r+b") as stream:
            stream.write(data(number, before.st_size))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def do_replace(self, name: str, number: int) -> None:
        """Another file of the same size and mtime in its place."""
        path, other = self.root / name, self.place / "other"
        before = path.stat()
        self.fill(other, data(number, before.st_size))
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.rename(path)

    def do_recreate(self, name: str, number: int) -> None:
        path = self.root / name
        before = path.stat()
        path.unlink()
        self.fill(path, data(number, before.st_size))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def do_rename(self, name: str, other: str) -> None:
        (self.root / name).rename(self.root / other)

    def do_swap(self, name: str, other: str) -> None:
        (self.root / name).rename(self.place / "swapped")
        try:
            (self.root / other).rename(self.root / name)
        finally:
            (self.place / "swapped").rename(self.root / other)

    do_exchange = do_swap

    def do_copy(self, name: str, other: str) -> None:
        with contextlib.suppress(shutil.SameFileError):
            shutil.copy2(self.root / name, self.root / other)

    def do_hardlink(self, name: str, other: str) -> None:
        if (self.root / name).exists() and name != other:
            (self.root / other).unlink(missing_ok=True)
            os.link(self.root / name, self.root / other, follow_symlinks=False)

    def do_touch(self, name: str) -> None:
        os.utime(self.root / name)

    def do_utime(self, name: str, mtime: int) -> None:
        os.utime(self.root / name, ns=(mtime, mtime))

    def do_chmod(self, name: str) -> None:
        (self.root / name).chmod(0o640)

    def do_delete(self, name: str) -> None:
        (self.root / name).unlink()

    def do_fifo(self, name: str) -> None:
        """No file at all, under the name of one."""
        (self.root / name).unlink()
        os.mkfifo(self.root / name)

    def do_retarget(self, name: str, target: str) -> None:
        (self.root / name).unlink(missing_ok=True)
        (self.root / name).symlink_to(self.place / "targets" / target)

    def do_relink(self, target: str) -> None:
        (self.root / "link").unlink()
        (self.root / "link").symlink_to(self.place / "outside" / target)

    def do_folder(self, name: str) -> None:
        self.fill(self.root / name / "a.png", data(1))

    def do_rmtree(self, name: str) -> None:
        shutil.rmtree(self.root / name)

    def do_move(self, name: str, other: str) -> None:
        (self.root / name).rename(self.root / other)

    # -- the model -----------------------------------------------------------------------------------------------

    def files(self) -> dict[str, str | None]:
        """{path below the root: digest of what is there now, or None if it can't be read}"""
        found: dict[str, str | None] = {}
        for folder, _, names in os.walk(self.root, followlinks=True):
            for name in names:
                path = Path(folder, name)
                if path.suffix:
                    found[str(path.relative_to(self.root))] = (
                        file_digest(path.read_bytes()).hex() if path.is_file() else None
                    )
        return found

    def rows(self) -> dict[str, tuple[bool, str | None]]:
        """{path below the root: (missing, digest)} as the index has it, under however many roots."""
        query = (
            "SELECT r.path, d.relpath, s.name, s.missing_since IS NOT NULL, h.digest FROM sources s "
            "JOIN directories d ON d.id = s.directory_id JOIN roots r ON r.id = d.root_id "
            "LEFT JOIN hashes h ON h.id = s.hash_id"
        )
        return {self.below(*names): (bool(gone), digest) for *names, gone, digest in self.store.sql(query).rows}

    def history(self) -> set[tuple[str, str]]:
        """(path below the root, digest of what it held before)"""
        query = (
            "SELECT r.path, d.relpath, s.name, h.digest FROM source_contents c JOIN sources s ON s.id = c.source_id "
            "JOIN directories d ON d.id = s.directory_id JOIN roots r ON r.id = d.root_id "
            "JOIN hashes h ON h.id = c.hash_id"
        )
        return {(self.below(*names), digest) for *names, digest in self.store.sql(query).rows}

    def below(self, *names: str) -> str:
        return os.path.relpath(os.path.join(*names), self.root)

    # -- scans ---------------------------------------------------------------------------------------------------

    def scan(self, mode: str, endings: str, inside: str, settled: bool) -> None:
        folder = self.root / inside
        if not folder.is_dir():
            return
        options: dict[str, Any] = {"extensions": ENDINGS[endings], mode: True} if mode in ("trust", "rehash") else {}
        options |= {"extensions": ENDINGS[endings]}

        def judged(name: str) -> bool:
            wanted = ENDINGS[endings] or (".png", ".jpg")
            return name.lower().endswith(wanted) and (not inside or name.startswith(inside + "/"))

        there, before, held = self.files(), self.rows(), self.history()
        files = {name: digest for name, digest in there.items() if judged(name)}
        with pytest.MonkeyPatch.context() as patched:
            if settled:
                clock_ahead(patched)
            if mode == "stop":

                def stop(done: int, total: int) -> None:
                    raise KeyboardInterrupt

                with contextlib.suppress(KeyboardInterrupt):
                    self.store.scan(folder, progress=stop, **options)
            else:
                found = self.store.scan(folder, **options)
                report = found.report
                told = {os.path.join(inside, row.sample): row.content and row.content.digest.hex() for row in found}
        if settled:
            self.tick()
        if mode == "stop":
            return
        after = self.rows()
        cut = not (self.root / "link").exists()  # a link that leads nowhere says nothing of what was behind it
        gone = {name for name in before if judged(name) and name not in files}
        unseen = {name for name in gone if cut and name.startswith("link/")}
        gone -= unseen
        expected = {name: (True, digest) if name in gone else (m, digest) for name, (m, digest) in before.items()}
        if mode == "trust":  # what was known may hold anything; what is new holds what it holds
            assert set(told) == set(files)
            new = {name for name in files if name not in before or before[name][0]}
            assert {name: told[name] for name in new} == {name: files[name] for name in new}
            assert report.trusted
            assert {name for name, (missing, _) in after.items() if missing} == {
                name for name, (missing, _) in expected.items() if missing and name not in files
            }
            return
        assert told == files
        assert after == expected | {name: (False, digest) for name, digest in files.items()}
        replaced = {
            (name, digest)
            for name, (_, digest) in before.items()
            if name in files and digest is not None and digest != files[name]
        }
        assert self.history() == held | replaced
        assert (report.files, report.trusted) == (len(files), False)
        assert len(report.warnings) == any(not before[name][0] for name in unseen)
        assert report.missing == sum(not before[name][0] for name in gone)
        assert report.failed == sum(digest is None for digest in files.values())
        known = {name: digest for name, (missing, digest) in before.items() if not missing and digest is not None}
        readable = {name: digest for name, digest in files.items() if digest is not None}
        assert report.new == len(readable.keys() - known.keys())
        assert report.edited == sum(name in known and known[name] != digest for name, digest in readable.items())
        if mode == "rehash":
            assert report.hashed == len(readable)
        elif (endings, inside) in self.unchanged:
            assert report.hashed == 0
        if settled:
            self.unchanged.add((endings, inside))

    def tick(self) -> None:
        """Wait until the clock of files has moved on: what has the times of before holds what it held."""
        path = self.place / "tick"
        path.touch()
        before = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == before:
            path.touch()


def play(steps: list[tuple[Any, ...]]) -> None:
    """Play the steps in a new world, and scan it at the end."""
    with fast_folder() as folder, casstore.open(folder / "store", create=True, durability="off") as store:
        world = World(store, folder)
        whole = ("scan", "honest", "all", "", False)  # at first, so that the root is the folder that never changes
        for step in [whole, *steps, whole]:
            world.step(*step)


@settings(max_examples=examples(400), derandomize=True)
@given(steps=st.lists(st.one_of(EDIT, EDIT, SCAN), min_size=4, max_size=30))
def test_every_scan_tells_what_every_file_holds(steps: list[tuple[Any, ...]]) -> None:
    """After any edits, a scan with any options has the content, the errors and the loss that hashing all files has."""
    play(steps)


ONE_EDIT = [
    *[(kind, "x/a.png", 1) for kind in ("write", "forge", "replace", "recreate")],
    *[(kind, "x/a.png", "x/b.PNG") for kind in ("rename", "swap", "copy", "hardlink")],
    *[("utime", "x/a.png", when) for when in TIMES],
    ("touch", "x/a.png"),
    ("chmod", "x/a.png"),
    ("delete", "x/a.png"),
    ("retarget", "x/a.png", "1"),
    ("relink", "two"),
    ("relink", "nowhere"),
    ("folder", "x/new"),
    ("rmtree", "x"),
    ("move", "x", "w"),
    ("exchange", "x", "z"),
]


@pytest.mark.parametrize("edit", ONE_EDIT, ids=lambda edit: "-".join(map(str, edit)))
def test_one_edit_of_settled_files_is_noticed(edit: tuple[Any, ...]) -> None:
    """Each kind of edit, of files whose fingerprints are known, is told by the next scan, of this or of less."""
    settled = [("scan", "honest", endings, inside, True) for endings in ENDINGS for inside in ("", "x")]
    play([*settled, edit, ("scan", "honest", "png", "x", True), ("scan", "honest", "all", "", True), *settled])


def test_only_a_forged_ctime_hides_an_edit_and_rehash_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit that leaves size, mtime, inode and ctime as they were is missed by a scan, and found by rehash=True."""
    clock_ahead(monkeypatch)
    path, other = tmp_path / "data" / "a.png", tmp_path / "data" / "b.png"
    World.fill(path, b"before")
    World.fill(other, b"beside")
    with casstore.open(tmp_path / "store", create=True, durability="off") as store:
        store.scan(tmp_path / "data")
    was = path.stat()
    path.write_bytes(b"behind")
    while path.stat().st_ctime_ns == was.st_ctime_ns or path.stat().st_mtime_ns != was.st_mtime_ns:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "index.sqlite")) as index, index:
        index.execute("UPDATE sources SET st_ctime_ns = ? WHERE name = 'a.png'", [path.stat().st_ctime_ns])
        index.execute("DELETE FROM directory_prints")

    def held(**options: Any) -> bytes:
        content = store.scan(tmp_path / "data", **options)[0].content
        assert content is not None
        return content.digest

    with casstore.open(tmp_path / "store") as store:
        assert held() == file_digest(b"before")
        assert held() == file_digest(b"before")  # by the fingerprint now
        assert held(rehash=True) == file_digest(b"behind")
        assert held() == file_digest(b"behind")


def test_the_future_and_the_years_before_1970_are_times_like_others(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files with any mtime settle by their ctime, and aren't hashed again."""
    clock_ahead(monkeypatch)
    for number, when in enumerate(TIMES):
        World.fill(tmp_path / "data" / f"{number}.png", data(number))
        os.utime(tmp_path / "data" / f"{number}.png", ns=(when, when))
    assert store.scan(tmp_path / "data").report.hashed == len(TIMES)
    assert store.scan(tmp_path / "data").report.hashed == 0
    assert time.time_ns() < TIMES[-1]


@pytest.mark.parametrize("how", ["edited", "forged"])
def test_an_edited_picture_is_never_served_its_old_tensor(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One pixel, in place, with a new mtime or with the old one: one miss, one encode, and the right tensor (T1)."""
    clock_ahead(monkeypatch)
    encoder, data = FakeEncoder(), tmp_path / "data"
    for number in range(3):
        picture(data / f"{number}.bmp", number)
    build(store, data, encoder)
    path = data / "1.bmp"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    if how == "edited":
        path.write_bytes(changed)
    else:
        edit_in_place(path, bytes(changed))
    plan = store.plan(store.scan(data), encoder.recipe, resolution="64x64")
    assert (plan.planned, plan.hits) == (3, 2)
    assert store.build(plan, encoder).reasons == {"edited": 1}
    assert encoder.seen[3:] == ["1.bmp"]
    for each in data.iterdir():
        got = store.get(each, encoder.recipe, as_numpy=True)["latent"]
        np.testing.assert_array_equal(got, expected_of(each, "64x64", encoder.recipe))
