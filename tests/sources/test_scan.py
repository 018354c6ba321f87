"""Scanning: which files are found, in which order, and when they are opened again."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import as_nobody, clock_ahead, edit_in_place, spy, without_ctime

import casstore
from casstore.errors import UsageError
from casstore.identity.digests import file_digest

READ = "casstore.sources.hashing.read_source"


def write(path: Path, data: bytes | str = b"any bytes") -> Path:
    """A file with these bytes, and the folders above it. A scan takes it by its ending, whatever is in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def samples(inputs: Any) -> list[str]:
    return [row.sample for row in inputs]


def held(inputs: Any) -> list[bytes | None]:
    """The digest of each row's content."""
    return [row.content and row.content.digest for row in inputs]


def missing(store: casstore.Store) -> list[str]:
    """Paths of the sources that are noted as gone, relative to their roots."""
    query = (
        "SELECT d.relpath || '/' || s.name FROM sources s JOIN directories d ON d.id = s.directory_id "
        "WHERE s.missing_since IS NOT NULL ORDER BY 1"
    )
    return [row[0].lstrip("/") for row in store.sql(query).rows]


# -- what is found ---------------------------------------------------------------------------------------------------


def test_sub_folders_are_searched(store: casstore.Store, tmp_path: Path) -> None:
    """Files at any depth are found, under their path below the folder."""
    for name in ("a.png", "x/b.png", "x/y/z/c.png"):
        write(tmp_path / "data" / name)
    assert samples(store.scan(tmp_path / "data")) == ["a.png", "x/b.png", "x/y/z/c.png"]


PARTS = st.text(st.sampled_from("aB-_é0~ 你"), min_size=1, max_size=3)


def test_rows_are_ordered_by_the_bytes_of_their_paths(store: casstore.Store, tmp_path: Path) -> None:
    """Whatever the names, rows come in the order of their paths' bytes, so that "a-b" stands before "a/b"."""
    count = iter(range(10_000))

    @settings(max_examples=30)
    @given(st.sets(st.lists(PARTS, min_size=1, max_size=3).map("/".join), min_size=1, max_size=8))
    def check(names: set[str]) -> None:
        folder = tmp_path / str(next(count))
        files = {f"{name}.png" for name in names}
        for name in files:
            write(folder / name)
        assert samples(store.scan(folder)) == sorted(files, key=os.fsencode)

    check()


def test_endings_count_in_any_case(store: casstore.Store, tmp_path: Path) -> None:
    """A picture's ending is recognised in upper, lower and mixed case (case T42)."""
    names = ["a.JPG", "b.Jpeg", "c.PNG", "d.wEbP", "e.gif", "f.BMP", "g.tif", "h.tiff", "i.AVIF"]
    for name in names:
        write(tmp_path / "data" / name)
    assert samples(store.scan(tmp_path / "data")) == names


def test_other_endings_and_hidden_names_are_passed_over(store: casstore.Store, tmp_path: Path) -> None:
    """Files without a picture's ending, hidden files and files in hidden folders are no sources."""
    for name in ("a.txt", "a.npz", "png", "a.png.bak", ".a.png", ".hidden/a.png", "x/.cache/a.png"):
        write(tmp_path / "data" / name)
    assert samples(store.scan(tmp_path / "data")) == []


def test_the_endings_can_be_chosen(store: casstore.Store, tmp_path: Path) -> None:
    """With `extensions`, exactly the files with these endings are taken."""
    write(tmp_path / "data" / "a.png")
    write(tmp_path / "data" / "b.dds")
    assert samples(store.scan(tmp_path / "data", extensions=[".dds"])) == ["b.dds"]


def test_case_twins_are_two_files(store: casstore.Store, tmp_path: Path) -> None:
    """X.png and x.png are two sources."""
    write(tmp_path / "data" / "X.png", "1")
    write(tmp_path / "data" / "x.png", "2")
    assert len(set(held(store.scan(tmp_path / "data")))) == 2


