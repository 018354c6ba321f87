"""Failures are data: what couldn't be encoded, under the key it failed on, and how often it was tried."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert

from casstore.identity.keys import Key
from casstore.index.bulk import now_ms, storable
from casstore.index.contents import save_inputs
from casstore.index.tables import failures
from casstore.index.variants import save_recipes

MESSAGE_LIMIT = 2000  # characters


def save_failures(connection: Connection, failed: Sequence[tuple[Key, str, str]]) -> None:
    """Remember failures.

    Args:
        failed: (key, class of the error, message).
    """
    if not failed:
        return
    contents = save_inputs(connection, (key.together for key, _, _ in failed))
    recipes = save_recipes(connection, (key for key, _, _ in failed))
    statement = insert(failures)
    new = statement.excluded
    statement = statement.on_conflict_do_update(
        index_elements=["key"],
        set_={
            "error_type": new.error_type,
            "message": new.message,
            "last_at": new.last_at,
            "attempts": failures.c.attempts + 1,
        },
    )
    rows = []
    for key, error_type, message in failed:
        hash_id = contents[key.primary.kind, key.primary.digest]
        rows.append(
            {
                "key": key.digest,
                "hash_id": hash_id,
                "inputs_id": contents[key.inputs.kind, key.inputs.digest],
                "recipe_id": recipes[key.recipe.digest],
                "resolution": key.resolution,
                "variation": key.variation,
                "params": key.params,
                "error_type": error_type,
                "message": storable(message[:MESSAGE_LIMIT]),
                "attempts": 1,
                "last_at": now_ms(),
            }
        )
    connection.execute(statement, rows)
