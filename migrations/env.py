"""What alembic runs. The store comes from `-x store=DIR` or CASSTORE_STORE; casstore.index.migrate does the work."""

from __future__ import annotations

import os

from alembic import context

from casstore.index import migrate

if context.is_offline_mode():
    raise SystemExit("offline mode is refused: a revision has to see the store that it changes")

connection = context.config.attributes.get("connection")
if connection is not None:
    migrate.run_revisions(context, connection)
else:
    store = context.get_x_argument(as_dictionary=True).get("store") or os.environ.get("CASSTORE_STORE")
    if not store:
        raise SystemExit("which store? alembic -x store=DIR upgrade head, or set CASSTORE_STORE")
    with migrate.prepared(store) as (opened, backup, _):
        if backup is not None:
            migrate.run_revisions(context, opened)
        else:
            context.configure(connection=opened)  # at the newest revision; `alembic current` still wants to look
            context.run_migrations()