@pytest.mark.parametrize("through", ["folder", "link"])
def test_stores_are_never_entered(store: casstore.Store, tmp_path: Path, through: str) -> None:
    """No file inside a store, not even one reached through a link, is taken for a picture."""
    write(tmp_path / "data" / "a.png")
    write(Path(store.path) / "tmp" / "b.png")
    if through == "link":
        (tmp_path / "data" / "cache").symlink_to(store.path)
        assert samples(store.scan(tmp_path / "data")) == ["a.png"]
    else:
        assert samples(store.scan(tmp_path)) == ["data/a.png"]


@pytest.mark.parametrize("place", ["missing", "a-file.png", "store"])
def test_only_folders_of_pictures_can_be_scanned(store: casstore.Store, tmp_path: Path, place: str) -> None:
    """A missing folder, a file and a store are refused, and the message names the path."""
    write(tmp_path / "a-file.png")
    with pytest.raises(UsageError, match=str(tmp_path / place)):
        store.scan(tmp_path / place)


def test_scanning_nothing_is_refused(store: casstore.Store) -> None:
    """A scan without a folder is a mistake of the caller's."""
    with pytest.raises(UsageError, match="at least one folder"):
        store.scan()


def test_a_folder_without_pictures_gives_no_rows(store: casstore.Store, tmp_path: Path) -> None:
    """An empty folder can be scanned; there is just nothing in it."""
    (tmp_path / "data").mkdir()
    assert len(store.scan(tmp_path / "data")) == 0


# -- links -----------------------------------------------------------------------------------------------------------


def test_links_to_files_and_folders_are_followed(store: casstore.Store, tmp_path: Path) -> None:
    """A linked file and the files of a linked folder are found under the link's path, with the target's content."""
    write(tmp_path / "elsewhere" / "deep" / "b.png", "b")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").symlink_to(tmp_path / "elsewhere" / "deep" / "b.png")
    (tmp_path / "data" / "folder").symlink_to(tmp_path / "elsewhere")
    rows = store.scan(tmp_path / "data")
    assert samples(rows) == ["a.png", "folder/deep/b.png"]
    assert held(rows) == [file_digest(b"b")] * 2


def test_loops_of_links_end(store: casstore.Store, tmp_path: Path) -> None:
    """Links to a folder above, to each other and to themselves end; each real folder is searched once."""
    data = tmp_path / "data"
    write(data / "a" / "1.png")
    write(data / "b" / "2.png")
    (data / "a" / "loop").symlink_to(data / "a")
    (data / "a" / "up").symlink_to(data)
    (data / "a" / "other").symlink_to(data / "b")
    (data / "b" / "other").symlink_to(data / "a")
    (data / "self").symlink_to(data / "self")
    rows = store.scan(data)
    assert sorted(Path(row.path).name for row in rows) == ["1.png", "2.png"]


