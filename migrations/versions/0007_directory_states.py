"""A print keeps, beside the fingerprint, what the files of a directory were: which of them has changed needs no rows.

The SQL is frozen: never edit it, write the next revision.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

STATEMENTS = ("ALTER TABLE directory_prints ADD COLUMN states BLOB",)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
