"""Old stores become new ones, whole, or stay as they were."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from core.helpers import Child, child, fast_folder, fill, in_child, on_a_small_disk, outcome, tree
from kit import FIXTURES, ROOT, dump, old_store, python

import casstore
from casstore.cli import run
from casstore.errors import CasstoreError, StoreBusyError, StoreOutdatedError
from casstore.index import driver, migrate
from casstore.index.tables import SCHEMA


def columns(path: Path, table: str) -> str:
    """The columns of a table, for a SELECT."""
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as index:
        return ", ".join(row[1] for row in index.execute(f"PRAGMA table_info({table})"))


def rows(path: Path, asked: dict[str, str] | None = None) -> dict[str, list[Any]]:
    """{table: its rows} of what an upgrade keeps; `asked`: {table: columns}, for those that are new."""
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as index:
        names = [row[0] for row in index.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
        kept = [name for name in names if name not in ("settings", "alembic_version", "sqlite_sequence")]
        asked = asked or {name: columns(path, name) for name in kept}
        found = {
            name: sorted(index.execute(f"SELECT {asked[name]} FROM {name}").fetchall(), key=repr)
            for name in kept
            if name in asked
        }
        # Since 0003, NULL says that a part's inputs are its variant's.
        found["variant_parts"] = index.execute(
            "SELECT variant_id, ordinal, object_id, stamp_id, coalesce(p.inputs_id, v.inputs_id) "
            "FROM variant_parts p JOIN variants v ON v.id = p.variant_id ORDER BY 1, 2"
        ).fetchall()
        return found


def ddl(path: Path) -> set[str]:
    """Everything that makes the schema."""
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as index:
        return {" ".join(row[0].split()) for row in index.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}


def test_there_is_a_fixture_of_every_schema_before_this_one() -> None:
    """Whoever adds a revision adds a store of the last schema (scripts/make_fixture, before the change)."""
    assert [path.name for path in FIXTURES] == [f"store-{n:04}.tar.xz" for n in range(1, SCHEMA)]


@pytest.mark.parametrize("archive", FIXTURES, ids=lambda path: path.name[:10])
def test_an_upgrade_keeps_every_row_and_makes_the_schema_of_a_new_store(tmp_path: Path, archive: Path) -> None:
    """After the upgrade all rows are there, the schema is that of a fresh store, and everything is served."""
    path = old_store(tmp_path, archive)
    before = rows(path)
    asked = {name: columns(path, name) for name in before}
    report = migrate.upgrade(str(path))
    assert (report.before, report.after) == (int(archive.name[6:10]), SCHEMA)
    assert rows(path, asked) == before
    casstore.open(tmp_path / "fresh", create=True, durability="off").close()
    assert ddl(path) == ddl(tmp_path / "fresh")
    with casstore.open(path) as store:
        assert store.verify(deep=True).findings == ()
        found = store.get(casstore.Key.text("a red cat", casstore.Recipe("clip", code=1)), as_numpy=True)
        assert (found["hidden"].tolist(), found["n"]) == ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 1.0)
        assert store.sql("SELECT value FROM settings WHERE key = 'schema'").rows == [(str(SCHEMA),)]


def test_an_old_store_is_not_opened_and_the_message_has_the_command(tmp_path: Path) -> None:
    """Opening never upgrades; the error names the command, which works."""
    path = old_store(tmp_path)
    with pytest.raises(StoreOutdatedError, match=f"casstore db upgrade --store {path}"):
        casstore.open(path)
    assert run(["status", "--store", str(path)]) == 4
    assert run(["db", "upgrade", "--store", str(path)]) == 0
    assert run(["status", "--store", str(path)]) == 0


def test_alembics_own_command_does_the_same(tmp_path: Path) -> None:
    """`alembic -x store=DIR upgrade head` locks, makes a backup, upgrades, and a second time does nothing."""
    path = old_store(tmp_path)
    for _ in range(2):
        done = python("-m", "alembic", "-x", f"store={path}", "upgrade", "head", cwd=ROOT)
        assert done.returncode == 0, done.stderr
    assert len(os.listdir(path / "backups")) == 1
    casstore.open(path).close()


def test_the_backup_is_the_index_as_it_was(tmp_path: Path) -> None:
    """What lies in backups/ after an upgrade can be restored, and is upgraded again then."""
    path = old_store(tmp_path)
    before = dump(path)
    backup = migrate.upgrade(str(path)).backup
    assert backup is not None
    with contextlib.closing(sqlite3.connect(backup)) as copy:
        assert "\n".join(copy.iterdump()) == before


def test_three_backups_are_kept(tmp_path: Path) -> None:
    """The oldest go, whatever schema they are of."""
    path = old_store(tmp_path)
    for name in ("index-0001-20200101T000000Z-1", "index-0009-20190101T000000Z-1", "index-0001-20210101T000000Z-1"):
        (path / "backups" / f"{name}.sqlite").touch()
    migrate.upgrade(str(path))
    names = sorted(name.split("-")[2][:4] for name in os.listdir(path / "backups"))
    assert names[:2] == ["2020", "2021"] and len(names) == 3


def test_a_store_that_is_open_is_not_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process has it open, an upgrade is busy and changes nothing."""
    monkeypatch.setattr("casstore.index.backup.EXCLUSIVE_SECONDS", 0.05)
    casstore.open(tmp_path / "s", create=True, durability="off").close()

    def work(me: Child) -> None:
        with casstore.open(tmp_path / "s"):
            me.say()
            me.hear()

    with child(work) as other:
        other.hear()
        with pytest.raises(StoreBusyError, match="in use"):
            migrate.upgrade(str(tmp_path / "s"))
        other.say()
        other.result()
    assert migrate.upgrade(str(tmp_path / "s")).backup is None


