"""Files that aren't pictures, and folders that are hard to walk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from core.helpers import tree
from kit import FakeEncoder, as_nobody, build, clock_ahead, picture, python, spy

import casstore
from casstore.cli import run
from casstore.identity.digests import file_digest
from casstore.sources import read

MP4 = (".mp4",)


def write(path: Path, data: bytes = b"any bytes") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def measures(store: casstore.Store) -> list[tuple[Any, ...]]:
    return store.sql("SELECT width, height, frames, rate, note FROM hashes ORDER BY digest").rows


# -- opaque files ----------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_picture_is_hashed_in_pieces(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A film is one source with the digest of its bytes; it is never held in memory whole, nor taken for a picture."""
    data = os.urandom(3 * read.CHUNK + 17)
    write(tmp_path / "data" / "a.MP4", data)
    whole = spy(monkeypatch, "casstore.sources.hashing.read_source")
    rows = store.scan(tmp_path / "data", extensions=MP4)
    assert [(row.sample, row.error) for row in rows] == [("a.MP4", None)]
    content = rows[0].content
    assert content is not None and (content.digest, content.nbytes) == (file_digest(data), len(data))
    assert (whole, measures(store)) == ([], [(None, None, None, None, None)])


def test_films_and_pictures_can_be_scanned_together(store: casstore.Store, tmp_path: Path) -> None:
    """Pictures are measured as ever, films by the probe, which sees no picture."""
    picture(tmp_path / "data" / "a.png", size=(64, 48))
    write(tmp_path / "data" / "b.mp4")
    seen: list[str] = []

    def probe(path: str) -> Mapping[str, Any]:
        seen.append(path)
        return {"width": 1920, "height": 1080, "frames": 250, "rate": 25}

    store.scan(tmp_path / "data", extensions=(".png", ".mp4"), probe=probe)
    assert seen == [str(tmp_path / "data" / "b.mp4")]
    assert set(measures(store)) == {(64, 48, None, None, None), (1920, 1080, 250, 25.0, None)}


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ({"width": 8, "height": 4, "frames": 2, "rate": 29.97}, (8, 4, 2, 29.97, None)),
        ({"rate": 44100}, (None, None, None, 44100.0, None)),
        ({"frames": "12", "width": None, "codec": "h264"}, (None, None, 12, None, None)),
        ({}, (None, None, None, None, None)),
    ],
)
def test_a_probe_says_what_it_knows(
    store: casstore.Store, tmp_path: Path, found: dict[str, Any], kept: tuple[Any, ...]
) -> None:
    """Whatever it leaves out is unknown; what it says besides is passed over."""
    write(tmp_path / "data" / "a.mp4")
    store.scan(tmp_path / "data", extensions=MP4, probe=lambda path: found)
    assert measures(store) == [kept]


def raising(path: str) -> Any:
    raise ValueError("no film")


@pytest.mark.parametrize(
    "probe",
    [
        raising,
        lambda path: None,
        lambda path: {"width": "wide"},
        lambda path: {"frames": 2**70},
        lambda path: {"width": -1},
        lambda path: {"rate": float("nan")},
    ],
    ids=["raises", "nothing", "words", "huge", "negative", "nan"],
)
def test_a_probe_that_fails_costs_a_note(store: casstore.Store, tmp_path: Path, probe: Any) -> None:
    """The file is hashed and served all the same; the note says what went wrong, and other files have none."""
    write(tmp_path / "data" / "a.mp4", b"a")
    write(tmp_path / "data" / "b.mp4", b"b")
    rows = store.scan(
        tmp_path / "data", extensions=MP4, probe=lambda path: probe(path) if path.endswith("a.mp4") else {}
    )
    assert [row.content and row.content.digest for row in rows] == [file_digest(b"a"), file_digest(b"b")]
    notes = [row.content and row.content.note for row in rows]
    assert notes[0] and "can't be probed" in notes[0] and notes[1] is None
    assert (rows.report.hashed, rows.report.failed) == (2, 0)


