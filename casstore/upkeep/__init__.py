"""Keeping a store sound and small: verify, gc, forget, status."""
