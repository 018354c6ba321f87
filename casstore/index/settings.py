"""The settings that are fixed when a store is made."""

from __future__ import annotations

from sqlalchemy import Connection, select

from casstore.index.tables import settings


def read_settings(connection: Connection) -> dict[str, str]:
    """{key: value}"""
    return {row.key: row.value for row in connection.execute(select(settings.c.key, settings.c.value))}