def test_three_processes_may_upgrade_at_once(tmp_path: Path) -> None:
    """One of them does it, the others find it done; twenty times."""
    for number in range(20):
        path = old_store(tmp_path / str(number))

        def work(me: Child, path: Path = path) -> str:
            me.say()
            me.hear()
            return outcome(lambda: migrate.upgrade(str(path)))

        racers = [Child(work) for _ in range(3)]
        for racer in racers:
            racer.hear()
        for racer in racers:
            racer.say()
        assert [racer.result() for racer in racers] == ["fine"] * 3
        assert len(os.listdir(path / "backups")) == 1
        casstore.open(path).close()


def statements_of_an_upgrade(tmp_path: Path) -> int:
    """How many statements an upgrade runs."""
    count = 0

    def counted(_: str) -> None:
        nonlocal count
        count += 1

    with traced(counted):
        migrate.upgrade(str(old_store(tmp_path / "counted")))
    return count


@contextlib.contextmanager
def traced(callback: Any) -> Any:
    """Call back with every statement that SQLite begins, on connections opened in the block."""
    honest = driver.sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        raw = honest(*arguments, **options)
        raw.set_trace_callback(callback)
        return raw

    driver.sqlite3.connect = connect
    try:
        yield
    finally:
        driver.sqlite3.connect = honest


def test_a_kill_at_any_statement_leaves_the_old_index_or_the_new_one(tmp_path: Path) -> None:
    """kill -9 at the n-th statement, for each n: the index is as it was or upgraded, and a second try succeeds."""
    path = old_store(tmp_path / "old")
    old = dump(path)
    migrate.upgrade(str(path))
    new = dump(path)
    outcomes = set()
    for number in range(1, statements_of_an_upgrade(tmp_path) + 1):
        path = old_store(tmp_path / str(number))

        def work(me: Child, path: Path = path, last: int = number) -> None:
            left = last

            def kill(_: str) -> None:
                nonlocal left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

            with traced(kill):
                migrate.upgrade(str(path))

        with child(work) as victim, contextlib.suppress(AssertionError):  # it says nothing any more
            victim.hear()
        found = dump(path)
        assert found in (old, new), f"statement {number}"
        outcomes.add(found == new)
        migrate.upgrade(str(path))
        assert dump(path) == new
    assert outcomes == {True, False}


def no_disk(place: Path) -> Any:
    """Fill up the disk; what makes room again."""
    fill(place)
    return (place / "filler").unlink


def no_growth(_: Path) -> Any:
    """Let this process write to no file any more, wherever it is; what lifts that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # Python ignores SIGXFSZ, so a write is an EFBIG
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("stop", [no_disk, no_growth])
def test_a_disk_that_is_full_from_any_statement_on_leaves_the_old_index_or_the_new_one(
    tmp_path: Path, stop: Any
) -> None:
    """No room from the n-th statement on, for each n: a typed error and the old index, or the new one; with room the
    next try succeeds, and no half copy is left in backups/."""
    last = statements_of_an_upgrade(tmp_path)

    def work(place: Path) -> list[Any]:
        path = old_store(place / "old")
        old = dump(path)
        migrate.upgrade(str(path))
        new = dump(path)
        found = []
        for number in range(1, last + 1):
            path = old_store(place / str(number))
            left, lift = number, None

            def count(_: str) -> None:
                nonlocal left, lift
                left -= 1
                if not left:
                    lift = stop(place)

            error: Exception | None = None
            with traced(count):
                try:
                    migrate.upgrade(str(path))
                except Exception as caught:
                    error = caught
            assert lift is not None, f"statement {number} was never reached"
            lift()
            state = {old: "old", new: "new"}.get(dump(path), "neither")
            typed = error is None or isinstance(error, CasstoreError)
            parts = [name for name in os.listdir(path / "backups") if ".part" in name]
            again = outcome(migrate.upgrade, str(path))
            found.append([number, "fine" if error is None else "failed", state, typed, parts, again, dump(path) == new])
            shutil.rmtree(path.parent)
        return found

    with fast_folder() as folder:
        found = on_a_small_disk(tmp_path, work) if stop is no_disk else in_child(lambda: work(folder))
    rest = [True, [], "fine", True]
    assert [each for each in found if each[1:] not in (["fine", "new", *rest], ["failed", "old", *rest])] == []
    assert {told for _, told, *_ in found} == {"fine", "failed"}, "what was never full proves nothing"


@pytest.mark.parametrize("step", ["backup", "revision", "view", "stamp"])
def test_an_error_at_any_step_leaves_the_old_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A disk that is full, or a revision that fails, costs nothing: same rows, same schema, nobody locked out."""
    path = old_store(tmp_path)
    before = dump(path)

    def fail(*_: Any, **__: Any) -> None:
        raise driver.sqlite3.OperationalError("database or disk is full")

    if step == "backup":
        monkeypatch.setattr("casstore.index.backup.fsio.flush_file", fail)
    elif step == "revision":
        monkeypatch.setattr("alembic.op.execute", fail)
    elif step == "view":
        monkeypatch.setitem(migrate.VIEWS, "v_broken", "SELECT no_such_column FROM")
    else:
        monkeypatch.setattr(migrate, "APPLICATION_ID", "(")
        monkeypatch.setattr(migrate, "_checked_schema", lambda *_: 1)
    with pytest.raises(Exception, match=r"full|incomplete|near"):
        migrate.upgrade(str(path))
    monkeypatch.undo()
    assert dump(path) == before
    assert migrate.upgrade(str(path)).after == SCHEMA


