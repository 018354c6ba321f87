"""Scans that overlap: of folders inside each other, and of one folder by two processes at the same time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import clock_ahead

import casstore
from casstore.errors import UsageError
from casstore.sources.inputs import Inputs


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def held(inputs: Inputs) -> dict[str, bytes | None]:
    return {row.sample: row.content and row.content.digest for row in inputs}


@pytest.mark.parametrize("beside", ["a_b", "a-b", "a0b", "ab", "a b"])
def test_rows_of_an_adopted_root_are_its_own(store: casstore.Store, tmp_path: Path, beside: str) -> None:
    """A folder beside the root whose name looks like a path in it gives none of its rows."""
    write(tmp_path / "p" / "a" / "b" / "x.png", "red")
    write(tmp_path / "p" / beside / "x.png", "green")
    write(tmp_path / "p" / beside / "b" / "y.png", "blue")
    before = held(store.scan(tmp_path / "p" / "a"))
    late = store.scan(tmp_path / "p" / "a")
    store.scan(tmp_path / "p")
    assert held(late) == before


def test_a_fingerprint_is_not_written_over_what_another_scan_has_found(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder goes and comes back while a scan is on its way: no later scan takes its file for missing."""
    clock_ahead(monkeypatch)
    data = tmp_path / "data"
    for name in ("D/x.png", "E/y.png"):
        write(data / name, name)
    store.scan(data)
    store.scan(data)
    for number in range(20):
        write(data / "Z" / f"{number}.png", f"new {number}")
    moved: list[int] = []

    def meanwhile(done: int, total: int) -> None:
        if not moved:
            os.rename(data / "D", tmp_path / "away")
            with casstore.open(store.path) as other:
                moved.append(other.scan(data).report.missing)
            os.rename(tmp_path / "away", data / "D")

    store.scan(data, links={"caption": ".txt?"}, progress=meanwhile)
    assert moved == [1]
    for _ in range(2):
        assert "D/x.png" in held(store.scan(data, links={"caption": ".txt?"}))
        assert "D/x.png" in held(store.scan(data))


def test_what_has_come_back_is_not_marked_as_missing(store: casstore.Store, tmp_path: Path) -> None:
    """A file that was away when its folder was listed, and is there when the scan ends, isn't missing."""
    data = tmp_path / "data"
    kept = write(data / "x.png", "x")
    store.scan(data)
    kept.rename(tmp_path / "x.png")
    for number in range(20):
        write(data / f"{number}.png", f"new {number}")

    def back(done: int, total: int) -> None:
        if not kept.exists():
            (tmp_path / "x.png").rename(kept)

    assert store.scan(data, progress=back).report.missing == 0
    assert len(held(store.scan(data))) == 21


def test_files_in_many_places_make_roots_that_do_not_nest(store: casstore.Store, tmp_path: Path) -> None:
    """Files whose only common folder is / make a root of each folder that lies in no other; a scan above works."""
    shm = Path("/dev/shm") if os.path.isdir("/dev/shm") else Path("/var/tmp")
    elsewhere = write(shm / f"casstore-{os.getpid()}" / "z.png", "z")
    try:
        paths = [write(tmp_path / "A" / "x.png", "x"), write(tmp_path / "A" / "B" / "y.png", "y"), elsewhere]
        store.inputs([{"image": path} for path in paths])
        roots = [root.path for root in store.roots()]
        assert not [r for r in roots for other in roots if r != other and r.startswith(other + "/")]
        assert len(held(store.scan(tmp_path / "A"))) == 2
        assert len(held(store.scan(tmp_path))) == 2
    finally:
        elsewhere.unlink()
        elsewhere.parent.rmdir()


def test_known_paths_whose_root_is_adopted_meanwhile_belong_to_the_new_one(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process scans the folder above while files are hashed: no second root comes to be inside its own."""
    from casstore.sources import fresh

    paths = [write(tmp_path / "p" / "a" / f"{number}.png", f"{number}") for number in range(3)]
    store.inputs([{"image": paths[0]}])
    real: Callable[..., object] = fresh._hashed

    def late(*arguments: object, **options: object) -> object:
        with casstore.open(store.path) as other:
            other.scan(tmp_path / "p")
        return real(*arguments, **options)

    monkeypatch.setattr(fresh, "_hashed", late)
    rows = store.inputs([{"image": path} for path in paths])
    assert [row.error for row in rows] == [None] * 3
    assert [root.path for root in store.roots()] == [str(tmp_path / "p")]


def test_a_name_that_no_file_can_have_is_a_failure_of_its_row(store: casstore.Store, tmp_path: Path) -> None:
    """A lone surrogate in a path of a table costs that row only."""
    good = write(tmp_path / "a.png", "a")
    store.scan(tmp_path)
    table = tmp_path / "rows.jsonl"
    table.write_text("\n".join(json.dumps({"image": path}) for path in (str(good), "\ud800/a.png", "\ud800.png")))
    assert [row.error is None for row in store.inputs(table)] == [True, False, False]


@pytest.mark.parametrize("extensions", [".mp4", ["mp4"], [None], ["."], [""]])
def test_endings_have_their_dot(store: casstore.Store, tmp_path: Path, extensions: object) -> None:
    """A text in place of a list, or an ending without its dot, would match what nobody means."""
    with pytest.raises(UsageError, match="endings"):
        store.scan(tmp_path, extensions=extensions)  # type: ignore[arg-type]


def test_a_large_folder_of_small_files_tells_how_far_it_is(store: casstore.Store, tmp_path: Path) -> None:
    """Progress doesn't wait for the end of a folder."""
    for number in range(1500):
        write(tmp_path / "data" / f"{number}.png", str(number))
    events: list[tuple[int, int]] = []
    store.scan(tmp_path / "data", progress=lambda done, total: events.append((done, total)))
    assert len(events) >= 3 and events == sorted(events) and events[-1] == (1500, 1500)
