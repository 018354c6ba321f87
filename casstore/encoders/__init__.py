"""Encoders that come with casstore, and the way to load one's own."""
