"""verify: finds every damage, notes it, moves nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from core.helpers import expect, flipped, get, object_file, overwrite, put, sql, tree

import casstore
from casstore import fsio
from casstore.errors import CasstoreError
from casstore.objects import container
from casstore.upkeep import verify as verifying


@pytest.fixture
def three(store: casstore.Store) -> casstore.Store:
    """A store with a, b and c."""
    put(store, "a", "b", "c")
    return store


def found(store: casstore.Store, *, deep: bool = False) -> dict[str, str]:
    """{digest or key: problem} of a verification whose counts fit its findings."""
    report = store.verify(deep=deep)
    assert report.damaged == len(report.findings)
    assert report.checked == store.status().objects
    return {finding.name: finding.problem for finding in report.findings}


def objects_of(store: casstore.Store) -> dict[str, tuple[str, str]]:
    return {str(folder): tree(Path(store.path, folder)) for folder in ("objects", "quarantine", "tmp")}  # type: ignore[misc]


def marked(store: casstore.Store) -> set[str]:
    return {row[0] for row in store.sql("SELECT digest FROM v_objects WHERE damaged_at IS NOT NULL").rows}


@pytest.mark.parametrize("deep", [False, True])
def test_a_healthy_store_has_no_findings(three: casstore.Store, deep: bool) -> None:
    """Nothing is found and nothing marked; only a deep look counts as verified."""
    assert found(three, deep=deep) == {}
    dates = three.sql("SELECT verified_at IS NOT NULL FROM v_objects").rows
    assert dates == [(int(deep),)] * 3
    assert marked(three) == set()


@pytest.mark.parametrize("deep", [False, True])
def test_missing_files_and_wrong_sizes_are_found_without_reading(three: casstore.Store, deep: bool) -> None:
    """Both kinds of verify name the objects, mark them, move nothing, and say the same again the next time."""
    gone, longer = object_file(three, "a"), object_file(three, "b")
    gone.unlink()
    overwrite(longer, longer.read_bytes() + b"x")
    before = objects_of(three)
    first = found(three, deep=deep)
    assert set(first) == marked(three) == {gone.stem, longer.stem}
    assert "gone" in first[gone.stem] and "bytes" in first[longer.stem]
    assert found(three, deep=deep) == first
    assert objects_of(three) == before
    assert [get(three, name) for name in "abc"] == ["damaged", "damaged", expect("c")]


def test_a_flipped_bit_is_found_by_a_deep_verify_only(three: casstore.Store) -> None:
    """Plain verify doesn't read; deep does, marks, moves nothing, and from then on both report it."""
    path = object_file(three, "a")
    overwrite(path, flipped(path.read_bytes(), -9, 3))
    before = objects_of(three)
    assert found(three) == {}
    assert set(found(three, deep=True)) == marked(three) == {path.stem}
    assert set(found(three)) == set(found(three, deep=True)) == {path.stem}
    assert objects_of(three) == before


def test_a_whole_container_with_other_content_is_found(three: casstore.Store) -> None:
    """BLAKE3 decides: a file that is sound in itself, with fitting checksums everywhere, isn't another's content."""
    path, other = object_file(three, "a"), object_file(three, "b")
    layout, payload, _ = container.decode(other.read_bytes())
    forged = b"".join(container.encode(layout, payload, bytes.fromhex(path.stem)))
    overwrite(path, forged)
    numbers = (len(forged), verifying.signed(verifying.xxhash.xxh3_64_intdigest(forged)))
    sql(
        three,
        "UPDATE objects SET stored_bytes = ?, stored_xxh3 = ? WHERE digest = ?",
        *numbers,
        bytes.fromhex(path.stem),
    )
    assert found(three) == {}
    assert found(three, deep=True) == {path.stem: "its content isn't what its name says"}


