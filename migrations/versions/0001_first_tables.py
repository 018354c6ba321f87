"""The first tables: sources, contents, recipes, variants, objects, failures, runs.

The SQL is frozen: never edit it, write the next revision.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATEMENTS = (
    """
CREATE TABLE hashes (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    digest BLOB NOT NULL,
    nbytes INTEGER NOT NULL,
    width INTEGER,
    height INTEGER,
    orientation INTEGER,
    note TEXT,
    CONSTRAINT ck_hashes_digest CHECK (length(digest) = 32),
    CONSTRAINT uq_hashes UNIQUE (digest, kind),
    CONSTRAINT ck_hashes_kind CHECK (kind IN ('file', 'text', 'array', 'composite'))
) STRICT
""",
    """
CREATE TABLE layouts (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL,
    nbytes INTEGER NOT NULL,
    tensors TEXT NOT NULL,
    CONSTRAINT ck_layouts_digest CHECK (length(digest) = 32),
    CONSTRAINT uq_layouts UNIQUE (digest)
) STRICT
""",
    """
CREATE TABLE recipes (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL,
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    CONSTRAINT ck_recipes_digest CHECK (length(digest) = 32),
    CONSTRAINT uq_recipes UNIQUE (digest)
) STRICT
""",
    """
CREATE TABLE roots (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    path ANY NOT NULL,
    last_seen_at INTEGER NOT NULL,
    CONSTRAINT uq_roots_path UNIQUE (path),
    CONSTRAINT uq_roots UNIQUE (name)
) STRICT
""",
    """
CREATE TABLE runs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    finished_at INTEGER,
    counts TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    error TEXT,
    host TEXT NOT NULL
) STRICT
""",
    """
CREATE TABLE schema_stamps (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL,
    names TEXT NOT NULL,
    CONSTRAINT ck_schema_stamps_digest CHECK (length(digest) = 32),
    CONSTRAINT uq_schema_stamps UNIQUE (digest)
) STRICT
""",
    """
CREATE TABLE settings (
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT pk_settings PRIMARY KEY ("key")
) WITHOUT ROWID, STRICT
""",
    """
CREATE TABLE value_sets (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL,
    data TEXT NOT NULL,
    CONSTRAINT ck_value_sets_digest CHECK (length(digest) = 32),
    CONSTRAINT uq_value_sets UNIQUE (digest)
) STRICT
""",
    """
CREATE TABLE directories (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    root_id INTEGER NOT NULL,
    relpath ANY NOT NULL,
    CONSTRAINT uq_directories UNIQUE (root_id, relpath),
    CONSTRAINT fk_directories_root_id FOREIGN KEY(root_id) REFERENCES roots (id) ON DELETE RESTRICT
) STRICT
""",
    """
CREATE TABLE failures (
    "key" BLOB NOT NULL,
    hash_id INTEGER NOT NULL,
    inputs_id INTEGER NOT NULL,
    recipe_id INTEGER NOT NULL,
    resolution TEXT NOT NULL,
    variation INTEGER NOT NULL,
    params TEXT NOT NULL,
    error_type TEXT NOT NULL,
    message TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    CONSTRAINT pk_failures PRIMARY KEY ("key"),
    CONSTRAINT ck_failures_key CHECK (length(key) = 32),
    CONSTRAINT fk_failures_hash_id FOREIGN KEY(hash_id) REFERENCES hashes (id) ON DELETE RESTRICT,
    CONSTRAINT fk_failures_inputs_id FOREIGN KEY(inputs_id) REFERENCES hashes (id) ON DELETE RESTRICT,
    CONSTRAINT fk_failures_recipe_id FOREIGN KEY(recipe_id) REFERENCES recipes (id) ON DELETE RESTRICT
) STRICT
""",
    """
CREATE INDEX ix_failures_hash_id ON failures (hash_id)
""",
    """
CREATE INDEX ix_failures_inputs_id ON failures (inputs_id)
""",
    """
CREATE INDEX ix_failures_recipe_id ON failures (recipe_id)
""",
    """
CREATE TABLE objects (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL,
    codec TEXT NOT NULL,
    layout_id INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL,
    stored_xxh3 INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    verified_at INTEGER,
    condemned_at INTEGER,
    damaged_at INTEGER,
    CONSTRAINT ck_objects_digest CHECK (length(digest) = 32),
    CONSTRAINT uq_objects UNIQUE (digest),
    CONSTRAINT fk_objects_layout_id FOREIGN KEY(layout_id) REFERENCES layouts (id) ON DELETE RESTRICT
) STRICT
""",
    """
CREATE INDEX ix_objects_layout_id ON objects (layout_id)
""",
    """
CREATE TABLE texts (
    hash_id INTEGER NOT NULL,
    text TEXT NOT NULL,
    CONSTRAINT pk_texts PRIMARY KEY (hash_id),
    CONSTRAINT fk_texts_hash_id FOREIGN KEY(hash_id) REFERENCES hashes (id) ON DELETE RESTRICT
) STRICT
""",
    """
