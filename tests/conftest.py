"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from kit import PHOTOS

import casstore

settings.register_profile("default", deadline=None)
settings.register_profile("nightly", deadline=None, max_examples=2000)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run the long proofs as well")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--nightly"):
        settings.load_profile("nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):
        for item in items:
            if "nightly" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="a long proof: scripts/test --nightly"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have counted: record_property("figure", "what: how much")."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    properties = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    for figure in sorted({value for name, value in properties if name == "figure"}):
        terminalreporter.write_line(figure)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[casstore.Store]:
    """A new store without flushes; what it promises about a crash of the process is the same."""
    with casstore.open(tmp_path / "store", create=True, durability="off") as opened:
        yield opened


@pytest.fixture
def photos() -> list[Path]:
    """The real photos, or a skip with the reason."""
    if not PHOTOS.is_dir():
        pytest.skip(f"the real photos aren't at {PHOTOS}")
    return sorted(PHOTOS.glob("*.jpg"))
