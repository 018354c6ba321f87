"""Command lines under strace, which lets the n-th system call of the main thread fail: SQLite's own calls as well."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CALLS: Mapping[str, tuple[str, ...]] = {
    "openat": ("EIO", "EMFILE", "ENOSPC", "EROFS"),
    "write": ("EIO", "ENOSPC", "EDQUOT"),
    "pwrite64": ("EIO", "ENOSPC", "EDQUOT"),
    "fsync": ("EIO", "ENOSPC"),
    "fdatasync": ("EIO", "ENOSPC"),
    "syncfs": ("EIO", "EDQUOT"),
    "link": ("EIO", "ENOSPC", "EPERM"),
    "linkat": ("EIO", "ENOSPC", "EPERM"),
    "rename": ("EIO", "ENOSPC"),
    "unlink": ("EIO", "EROFS"),
    "ftruncate": ("EIO", "ENOSPC"),
    "mkdir": ("EIO", "ENOSPC"),
    "pread64": ("EIO",),
}
ONCE = {"openat", "write"}  # for ever, these would keep Python itself from running
_LINE = re.compile(r"^(\d+) +(\w+)\((.*)$")


@dataclass(frozen=True, slots=True)
class Injection:
    """The n-th call with this name (from 1) fails; `for_ever`: and all later ones."""

    call: str
    number: int
    error: str
    for_ever: bool

    @property
    def option(self) -> str:
        return f"inject={self.call}:error={self.error}:when={self.number}{'+' if self.for_ever else ''}"


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended: its exit code, what it said, and which calls on our files were made to fail."""

    code: int
    stderr: str
    log: str
    hit: bool


def run(arguments: Sequence[str], place: Path, injection: Injection | None = None) -> Done:
    """Run `casstore` with these arguments under strace; calls count as ours if they name `place`."""
    log = place.parent / "strace.log"
    options = ["-f", "--seccomp-bpf", "-y", "-qq", "-s", "0", "-o", str(log), "-e", f"trace={','.join(CALLS)}"]
    options += ["-e", injection.option] if injection is not None else []
    # The same calls in the same order each time: no random hashes, no new byte code.
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = ["strace", *options, sys.executable, "-m", "casstore", *arguments]
    # Not in `place`, where Python looks for modules to import.
    found = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False, cwd=place.parent)
    text = log.read_text(errors="replace")
    hit = any("INJECTED" in line and str(place) in line for line in text.splitlines())
    return Done(found.returncode, found.stderr.decode(errors="replace"), text, hit)


def ours(log: str, place: Path) -> Iterator[tuple[str, int]]:
    """(call, its number in the main thread) of those that name our files."""
    main = log.split(maxsplit=1)[0]
    counts: dict[str, int] = {}
    for line in log.splitlines():
        if (found := _LINE.match(line)) and found[1] == main:
            counts[found[2]] = counts.get(found[2], 0) + 1
            if str(place) in re.sub(r"AT_FDCWD<[^>]*>", "", found[3]):
                yield found[2], counts[found[2]]


def injections(log: str, place: Path, each: int, rng: random.Random) -> list[Injection]:
    """Up to `each` injections for every kind of call, spread over the run."""
    numbers: dict[str, list[int]] = {}
    for call, number in ours(log, place):
        numbers.setdefault(call, []).append(number)
    found = []
    for call, all_of_them in sorted(numbers.items()):
        for number in sorted(rng.sample(all_of_them, min(each, len(all_of_them)))):
            error = rng.choice(CALLS[call])
            found.append(Injection(call, number, error, call not in ONCE and rng.random() < 0.5))
    return found


@cache
def refusal() -> str:
    """Why nothing can be traced here; "" if it can."""
    if shutil.which("strace") is None:
        return "strace isn't installed"
    tried = subprocess.run(["strace", "-f", "--seccomp-bpf", "-qq", "-o", os.devnull, "true"], capture_output=True)
    return "" if tried.returncode == 0 else f"strace can't trace here: {tried.stderr.decode().strip()}"
