"""How SQLite goes about our statements: what is asked per key must not walk a table that grows with the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.helpers import handle_of, key, put
from kit import FakeEncoder, build, pictures
from sqlalchemy import event

import casstore
from casstore.core.read import lookup
from casstore.index.bulk import Statement
from casstore.index.states import States


def per_key(store: casstore.Store, photos: Path) -> list[Callable[[], Any]]:
    """Calls whose cost must not depend on what else is stored."""
    recipe = FakeEncoder().recipe
    return [
        lambda: lookup(handle_of(store), [key("a")]),
        lambda: lookup(handle_of(store), [key("not there")]),
        lambda: store.get(photos / "p000.png", recipe, as_numpy=True),
        lambda: store.get(photos / "p001.png", recipe, resolution=64, as_numpy=True),
        lambda: put(store, "new"),
        lambda: lookup(handle_of(store), [key(f"{number}") for number in range(64)]),
        lambda: lookup(handle_of(store), [key(f"{number}") for number in range(500)]),
        lambda: [store.inputs([{"caption": photos / "a.md"}]) for _ in range(2)],
        lambda: lookup(handle_of(store), [with_member(photos, number) for number in range(3)]),
        lambda: store.get(photos / "p002.png", recipe, members={"mask": photos / "p000.png"}, as_numpy=True),
        lambda: states(store, recipe),
    ]


def states(store: casstore.Store, recipe: casstore.Recipe) -> None:
    """What a plan asks of files, and of anything else."""
    with handle_of(store).index.glance() as connection:
        States(recipe.digest).find_files(connection, dict.fromkeys(range(1, 600), bytes(32)))
        States(recipe.digest).find(connection, [number.to_bytes(32) for number in range(600)])


def with_member(photos: Path, number: int) -> casstore.Key:
    """Of a picture that is stored with another mask, so that the reasons for its absence are looked for everywhere."""
    contents = {"image": photos / "p002.png", "mask": casstore.Text(str(number))}
    return casstore.Key.of(contents, FakeEncoder().recipe, resolution="64x64")


def spied(honest: Callable[..., Any], many: bool, statements: list[tuple[str, Any]]) -> Callable[..., Any]:
    """A method of Statement that notes its text and (one row of) its parameters."""

    def method(self: Statement, connection: Any, given: Any = ()) -> Any:
        if given or not many:
            statements.append((self.sql, given[0] if many else given))
        return honest(self, connection, given)

    return method


@pytest.mark.parametrize("number", range(11))
def test_what_is_asked_per_key_is_found_by_an_index_of_that_key(
    store: casstore.Store, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step scans a table, and variants are never found by their recipe, which all of them may share."""
    put(store, "a")
    pictures(tmp_path / "photos", 3)
    (tmp_path / "photos" / "a.md").write_text("a caption")
    build(store, tmp_path / "photos", FakeEncoder())
    store.forget(tmp_path / "photos" / "p002.png").execute()
    masked = {"image": tmp_path / "photos" / "p002.png", "mask": tmp_path / "photos" / "p000.png"}
    with store.batch() as batch:
        batch.put(casstore.Key.of(masked, FakeEncoder().recipe, resolution="64x64"), {"t": np.zeros(1)})
    index = handle_of(store).index
    statements: list[tuple[str, Any]] = []
    for name in ("rows", "many"):  # the hot statements run on the driver's connection, where no event is heard
        monkeypatch.setattr(Statement, name, spied(getattr(Statement, name), name == "many", statements))
    for engine in (index._reader, index._writer):
        event.listen(
            engine,
            "before_cursor_execute",
            lambda _c, _k, sql, parameters, _x, many: statements.append((sql, parameters[0] if many else parameters)),
        )
    per_key(store, tmp_path / "photos")[number]()
    walked = []
    with index.read() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        for sql, parameters in statements:
            if sql.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE"):
                for *_, step in raw.execute(f"EXPLAIN QUERY PLAN {sql}", parameters):
                    if ("SCAN" in step and "roots" not in step) or "ix_variants_recipe_id" in step:
                        walked.append((step, sql))
    assert statements and walked == []
