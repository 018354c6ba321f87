"""Bytes on disk: the canonical payload, the container around it, and the bridge from and to tensors."""