def test_a_dangling_link_is_a_row_with_an_error(store: casstore.Store, tmp_path: Path) -> None:
    """A link to nothing is a row that says so, and costs the other rows nothing."""
    write(tmp_path / "data" / "a.png")
    (tmp_path / "data" / "b.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "data" / "c.png").symlink_to(tmp_path / "data" / "c.png")
    rows = store.scan(tmp_path / "data")
    assert [row.content is None for row in rows] == [False, True, True]
    assert [row.path in (row.error or "") for row in rows] == [False, True, True]


def test_a_link_to_other_content_of_equal_size_and_time_is_noticed(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retargeted link is new content although size and mtime agree: the inode tells."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("one", "two"):
        os.utime(write(tmp_path / name, name), ns=(10**18, 10**18))
    without_ctime(monkeypatch)
    (data / "a.png").symlink_to(tmp_path / "one")
    store.scan(data)
    (data / "a.png").unlink()
    (data / "a.png").symlink_to(tmp_path / "two")
    assert held(store.scan(data)) == [file_digest(b"two")]


def test_a_link_beside_a_folder_makes_nothing_missing(store: casstore.Store, tmp_path: Path) -> None:
    """A file that is still where it was isn't noted as gone because a link to its folder has appeared."""
    write(tmp_path / "data" / "real" / "a.png")
    store.scan(tmp_path / "data")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "data" / "real")
    store.scan(tmp_path / "data")
    assert missing(store) == []


# -- what can't be read ----------------------------------------------------------------------------------------------


def test_an_unreadable_file_is_a_row_with_an_error() -> None:
    """A file without read permission is a row whose error names it; the others are hashed as ever."""

    def work(folder: Path) -> Any:
        for name in ("a.png", "b.png", "c.png"):
            write(folder / "data" / name, name)
        (folder / "data" / "b.png").chmod(0)
        with casstore.open(folder / "store", create=True, durability="off") as store:
            return [(row.sample, row.content is not None, row.error) for row in store.scan(folder / "data")]

    rows = as_nobody(work)
    assert [row[:2] for row in rows] == [["a.png", True], ["b.png", False], ["c.png", True]]
    assert "b.png" in rows[1][2] and "Permission denied" in rows[1][2]


@pytest.mark.parametrize("closed", ["data/x", "data/x/y", "data"])
def test_a_folder_that_cannot_be_listed_makes_nothing_missing(closed: str) -> None:
    """Nothing at or below a folder that can't be listed is noted as gone."""

    def work(folder: Path) -> Any:
        for name in ("a.png", "x/b.png", "x/y/c.png"):
            write(folder / "data" / name, name)
        with casstore.open(folder / "store", create=True, durability="off") as store:
            store.scan(folder / "data")
            (folder / closed).chmod(0)
            store.scan(folder / "data")
            (folder / closed).chmod(0o700)
            return missing(store)

    assert as_nobody(work) == []


def test_a_pipe_named_like_a_picture_is_a_row_with_an_error(store: casstore.Store, tmp_path: Path) -> None:
    """A scan doesn't wait for somebody to write into a named pipe: it isn't a regular file, and the row says so."""
    write(tmp_path / "data" / "a.png")
    os.mkfifo(tmp_path / "data" / "b.png")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(store.scan(tmp_path / "data")))
    thread.start()
    thread.join(5)
    hung = thread.is_alive()
    if hung:  # let it go on, so that this process can end
        os.close(os.open(tmp_path / "data" / "b.png", os.O_RDWR | os.O_NONBLOCK))
    thread.join()
    assert not hung
    assert [row.content is None for row in found] == [False, True]


def test_a_file_that_can_be_read_again_loses_its_error(store: casstore.Store, tmp_path: Path) -> None:
    """What couldn't be read at one scan is read at the next when that is possible."""
    target = tmp_path / "target"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").symlink_to(target)
    store.scan(tmp_path / "data")
    write(target, "back")
    rows = store.scan(tmp_path / "data")
    assert (held(rows), rows[0].error) == ([file_digest(b"back")], None)


# -- freshness -------------------------------------------------------------------------------------------------------