def test_an_upgrade_that_the_disk_cannot_hold_is_refused_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written, the error says how much is needed and free; exit code 6."""
    path = old_store(tmp_path)
    before = tree(path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1234})())
    assert run(["db", "upgrade", "--store", str(path)]) == 6
    assert "1,234 are free" in capsys.readouterr().err
    assert tree(path) == before


def test_a_restored_index_knows_what_must_be_encoded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a restore, objects that are gone are damaged; a dry run changes nothing; the index as it was is kept."""
    path = old_store(tmp_path)
    backup = migrate.upgrade(str(path)).backup
    with casstore.open(path) as store:
        store.forget(casstore.Recipe("clip", code=1)).execute()
        assert store.gc(yes=True, grace_hours=0).swept >= 1
        variants = store.status().variants
    before = dump(path)
    arguments = ["db", "restore", str(backup), "--store", str(path), "--json"]
    assert run(arguments) == 0 and dump(path) == before
    capsys.readouterr()
    assert run([*arguments, "--yes"]) == 0
    told = json.loads(capsys.readouterr().out)
    with casstore.open(path) as store:
        assert store.status().variants == told["variants"] == variants + 2
        assert store.status().damaged == told["damaged"] >= 1
        key = casstore.Key.text("a red cat", casstore.Recipe("clip", code=1))
        assert getattr(store.lookup(key), "reason", None) == "damaged"
    with contextlib.closing(sqlite3.connect(told["backup"])) as kept:
        assert kept.execute("SELECT count(*) FROM variants").fetchone() == (variants,)


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 1000], ids=["missing", "empty", "garbage"])
def test_what_is_no_backup_is_not_restored(tmp_path: Path, content: bytes | None) -> None:
    """A missing, empty or foreign file is a usage error, and the index stays as it is."""
    path = old_store(tmp_path)
    before = dump(path)
    if content is not None:
        (tmp_path / "backup").write_bytes(content)
    assert run(["db", "restore", str(tmp_path / "backup"), "--store", str(path), "--yes"]) == 2
    assert dump(path) == before


@pytest.mark.parametrize("state", ["garbage", "missing", "empty"])
def test_a_backup_stands_in_for_an_index_that_is_lost(tmp_path: Path, state: str) -> None:
    """Where there is no database to write into, the backup takes its place, and what was there is kept aside."""
    path = old_store(tmp_path)
    backup = migrate.upgrade(str(path)).backup
    index = path / "index.sqlite"
    if state == "missing":
        index.unlink()
    else:
        index.write_bytes(b"garbage" * 1000 if state == "garbage" else b"")
    assert run(["db", "restore", str(backup), "--store", str(path), "--yes"]) == 0
    with casstore.open(path) as store:
        assert store.verify(deep=True).findings == ()
        assert store.status().variants == 5
    broken = [name for name in os.listdir(path / "backups") if name.startswith("broken")]
    assert len(broken) == (state == "garbage")


def test_an_old_store_is_upgraded_on_request(tmp_path: Path) -> None:
    """With `auto_upgrade` it opens, with a backup; a second time there is nothing to do; without, it is refused."""
    path = old_store(tmp_path)
    with pytest.raises(StoreOutdatedError):
        casstore.open(path)
    for _ in range(2):
        with casstore.open(path, auto_upgrade=True) as store:
            assert store.status().variants == 5
    assert len(list((path / "backups").iterdir())) == 1
