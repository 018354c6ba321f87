"""The store as a mechanism: opening, putting, reading by key. Invariants first; see docs/design.md."""
