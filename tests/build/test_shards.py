"""Plans in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, check_counts, pictures

import casstore
from casstore.errors import UsageError


def keys(plan: Any) -> list[Any]:
    return [row.key for row in plan.rows]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_shards_are_the_plan_in_parts(store: casstore.Store, tmp_path: Path, count: int) -> None:
    """Each triple is in exactly one of them, with its state."""
    pictures(tmp_path / "data", 30)
    (tmp_path / "data" / "bad.png").write_bytes(b"")
    encoder = FakeEncoder()
    plan = store.plan(store.scan(tmp_path / "data"), encoder.recipe, resolution=["64x64", "64x128"])
    shards = plan.shards(count)
    assert sorted(map(str, (key for shard in shards for key in keys(shard)))) == sorted(map(str, keys(plan)))
    assert sum(len(shard.misses) for shard in shards) == len(plan.misses)
    for shard in shards:
        check_counts(store.build(shard, encoder))
    assert len(encoder.seen) == 60
    assert store.plan(store.scan(tmp_path / "data"), encoder.recipe, resolution=["64x64", "64x128"]).hits == 60


def test_a_shard_does_not_depend_on_the_order_of_the_rows(store: casstore.Store, tmp_path: Path) -> None:
    """The same rows the other way round: the same keys in each part."""
    paths = pictures(tmp_path / "data", 20)
    recipe = FakeEncoder().recipe

    def parts(given: list[Path]) -> list[set[bytes]]:
        plan = store.plan(store.inputs([{"image": path} for path in given]), recipe, resolution="64x64")
        return [{key.digest for key in keys(shard)} for shard in plan.shards(3)]

    assert parts(paths) == parts(paths[::-1])


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_a_number_of_shards_that_cannot_be_meant(store: casstore.Store, tmp_path: Path, count: Any) -> None:
    """Anything but an int from 1 is refused."""
    plan = store.plan(store.inputs([]), FakeEncoder().recipe)
    with pytest.raises(UsageError, match="shards"):
        plan.shards(count)
