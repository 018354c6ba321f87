"""Recipes can be retired and have a namespace; a stamp says how its part came to its variant, and what bucketed it.

The SQL is frozen: never edit it, write the next revision.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE recipes ADD COLUMN namespace TEXT",
    "ALTER TABLE recipes ADD COLUMN retired_at INTEGER",
    """ALTER TABLE schema_stamps ADD COLUMN method TEXT
    CONSTRAINT ck_schema_stamps_method CHECK (method IN ('added', 'taken over'))""",
    "ALTER TABLE schema_stamps ADD COLUMN bucket_method TEXT",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
