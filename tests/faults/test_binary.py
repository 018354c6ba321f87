"""The real command line, whose system calls fail one by one: a documented exit code, a message, a sound store."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from core.helpers import expect, fast_folder, get
from faults import stracing
from faults.running import Image
from faults.workloads import backed_up, littered, nothing, outdated, with_pictures

import casstore
from casstore.cli import run
from casstore.core.directory import is_store
from casstore.errors import StoreOutdatedError

pytestmark = pytest.mark.skipif(bool(stracing.refusal()), reason=stracing.refusal() or "-")

RUNS = 6  # of each command, in the short run
CODES = {0, *range(1, 10)}  # casstore/errors.py; 130 is for Ctrl-C
COMMANDS = {
    "init": (nothing, "init -s {0}/s"),
    "build": (with_pictures, "build {0}/p --encoder pixels --resolution 64 -s {0}/s"),
    "gc": (littered, "gc --yes --grace 0 -s {0}/s"),
    "upgrade": (outdated, "db upgrade -s {0}/s"),
    "restore": (backed_up, "db restore {0}/s/backups/index-kept.sqlite --yes -s {0}/s"),
}
NAMES = {"build": {"a", "b"}, "gc": {"a", "b"}, "restore": {"a"}}


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_folder() as place:
        yield place


def problems(done: stracing.Done, store: Path, names: set[str]) -> Iterator[str]:
    """What is wrong after a command."""
    if done.code not in CODES:
        yield f"exit code {done.code}"
    for word in ("Traceback", "Exception ignored", "sqlite3.", "sqlalchemy"):
        if word in done.stderr:
            yield f"{word} on stderr: {done.stderr[-2000:]}"
    if done.code and "casstore: " not in done.stderr and "failed" not in done.stderr:
        yield f"no message: {done.stderr!r}"
    if not is_store(str(store)):
        if names or done.code == 0:
            yield "there is no store"
        return
    try:
        with casstore.open(store, auto_upgrade=False) as opened:
            yield from (f"{finding}" for finding in opened.verify(deep=True).findings)
            yield from (f"{name} is lost" for name in names if get(opened, name) != expect(name))
    except StoreOutdatedError:
        if done.code == 0 or "old" not in store.parent.name:
            yield "the store is outdated"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_failing_system_call_is_an_exit_code_and_a_message(
    folder: Path, name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever call fails, once or for ever: a documented exit code, a message without a traceback, and afterwards the
    store is sound, what it held is served, and the same command succeeds."""
    prepare, line = COMMANDS[name]
    place = folder / ("old" if name == "upgrade" else "w")
    place.mkdir()
    prepare(place)
    image, arguments = Image.of(place), line.format(place).split()
    first = stracing.run(arguments, place)
    assert first.code == 0, first.stderr
    shutil.rmtree(place)
    rng, nightly = random.Random(name), request.config.getoption("--nightly")
    chosen = stracing.injections(first.log, place, 40 if nightly else 1, rng)
    if not nightly:
        chosen = rng.sample(chosen, RUNS)
    wrong, hits = [], 0
    for injection in chosen:
        image.write(place)
        done = stracing.run(arguments, place, injection)
        hits += done.hit
        found = list(problems(done, place / "s", NAMES.get(name, set())))
        if run(arguments) != 0:
            found.append(f"the same command fails afterwards: {capsys.readouterr().err[-500:]}")
        wrong += [f"{injection.option}: {problem}" for problem in found]
        shutil.rmtree(place)
    assert wrong == [], "\n".join(wrong)
    assert hits >= 0.8 * len(chosen), f"only {hits} of {len(chosen)} hit our files"