CREATE TABLE variants (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    hash_id INTEGER NOT NULL,
    inputs_id INTEGER NOT NULL,
    recipe_id INTEGER NOT NULL,
    resolution TEXT NOT NULL,
    variation INTEGER NOT NULL,
    params TEXT NOT NULL,
    values_id INTEGER,
    run_id INTEGER,
    reason TEXT NOT NULL,
    encode_us INTEGER,
    checksum INTEGER NOT NULL,
    CONSTRAINT uq_variants UNIQUE (hash_id, inputs_id, recipe_id, resolution, variation, params),
    CONSTRAINT fk_variants_hash_id FOREIGN KEY(hash_id) REFERENCES hashes (id) ON DELETE RESTRICT,
    CONSTRAINT fk_variants_inputs_id FOREIGN KEY(inputs_id) REFERENCES hashes (id) ON DELETE RESTRICT,
    CONSTRAINT fk_variants_recipe_id FOREIGN KEY(recipe_id) REFERENCES recipes (id) ON DELETE RESTRICT,
    CONSTRAINT fk_variants_values_id FOREIGN KEY(values_id) REFERENCES value_sets (id) ON DELETE RESTRICT,
    CONSTRAINT fk_variants_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE RESTRICT
) STRICT
""",
    """
CREATE INDEX ix_variants_inputs_id ON variants (inputs_id)
""",
    """
CREATE INDEX ix_variants_recipe_id ON variants (recipe_id)
""",
    """
CREATE INDEX ix_variants_run_id ON variants (run_id) WHERE run_id IS NOT NULL
""",
    """
CREATE INDEX ix_variants_values_id ON variants (values_id) WHERE values_id IS NOT NULL
""",
    """
CREATE TABLE sources (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    directory_id INTEGER NOT NULL,
    name ANY NOT NULL,
    hash_id INTEGER,
    st_size INTEGER NOT NULL,
    st_mtime_ns INTEGER NOT NULL,
    st_ctime_ns INTEGER NOT NULL,
    st_ino INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    missing_since INTEGER,
    error TEXT,
    CONSTRAINT uq_sources UNIQUE (directory_id, name),
    CONSTRAINT ck_sources_settled CHECK (settled IN (0, 1)),
    CONSTRAINT fk_sources_directory_id FOREIGN KEY(directory_id) REFERENCES directories (id) ON DELETE RESTRICT,
    CONSTRAINT fk_sources_hash_id FOREIGN KEY(hash_id) REFERENCES hashes (id) ON DELETE RESTRICT
) STRICT
""",
    """
CREATE INDEX ix_sources_hash_id ON sources (hash_id) WHERE hash_id IS NOT NULL
""",
    """
CREATE TABLE variant_parts (
    variant_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    object_id INTEGER NOT NULL,
    stamp_id INTEGER NOT NULL,
    inputs_id INTEGER NOT NULL,
    CONSTRAINT pk_variant_parts PRIMARY KEY (variant_id, ordinal),
    CONSTRAINT fk_variant_parts_variant_id FOREIGN KEY(variant_id) REFERENCES variants (id) ON DELETE RESTRICT,
    CONSTRAINT fk_variant_parts_object_id FOREIGN KEY(object_id) REFERENCES objects (id) ON DELETE RESTRICT,
    CONSTRAINT fk_variant_parts_stamp_id FOREIGN KEY(stamp_id) REFERENCES schema_stamps (id) ON DELETE RESTRICT,
    CONSTRAINT fk_variant_parts_inputs_id FOREIGN KEY(inputs_id) REFERENCES hashes (id) ON DELETE RESTRICT
) WITHOUT ROWID, STRICT
""",
    """
CREATE INDEX ix_variant_parts_inputs_id ON variant_parts (inputs_id)
""",
    """
CREATE INDEX ix_variant_parts_object_id ON variant_parts (object_id)
""",
    """
CREATE INDEX ix_variant_parts_stamp_id ON variant_parts (stamp_id)
""",
    """
CREATE TABLE source_contents (
    source_id INTEGER NOT NULL,
    hash_id INTEGER NOT NULL,
    last_seen INTEGER NOT NULL,
    CONSTRAINT pk_source_contents PRIMARY KEY (source_id, hash_id),
    CONSTRAINT fk_source_contents_source_id FOREIGN KEY(source_id) REFERENCES sources (id) ON DELETE RESTRICT,
    CONSTRAINT fk_source_contents_hash_id FOREIGN KEY(hash_id) REFERENCES hashes (id) ON DELETE RESTRICT
) WITHOUT ROWID, STRICT
""",
    """
CREATE INDEX ix_source_contents_hash_id ON source_contents (hash_id)
""",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement.strip())
