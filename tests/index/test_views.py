"""The views: the SQL contract. Columns may be added, never removed or renamed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, build, expected_of, picture

import casstore
from casstore.index.views import VIEWS

COLUMNS = {
    "v_sources": "path root content width height orientation note bytes settled missing_since error frames rate",
    "v_objects": "digest codec payload_bytes stored_bytes parts created_at verified_at condemned_at damaged_at",
    "v_tensors": "object name dtype shape bytes",
    "v_variants": "path text recipe resolution variation params tensors payload_bytes stored_bytes values reason "
    "encode_us run kind content recipe_digest members",
    "v_usage": "name namespace digest variants payload_bytes stored_bytes created_at retired_at",
    "v_missing": "path recipe resolution variation error_type message attempts last_at params text kind content "
    "recipe_digest",
    "v_runs": "run kind started_at finished_at seconds counts bytes error host",
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def rows(store: casstore.Store, view: str) -> list[dict[str, Any]]:
    table = store.sql(f"SELECT * FROM {view}")
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_every_view_is_pinned() -> None:
    """A view that is added has to be described here."""
    assert set(VIEWS) == set(COLUMNS)


@pytest.mark.parametrize("view", COLUMNS)
def test_a_view_keeps_its_columns(store: casstore.Store, view: str) -> None:
    """The columns that people's SQL relies upon are there, under these names."""
    assert set(COLUMNS[view].split()) <= set(store.sql(f"SELECT * FROM {view}").columns)


def test_the_views_tell_one_picture_and_its_tensor(store: casstore.Store, tmp_path: Path) -> None:
    """After a build of one picture each view has one row that says what was found, made and stored."""
    path = picture(tmp_path / "photos" / "it's é.png", size=(96, 64))
    encoder = FakeEncoder()
    encoder.change = {"it's é.png": lambda result: {**result, "n": 1.0}}
    build(store, tmp_path / "photos", encoder, resolution="64x96")
    tensor = expected_of(path, "64x96", encoder.recipe)
    (source,), (stored,), (told,), (variant,), (usage,), failed, (run,) = (rows(store, view) for view in COLUMNS)
    assert failed == []
    key = casstore.Key.file(path, encoder.recipe, resolution="64x96")
    content = key.primary.digest.hex()
    (file,) = Path(store.path, "objects").glob("*/*")

    size = {"width": 96, "height": 64, "bytes": path.stat().st_size}
    assert source.items() >= {"path": str(path), "root": "photos", "content": content, **size}.items()
    assert (source["missing_since"], source["error"], source["note"]) == (None, None, None)

    assert (stored["digest"], stored["codec"], stored["parts"]) == (file.stem, "zstd", 1)
    assert (stored["stored_bytes"], stored["damaged_at"]) == (file.stat().st_size, None)
    assert stored["payload_bytes"] > tensor.nbytes and (stored["payload_bytes"] - tensor.nbytes) % 64 == 0
    assert TIME.fullmatch(stored["created_at"])

    about = {"object": file.stem, "name": "latent", "dtype": "F32", "bytes": tensor.nbytes}
    assert told.items() >= about.items()
    assert json.loads(told["shape"]) == list(tensor.shape) == [4, 8, 12]

    made = {"path": str(path), "text": None, "recipe": "fake", "resolution": "64x96", "variation": 0, "params": "{}"}
    made |= {"tensors": "latent F32 [4,8,12]", "values": '{"n":1.0}', "reason": "new", "run": run["run"]}
    made |= {name: stored[name] for name in ("payload_bytes", "stored_bytes")}
    made |= {"kind": "file", "content": content, "recipe_digest": encoder.recipe.digest.hex()}
    assert variant.items() >= made.items()

    sizes = {name: stored[name] for name in ("payload_bytes", "stored_bytes")}
    takes = {"name": "fake", "namespace": None, "digest": encoder.recipe.digest.hex(), "variants": 1, **sizes}
    assert usage.items() >= takes.items()
    assert TIME.fullmatch(usage["created_at"]) and usage["retired_at"] is None

    assert (run["kind"], run["error"], json.loads(run["counts"])["encoded"]) == ("build", None, 1)
    assert TIME.fullmatch(run["started_at"]) and TIME.fullmatch(run["finished_at"]) and run["seconds"] >= 0


def test_v_missing_tells_one_failure(store: casstore.Store, tmp_path: Path) -> None:
    """What couldn't be encoded has its message and how often it was tried, until it has been encoded."""
    path = picture(tmp_path / "photos" / "a.png")

    def fail(_: Any) -> None:
        raise RuntimeError("no memory left")

    encoder = FakeEncoder(before=fail)
    for _ in range(2):
        build(store, tmp_path / "photos", encoder)
    (row,) = rows(store, "v_missing")
    key = store.key(path, encoder.recipe, resolution="64x64")
    told = {"path": str(path), "recipe": "fake", "resolution": "64x64", "variation": 0, "params": "{}", "text": None}
    told |= {"error_type": "RuntimeError", "message": "no memory left", "attempts": 2, "kind": "file"}
    told |= {"content": key.primary.digest.hex(), "recipe_digest": encoder.recipe.digest.hex()}
    assert row.items() >= told.items() and TIME.fullmatch(row["last_at"])
    build(store, tmp_path / "photos", FakeEncoder())
    assert rows(store, "v_missing") == []


def test_a_text_is_shown_as_text(store: casstore.Store) -> None:
    """A variant of a text has the string and no path."""
    import numpy as np

    with store.batch() as batch:
        batch.put(casstore.Key.text("a red cat", casstore.Recipe("clip")), {"t": np.zeros(1)})
    (variant,) = rows(store, "v_variants")
    assert (variant["text"], variant["path"], variant["kind"]) == ("a red cat", None, "text")


def test_of_several_paths_of_a_content_one_that_exists_is_shown(store: casstore.Store, tmp_path: Path) -> None:
    """v_variants has one row per variant however many files share the content, and prefers a path that is there."""
    first = picture(tmp_path / "photos" / "a.png")
    (tmp_path / "photos" / "b.png").write_bytes(first.read_bytes())
    build(store, tmp_path / "photos", FakeEncoder())
    assert [row["path"] for row in rows(store, "v_variants")] == [str(first)]
    first.unlink()
    store.scan(tmp_path / "photos")
    assert [row["path"] for row in rows(store, "v_variants")] == [str(tmp_path / "photos" / "b.png")]
    missing = {Path(row["path"]).name: row["missing_since"] for row in rows(store, "v_sources")}
    assert missing["b.png"] is None and TIME.fullmatch(missing["a.png"])
