"""The views: the SQL contract with people and other programs. Columns may be added, never removed.

Every upgrade drops and makes them again from this list, in this order (later ones use earlier ones). With
trusted_schema off, views may use json_each but not json_extract.
"""

from __future__ import annotations


def _iso(column: str) -> str:
    return f"strftime('%Y-%m-%dT%H:%M:%SZ', {column} / 1000, 'unixepoch')"


VIEWS: dict[str, str] = {
    "v_sources": f"""
SELECT rtrim(r.path, '/') || '/' || CASE d.relpath WHEN '' THEN '' ELSE d.relpath || '/' END || s.name AS path,
       r.name AS root,
       lower(hex(h.digest)) AS content,
       h.width, h.height, h.orientation,
       CASE WHEN h.width IS NOT NULL THEN h.note END AS note,
       s.st_size AS bytes,
       s.settled,
       {_iso("s.missing_since")} AS missing_since,
       coalesce(s.error, CASE WHEN h.width IS NULL THEN h.note END) AS error,
       s.hash_id,
       h.frames, h.rate
  FROM sources s
  JOIN directories d ON d.id = s.directory_id
  JOIN roots r ON r.id = d.root_id
  LEFT JOIN hashes h ON h.id = s.hash_id
""",
    "v_objects": f"""
SELECT lower(hex(o.digest)) AS digest,
       o.codec,
       l.nbytes AS payload_bytes,
       o.stored_bytes,
       (SELECT count(*) FROM variant_parts p WHERE p.object_id = o.id) AS parts,
       {_iso("o.created_at")} AS created_at,
       {_iso("o.verified_at")} AS verified_at,
       {_iso("o.condemned_at")} AS condemned_at,
       {_iso("o.damaged_at")} AS damaged_at
  FROM objects o
  JOIN layouts l ON l.id = o.layout_id
""",
    "v_tensors": """
SELECT lower(hex(o.digest)) AS object,
       t.key AS name,
       (SELECT value FROM json_each(t.value) WHERE key = 'dtype') AS dtype,
       (SELECT value FROM json_each(t.value) WHERE key = 'shape') AS shape,
       (SELECT max(e.value) - min(e.value)
          FROM json_each(t.value) f, json_each(f.value) e WHERE f.key = 'data_offsets') AS bytes,
       o.id AS object_id
  FROM objects o
  JOIN layouts l ON l.id = o.layout_id, json_each(l.tensors) t
""",
    "v_variants": """
SELECT CASE h.kind WHEN 'text' THEN NULL
            ELSE (SELECT path FROM v_sources s WHERE s.hash_id = v.hash_id ORDER BY s.missing_since IS NOT NULL, path
                  LIMIT 1) END AS path,
       (SELECT text FROM texts WHERE hash_id = v.hash_id) AS text,
       r.name AS recipe,
       v.resolution, v.variation, v.params,
       (SELECT group_concat(t.name || ' ' || t.dtype || ' ' || t.shape, ', ')
          FROM variant_parts p JOIN v_tensors t ON t.object_id = p.object_id
         WHERE p.variant_id = v.id) AS tensors,
       (SELECT sum(l.nbytes) FROM variant_parts p JOIN objects o ON o.id = p.object_id
          JOIN layouts l ON l.id = o.layout_id WHERE p.variant_id = v.id) AS payload_bytes,
       (SELECT sum(o.stored_bytes) FROM variant_parts p JOIN objects o ON o.id = p.object_id
         WHERE p.variant_id = v.id) AS stored_bytes,
       (SELECT data FROM value_sets WHERE id = v.values_id) AS "values",
       v.reason, v.encode_us, v.run_id AS run,
       h.kind, lower(hex(h.digest)) AS content,
       lower(hex(r.digest)) AS recipe_digest,
       CASE WHEN v.inputs_id <> v.hash_id THEN
         (SELECT group_concat(role || '=' || what, ', ') FROM
           (SELECT m.role, coalesce(t.text,
                                    (SELECT path FROM v_sources s WHERE s.hash_id = m.member_id
                                      ORDER BY s.missing_since IS NOT NULL, path LIMIT 1),
                                    lower(hex(c.digest))) AS what
              FROM hash_members m JOIN hashes c ON c.id = m.member_id LEFT JOIN texts t ON t.hash_id = m.member_id
             WHERE m.hash_id = v.inputs_id
             ORDER BY m.role, m.ordinal))
       END AS members
  FROM variants v
  JOIN hashes h ON h.id = v.hash_id
  JOIN recipes r ON r.id = v.recipe_id
""",
    "v_usage": f"""
SELECT r.name, r.namespace, lower(hex(r.digest)) AS digest,
       (SELECT count(*) FROM variants v WHERE v.recipe_id = r.id) AS variants,
       coalesce((SELECT sum(l.nbytes) FROM objects o JOIN layouts l ON l.id = o.layout_id WHERE o.id IN
                  (SELECT p.object_id FROM variants v JOIN variant_parts p ON p.variant_id = v.id
                    WHERE v.recipe_id = r.id)), 0) AS payload_bytes,
       coalesce((SELECT sum(o.stored_bytes) FROM objects o WHERE o.id IN
                  (SELECT p.object_id FROM variants v JOIN variant_parts p ON p.variant_id = v.id
                    WHERE v.recipe_id = r.id)), 0) AS stored_bytes,
       {_iso("r.created_at")} AS created_at,
       {_iso("r.retired_at")} AS retired_at
  FROM recipes r
""",
    "v_missing": f"""
SELECT CASE h.kind WHEN 'text' THEN NULL
            ELSE (SELECT path FROM v_sources s WHERE s.hash_id = f.hash_id ORDER BY s.missing_since IS NOT NULL, path
                  LIMIT 1) END AS path,
       r.name AS recipe,
       f.resolution, f.variation,
       f.error_type, f.message, f.attempts,
       {_iso("f.last_at")} AS last_at,
       f.params,
       (SELECT text FROM texts WHERE hash_id = f.hash_id) AS text,
       h.kind, lower(hex(h.digest)) AS content,
       lower(hex(r.digest)) AS recipe_digest
  FROM failures f
  JOIN hashes h ON h.id = f.hash_id
  JOIN recipes r ON r.id = f.recipe_id
""",
    "v_runs": f"""
SELECT id AS run, kind,
       {_iso("started_at")} AS started_at,
       {_iso("finished_at")} AS finished_at,
       (finished_at - started_at) / 1000.0 AS seconds,
       counts, bytes, error, host
  FROM runs
""",
}
