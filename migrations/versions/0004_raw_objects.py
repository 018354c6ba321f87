"""Objects may be stored raw: objects.codec "raw" means a file `<digest>.st`, which older code would miss. Recipes say
how their new objects are stored (NULL: as casstore.toml says).

The SQL is frozen: never edit it, write the next revision.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

STATEMENTS = ("ALTER TABLE recipes ADD COLUMN codec TEXT",)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