def test_a_film_can_be_probed_later(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a scan without a probe, or with one that failed, left unknown is completed by a rehash."""
    clock_ahead(monkeypatch)
    write(tmp_path / "data" / "a.mp4")
    for probe, kept in [
        (None, (None, None, None, None, None)),
        (raising, (None, None, None, None, "can't be probed: ValueError: no film")),
        (lambda path: {"frames": 7, "rate": 5}, (None, None, 7, 5.0, None)),
        (lambda path: {"width": 4, "height": 2, "frames": 7, "rate": 5}, (4, 2, 7, 5.0, None)),
        (raising, (4, 2, 7, 5.0, None)),
    ]:
        store.scan(tmp_path / "data", extensions=MP4, probe=probe, rehash=True)
        assert measures(store) == [kept]


def test_an_unchanged_film_is_neither_opened_nor_probed(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe costs nothing where nothing is new."""
    clock_ahead(monkeypatch)
    write(tmp_path / "data" / "a.mp4")
    store.scan(tmp_path / "data", extensions=MP4)
    seen: list[str] = []
    report = store.scan(tmp_path / "data", extensions=MP4, probe=lambda path: seen.append(path) or {}).report
    assert (report.hashed, seen) == (0, [])


# -- names and depths ------------------------------------------------------------------------------------------------


def test_long_names_and_deep_folders_are_found(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of 255 bytes, and paths of more than 1,024 characters through 100 folders, go through it all (case T36)."""
    clock_ahead(monkeypatch)
    deep = "/".join(["x" * 12] * 100)
    names = ["n" * 251 + ".png", "é" * 125 + "x.png", f"{deep}/a.png"]
    for number, name in enumerate(names):
        picture(tmp_path / "data" / name, number)
    encoder = FakeEncoder()
    assert len(deep) > 1024 and all(len(os.fsencode(Path(name).name)) <= 255 for name in names)
    assert build(store, tmp_path / "data", encoder).encoded == 3
    assert sorted(encoder.seen) == sorted(names)
    assert store.scan(tmp_path / "data").report.hashed == 0
    assert store.scan(tmp_path / "data", trust=True).report.files == 3
    assert store.get(tmp_path / "data" / names[2], encoder.recipe, as_numpy=True)["latent"].shape == (4, 8, 8)


def test_folders_beyond_the_longest_path_are_failures(store: casstore.Store, tmp_path: Path) -> None:
    """What no path can name is a row with an error; what is above is found, and nothing is missing."""
    write(tmp_path / "data" / "a.png")
    here = os.open(tmp_path / "data", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    rows = store.scan(tmp_path / "data")
    assert [row.error is None for row in rows] == [True, False]
    assert "too long" in (rows[1].error or "") and rows.report.failed == 1


@pytest.mark.parametrize("name", ["[set] 01", "a*b", "what?", "{x,y}", "50%_a", "new\nline"])
def test_folders_whose_names_mean_something_elsewhere(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nothing in a name is a pattern: folders beside it keep their files, and a lost one is told (case T37)."""
    clock_ahead(monkeypatch)
    twin = {"[set] 01": "s 01", "a*b": "aXb", "what?": "what1", "{x,y}": "x", "50%_a": "50Xba", "new\nline": "new"}[
        name
    ]
    for folder in (name, twin):
        write(tmp_path / "data" / folder / "x" / "a.png", folder.encode())
    assert store.scan(tmp_path / "data").report.files == 2
    assert [row.sample for row in store.scan(tmp_path / "data" / name)] == ["x/a.png"]
    (tmp_path / "data" / name / "x" / "a.png").unlink()
    assert store.scan(tmp_path / "data" / twin).report.missing == 0
    assert store.scan(tmp_path / "data").report.missing == 1
    assert store.sql("SELECT path FROM v_sources WHERE missing_since IS NULL").rows == [
        (str(tmp_path / "data" / twin / "x" / "a.png"),)
    ]


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_names_of_all_kinds_in_any_locale(store: casstore.Store, tmp_path: Path, locale: str) -> None:
    """A child that runs under LC_ALL=C, with ASCII for output, finds and tells them all (case T34)."""
    names = ["кошка.png", "猫.png", "👩‍🎨.png", "تصویر.png", "new\nline.png", os.fsdecode(b"caf\xe9\xff.png")]
    for number, name in enumerate(names):
        picture(tmp_path / "data" / name, number)
    store.close()
    for report in (1, 2):
        done = python(
            *("-m", "casstore", "build", str(tmp_path / "data"), "--encoder", "pixels", "--json"),
            *("--store", str(tmp_path / "store")),
            env={"LC_ALL": locale, "PYTHONIOENCODING": "ascii"},
        )
        assert done.returncode == 0, (report, done.stderr)
    with casstore.open(tmp_path / "store") as again:
        assert {row.sample for row in again.scan(tmp_path / "data")} == set(names)
        assert again.status().sources == len(names)


# -- capitals, links -------------------------------------------------------------------------------------------------


def test_scanning_twice_adds_nothing(store: casstore.Store, tmp_path: Path) -> None:
    """Each file is one source, however often and under which endings it was scanned (case T42)."""
    for name in ("a.JPG", "b.Jpeg", "c.PNG", "X.png", "x.png"):
        write(tmp_path / "data" / name, name.encode())
    for extensions in (None, None, (".PNG", ".jpg", ".JPEG")):
        assert len(store.scan(tmp_path / "data", extensions=extensions)) == 5
    assert store.sql("SELECT count(*) FROM sources").rows == [(5,)]


def test_links_of_every_kind(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One content per target, a dangling one told, and a retargeted one noticed by its inode alone (case T43)."""
    clock_ahead(monkeypatch)
    data = tmp_path / "data"
    one, two = write(tmp_path / "one", b"one"), write(tmp_path / "two", b"two")
    for path in (one, two):
        os.utime(path, ns=(10**18, 10**18))
    data.mkdir()
    (data / "a.png").symlink_to(one)
    (data / "b.png").symlink_to(one)
    os.link(one, data / "c.png")
    (data / "d.png").symlink_to(tmp_path / "nowhere")
    (data / "folder").mkdir()
    (data / "folder" / "loop").symlink_to(data / "folder")
    rows = store.scan(data, ctime=False)
    assert [row.sample for row in rows if row.error] == ["d.png"]
    assert {row.content.digest for row in rows if row.content} == {file_digest(b"one")}
    (data / "a.png").unlink()
    (data / "a.png").symlink_to(two)
    found = store.scan(data, ctime=False)
    assert (found.report.edited, found[0].content and found[0].content.digest) == (1, file_digest(b"two"))


def test_a_store_is_not_entered_whatever_is_looked_for(store: casstore.Store, tmp_path: Path) -> None:
    """Also endings that a store's own files have lead nobody into it."""
    write(tmp_path / "settings.toml")
    assert [row.sample for row in store.scan(tmp_path, extensions=[".toml", ".txt", ".sqlite"])] == ["settings.toml"]


# -- folders that can't be written -----------------------------------------------------------------------------------


def test_nothing_is_written_beside_the_data() -> None:
    """A folder that can't be written is scanned and built from; no name, time or mode in it changes (case T50)."""

    def prepare(folder: Path) -> None:
        for number in range(3):
            picture(folder / "data" / "x" / f"{number}.png", number)
        (folder / "data" / "x" / "1.png").chmod(0)
        (folder / "data" / "x").chmod(0o555)
        (folder / "data").chmod(0o555)

    def work(folder: Path) -> Any:
        def state() -> Any:
            places = [folder / "data", *sorted((folder / "data").rglob("*"))]
            return [(str(p), p.stat().st_mode, p.stat().st_mtime_ns, p.stat().st_ctime_ns) for p in places]

        before = state()
        encoder = FakeEncoder()
        with casstore.open(folder / "store", create=True, durability="off") as store:
            report = build(store, folder / "data", encoder)
            rows = store.scan(folder / "data")
            errors = [row.error for row in rows]
        return [report.encoded, report.failed, errors[0], errors[1], state() == before]

    encoded, failed, fine, error, same = as_nobody(work, prepare)
    assert (encoded, failed, fine, same) == (2, 1, None, True)
    assert "1.png" in error and "Permission denied" in error


def test_a_scan_leaves_the_folder_as_it_was(store: casstore.Store, tmp_path: Path) -> None:
    """Where it could write, it doesn't either."""
    for name in ("a.png", "x/b.png"):
        picture(tmp_path / "data" / name)
    before, when = tree(tmp_path / "data"), (tmp_path / "data").stat().st_mtime_ns
    store.scan(tmp_path / "data")
    store.scan(tmp_path / "data", trust=True)
    assert run(["roots", "ls", "--store", store.path]) == 0
    assert (tree(tmp_path / "data"), (tmp_path / "data").stat().st_mtime_ns) == (before, when)
