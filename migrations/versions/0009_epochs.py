"""Epochs: gc keeps what it condemns until those who began before that have ended, so that open datasets stay whole.

The SQL is frozen: never edit it, write the next revision.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE objects ADD COLUMN condemned_epoch INTEGER",
    "ALTER TABLE owners ADD COLUMN epoch INTEGER",
    "ALTER TABLE owners ADD COLUMN recipes TEXT",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
