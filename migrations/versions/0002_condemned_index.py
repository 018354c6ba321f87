"""An index of the condemned objects: gc asks for them again and again, and they are few.

The SQL is frozen: never edit it, write the next revision.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATEMENTS = ("CREATE INDEX ix_objects_condemned_at ON objects (condemned_at) WHERE condemned_at IS NOT NULL",)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
