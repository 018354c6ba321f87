"""The index: tables, connections, and every SQL statement. Nothing above this package knows SQL."""
