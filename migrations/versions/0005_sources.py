"""Roots know where they were mounted and whether they are whole; directories carry fingerprints, so that an unchanged
one costs no row; contents can consist of others (a picture and its mask, a caption file and its texts).

The SQL is frozen: never edit it, write the next revision.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE roots ADD COLUMN fs_id TEXT",
    "ALTER TABLE roots ADD COLUMN inode INTEGER",
    """ALTER TABLE roots ADD COLUMN state TEXT DEFAULT 'whole' NOT NULL
    CONSTRAINT ck_roots_state CHECK (state IN ('whole', 'unavailable', 'suspicious'))""",
    "ALTER TABLE directories ADD COLUMN fs_id TEXT",
    "ALTER TABLE directories ADD COLUMN listed_at INTEGER",
    "ALTER TABLE directories ADD COLUMN changes INTEGER DEFAULT 0 NOT NULL",
    """CREATE TABLE directory_prints (
    directory_id INTEGER NOT NULL,
    filter TEXT NOT NULL,
    fingerprint BLOB,
    files INTEGER NOT NULL,
    st_mtime_ns INTEGER,
    st_ino INTEGER,
    CONSTRAINT pk_directory_prints PRIMARY KEY (directory_id, filter),
    CONSTRAINT fk_directory_prints_directory_id FOREIGN KEY(directory_id) REFERENCES directories (id) ON DELETE RESTRICT
) WITHOUT ROWID, STRICT""",
    "ALTER TABLE hashes ADD COLUMN frames INTEGER",
    "ALTER TABLE hashes ADD COLUMN rate REAL",
    """CREATE TABLE hash_members (
    hash_id INTEGER NOT NULL,
    role TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    member_id INTEGER NOT NULL,
    CONSTRAINT pk_hash_members PRIMARY KEY (hash_id, role, ordinal),
    CONSTRAINT fk_hash_members_hash_id FOREIGN KEY(hash_id) REFERENCES hashes (id) ON DELETE RESTRICT,
    CONSTRAINT fk_hash_members_member_id FOREIGN KEY(member_id) REFERENCES hashes (id) ON DELETE RESTRICT
) WITHOUT ROWID, STRICT""",
    "CREATE INDEX ix_hash_members_member_id ON hash_members (member_id)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