def test_a_file_that_isnt_the_one_that_was_written_is_found(three: casstore.Store) -> None:
    """Another encoding of the right content has another checksum than its row, and is reported by a deep verify."""
    sql(three, "UPDATE objects SET stored_xxh3 = stored_xxh3 + 1 WHERE id = 1")
    assert found(three) == {}
    assert list(found(three, deep=True).values()) == ["the checksum of its file differs"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE variants SET checksum = checksum + 1 WHERE id = 1",
        "UPDATE variants SET variation = 1 WHERE id = 1",
        "UPDATE variants SET values_id = 2 WHERE id = 1",
        "UPDATE value_sets SET data = '{}' WHERE id = 1",
        "DELETE FROM variant_parts WHERE variant_id = 1",
        "UPDATE variant_parts SET object_id = 1 + object_id % 3 WHERE variant_id = 1",
        "UPDATE variant_parts SET object_id = 99 WHERE variant_id = 1",
        "UPDATE variant_parts SET stamp_id = 99 WHERE variant_id = 1",
        "UPDATE variants SET hash_id = 99 WHERE id = 1",
        "UPDATE variants SET recipe_id = 99 WHERE id = 1",
        "UPDATE variants SET resolution = CAST(x'ff' AS TEXT) WHERE id = 1",
    ],
)
def test_a_row_of_the_index_that_doesnt_fit_is_found(three: casstore.Store, change: str) -> None:
    """A deep verify reports just the variant whose row was changed, its values, parts and dangling ids included."""
    sql(three, change)
    report = three.verify(deep=True)
    assert [finding.what for finding in report.findings] == ["variant"]
    assert [get(three, name) for name in "bc"] == [expect("b"), expect("c")]


def test_a_put_makes_a_damaged_store_clean_again(three: casstore.Store) -> None:
    """After the next put of the same results nothing is left to report, and the marks are gone."""
    object_file(three, "a").unlink()
    path = object_file(three, "b")
    overwrite(path, bytes(path.stat().st_size))
    assert len(found(three, deep=True)) == 2
    put(three, "a", "b", "c")
    assert found(three, deep=True) == {}
    assert marked(three) == set()


@pytest.mark.parametrize("deep", [False, True])
def test_what_is_healed_while_verify_runs_is_no_finding(three: casstore.Store, deep: bool) -> None:
    """An object that another process puts anew between the look and the note is neither reported nor marked."""
    object_file(three, "a").unlink()
    report = three.verify(deep=deep, progress=lambda count: put(three, "a") if count == 3 else None)
    assert report.findings == ()
    assert get(three, "a") == expect("a")


def test_what_is_swept_while_verify_runs_is_no_finding(three: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that gc takes after its row was read is no damage."""
    path = object_file(three, "a")
    three.forget(casstore.Key.text("a", casstore.Recipe("r"))).execute()
    real, swept = fsio.size_of, []

    def size_of(place: str) -> int | None:
        if not swept and place == str(path):
            swept.append(three.gc(yes=True, grace_hours=0).swept)
        return real(place)

    monkeypatch.setattr(fsio, "size_of", size_of)
    assert three.verify(deep=True).findings == ()
    assert swept == [1]


def test_progress_counts_every_object_over_all_chunks(three: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are only how the index is read: with any size every object and every variant is looked at once."""
    monkeypatch.setattr(verifying, "CHUNK", 2)
    object_file(three, "c").unlink()
    sql(three, "UPDATE variants SET checksum = 0")
    seen: list[int] = []
    report = three.verify(deep=True, progress=seen.append)
    assert seen == [1, 2, 3]
    assert sorted(finding.what for finding in report.findings) == ["object", *["variant"] * 3]


@pytest.mark.parametrize(
    ("number", "damaged"), [(errno.EIO, 3), (errno.EMFILE, 0), (errno.ENOMEM, 0), (errno.EACCES, 0)]
)
def test_only_the_disk_makes_an_unreadable_file_damaged(
    three: casstore.Store, number: int, damaged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO is damage; too few descriptors, memory or rights say nothing about an object: an error, and no marks."""

    def refusing(real: Any) -> Any:
        def opened(path: Any, *arguments: Any, **options: Any) -> Any:
            if str(path).endswith(".cso"):
                raise OSError(number, os.strerror(number))
            return real(path, *arguments, **options)

        return opened

    monkeypatch.setattr(verifying, "open", refusing(open), raising=False)
    monkeypatch.setattr(os, "open", refusing(os.open))
    try:
        found_damaged = three.verify(deep=True).damaged
    except CasstoreError:
        found_damaged = 0
    monkeypatch.undo()
    assert (found_damaged, len(marked(three))) == (damaged, damaged)
