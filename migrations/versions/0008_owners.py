"""Running builds, and the keys that they are at, so that many builders encode each item once.

The SQL is frozen: never edit it, write the next revision.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

STATEMENTS = (
    """CREATE TABLE owners (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    command TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    CONSTRAINT uq_owners UNIQUE (name)
) STRICT""",
    """CREATE TABLE claims (
    key BLOB NOT NULL,
    owner_id INTEGER NOT NULL,
    CONSTRAINT pk_claims PRIMARY KEY (key),
    CONSTRAINT ck_claims_key CHECK (length(key) = 32),
    CONSTRAINT fk_claims_owner_id FOREIGN KEY(owner_id) REFERENCES owners (id) ON DELETE RESTRICT
) WITHOUT ROWID, STRICT""",
    "CREATE INDEX ix_claims_owner_id ON claims (owner_id)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
