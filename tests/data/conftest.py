"""Fixtures of the tests of datasets."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from data.helpers import Training, made

import casstore

multiprocessing.set_forkserver_preload(["torch", "casstore.data"])  # what it imports once, its children needn't


@pytest.fixture
def training(store: casstore.Store, tmp_path: Path) -> Training:
    """Twelve pictures of two sizes, with captions; all that is planned is stored."""
    return made(store, tmp_path / "photos")