def test_settled_files_are_not_opened_again(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unchanged files that were old enough at the last scan are recognised without being opened, with their content."""
    for name in ("a.png", "x/b.png"):
        write(tmp_path / "data" / name, name)
    clock_ahead(monkeypatch)
    first = store.scan(tmp_path / "data")
    opened = spy(monkeypatch, READ)
    assert list(store.scan(tmp_path / "data")) == list(first)
    assert opened == []


def test_a_young_file_is_hashed_again_by_the_next_scan_only(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file younger than two seconds isn't trusted; once it was hashed at a greater age, it is."""
    write(tmp_path / "data" / "a.png")
    store.scan(tmp_path / "data")
    clock_ahead(monkeypatch)
    opened = spy(monkeypatch, READ)
    store.scan(tmp_path / "data")
    assert len(opened) == 1
    store.scan(tmp_path / "data")
    assert len(opened) == 1


def test_a_file_from_the_future_is_never_trusted(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose mtime lies ahead of the clock is hashed at every scan."""
    os.utime(write(tmp_path / "data" / "a.png"), ns=(4 * 10**18, 4 * 10**18))
    opened = spy(monkeypatch, READ)
    for _ in range(3):
        store.scan(tmp_path / "data")
    assert len(opened) == 3


def test_an_edit_within_the_same_tick_is_noticed(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit in place that leaves size, mtime, ctime and inode as they were is noticed while the file is young."""
    without_ctime(monkeypatch)
    path = write(tmp_path / "data" / "a.png", "before")
    store.scan(tmp_path / "data")
    edit_in_place(path, b"behind")
    assert held(store.scan(tmp_path / "data")) == [file_digest(b"behind")]


def test_an_edit_with_its_mtime_restored_is_noticed_by_ctime(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit in place of a trusted file, with size and mtime restored, is noticed (case T1b)."""
    path = write(tmp_path / "data" / "a.png", "before")
    clock_ahead(monkeypatch)
    store.scan(tmp_path / "data")
    edit_in_place(path, b"behind")
    assert held(store.scan(tmp_path / "data")) == [file_digest(b"behind")]


def test_only_the_edited_file_is_hashed(store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many trusted files, an edited one, a new one and a moved one are opened, and no other."""
    for number in range(10):
        write(tmp_path / "data" / f"{number}.png", str(number))
    clock_ahead(monkeypatch)
    store.scan(tmp_path / "data")
    write(tmp_path / "data" / "3.png", "edited")
    write(tmp_path / "data" / "new.png")
    (tmp_path / "data" / "5.png").rename(tmp_path / "data" / "moved.png")
    opened = spy(monkeypatch, READ)
    store.scan(tmp_path / "data")
    assert sorted(Path(path).name for path in opened) == ["3.png", "moved.png", "new.png"]


def test_what_was_hashed_before_a_stop_is_kept(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C during a scan, the next scan doesn't open again what the first one had hashed."""
    for number in range(400):
        write(tmp_path / "data" / f"{number}.png", str(number))
    clock_ahead(monkeypatch)

    def stop(done: int, total: int) -> None:
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.scan(tmp_path / "data", progress=stop)
    opened = spy(monkeypatch, READ)
    assert len(store.scan(tmp_path / "data")) == 400
    assert len(opened) <= 400 - 32


def test_progress_counts_up_to_the_number_of_files_to_hash(store: casstore.Store, tmp_path: Path) -> None:
    """Progress never goes back and ends at its total."""
    for number in range(9):
        write(tmp_path / "data" / f"{number}.png", str(number))
    events: list[tuple[int, int]] = []
    store.scan(tmp_path / "data", progress=lambda done, total: events.append((done, total)))
    assert events == sorted(events) and events[-1] == (9, 9)


# -- what has gone, and what was there before ------------------------------------------------------------------------


def test_a_vanished_file_is_missing_until_it_returns(store: casstore.Store, tmp_path: Path) -> None:
    """A deleted file gets missing_since; when it is back it loses it."""
    path = write(tmp_path / "data" / "x" / "a.png")
    write(tmp_path / "data" / "b.png")
    store.scan(tmp_path / "data")
    path.rename(tmp_path / "kept")
    store.scan(tmp_path / "data")
    assert (missing(store), store.status().missing, store.status().sources) == (["x/a.png"], 1, 1)
    (tmp_path / "kept").rename(path)
    store.scan(tmp_path / "data")
    assert (missing(store), store.status().missing, store.status().sources) == ([], 0, 2)


def test_the_files_of_a_vanished_folder_are_missing(store: casstore.Store, tmp_path: Path) -> None:
    """When a folder goes, everything in it has gone."""
    for name in ("a.png", "x/b.png", "x/y/c.png"):
        write(tmp_path / "data" / name)
    store.scan(tmp_path / "data")
    (tmp_path / "data" / "x").rename(tmp_path / "away")
    store.scan(tmp_path / "data")
    assert missing(store) == ["x/b.png", "x/y/c.png"]


def test_missing_since_is_the_first_scan_that_missed_it(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later scans that don't find the file either don't move the time."""
    path = write(tmp_path / "data" / "a.png")
    store.scan(tmp_path / "data")
    path.unlink()
    store.scan(tmp_path / "data")
    since = store.sql("SELECT missing_since FROM sources").rows
    monkeypatch.setattr("casstore.index.sources.now_ms", lambda: 4 * 10**12)
    store.scan(tmp_path / "data")
    assert store.sql("SELECT missing_since FROM sources").rows == since


def test_a_scan_for_other_endings_makes_nothing_missing(store: casstore.Store, tmp_path: Path) -> None:
    """Files that a scan didn't look for aren't noted as gone."""
    write(tmp_path / "data" / "a.png")
    store.scan(tmp_path / "data")
    store.scan(tmp_path / "data", extensions=[".jpg"])
    assert missing(store) == []


def test_the_old_content_of_an_edited_file_is_remembered(store: casstore.Store, tmp_path: Path) -> None:
    """source_contents holds what a file has held before, and only that."""
    path = write(tmp_path / "data" / "a.png", "first")
    write(tmp_path / "data" / "b.png", "same")
    store.scan(tmp_path / "data")
    path.write_bytes(b"second")
    store.scan(tmp_path / "data")
    query = (
        "SELECT s.name, h.digest FROM source_contents c JOIN sources s ON s.id = c.source_id "
        "JOIN hashes h ON h.id = c.hash_id"
    )
    assert store.sql(query).rows == [("a.png", file_digest(b"first").hex())]


# -- roots and several folders ---------------------------------------------------------------------------------------


def test_a_sub_folder_of_a_known_root_belongs_to_it(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scanning a sub-folder makes no new root and hashes nothing anew; samples are relative to what was asked for."""
    for name in ("a.png", "x/b.png", "x/y/c.png"):
        write(tmp_path / "data" / name, name)
    clock_ahead(monkeypatch)
    store.scan(tmp_path / "data")
    opened = spy(monkeypatch, READ)
    assert samples(store.scan(tmp_path / "data" / "x")) == ["b.png", "y/c.png"]
    assert (opened, store.sql("SELECT count(*) FROM roots").rows) == ([], [(1,)])


def test_scanning_a_sub_folder_judges_that_folder_only(store: casstore.Store, tmp_path: Path) -> None:
    """A file that vanished is noticed by a scan of its folder, and not by one of the folder beside it."""
    for name in ("a.png", "x/b.png", "xx/c.png"):
        write(tmp_path / "data" / name)
    store.scan(tmp_path / "data")
    for name in ("a.png", "x/b.png", "xx/c.png"):
        (tmp_path / "data" / name).unlink()
    store.scan(tmp_path / "data" / "x")
    assert missing(store) == ["x/b.png"]


@pytest.mark.parametrize("form", ["data", "./data", "x/../data", "data/"])
def test_all_forms_of_a_path_are_one_root(
    store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A relative path, one with dots and one with a slash at its end mean the same folder (case T44)."""
    write(tmp_path / "data" / "a.png")
    (tmp_path / "x").mkdir()
    store.scan(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    assert samples(store.scan(form)) == ["a.png"]
    assert store.sql("SELECT path FROM roots").rows == [(str(tmp_path / "data"),)]


def test_samples_of_several_folders_begin_with_the_folders_name(store: casstore.Store, tmp_path: Path) -> None:
    """Equal names in two folders are told apart by the names of the folders."""
    write(tmp_path / "one" / "a.png")
    write(tmp_path / "two" / "a.png")
    assert samples(store.scan(tmp_path / "one", tmp_path / "two")) == ["one/a.png", "two/a.png"]


def test_a_sample_that_stands_twice_is_refused_with_both_paths(store: casstore.Store, tmp_path: Path) -> None:
    """Two folders of the same name that hold files of the same name are refused; the message names both files."""
    one = write(tmp_path / "1" / "set" / "a.png")
    two = write(tmp_path / "2" / "set" / "a.png")
    with pytest.raises(UsageError) as error:
        store.scan(one.parent, two.parent)
    assert str(one) in str(error.value) and str(two) in str(error.value)
