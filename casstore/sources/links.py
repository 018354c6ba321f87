"""Rules that say which other files belong to a picture: its caption, its mask.

A rule is a template of a file's name, such as `.txt`, `masks/{stem}.png` or `-masklabel.png?`; docs/inputs.md has the
whole of it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from casstore.errors import UsageError
from casstore.model import Content
from casstore.sources.inputs import Row

Link = str | Callable[[Row], Any]
"""A rule as it is given: a template, or a function of the row made so far that returns a cell."""

_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_IN_NAMES = ("stem", "name")
_IN_TEXTS = ("stem", "name", "folder")


class File(NamedTuple):
    """A file that a scan has found.

    Attributes:
        relpath: of its folder, below the root; "" for the root itself.
        name: its name in that folder.
        content: what it holds; None if it can't be read.
        error: why it can't be read.
        is_folder: it is a folder that can't be listed: a row in any case, so that nobody takes the rest for everything.
    """

    relpath: str
    name: str
    content: Content | None
    error: str | None = None
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """The name of one file beside a picture.

    Attributes:
        up: how many folders to go up from the picture's.
        below: the folder to go down to from there, "" for none.
        prefix, suffix: what stands around the picture's name.
        ending: with its dot; files are found in any case of it.
        whole: the picture's name with its ending ({name}), not without it ({stem}).
    """

    up: int
    below: str
    prefix: str
    suffix: str
    ending: str
    whole: bool

    def relative(self, name: str) -> str:
        """The path for a picture of this name, relative to the picture's folder."""
        middle = name if self.whole else stem(name)
        return f"{'../' * self.up}{join(self.below, self.prefix)}{middle}{self.suffix}{self.ending}"

    def place(self, relpath: str, name: str) -> str | None:
        """The path below the root for a picture in a folder; None if it is outside the root."""
        for _ in range(self.up):
            if not relpath:
                return None
            relpath = posixpath.dirname(relpath)
        middle = name if self.whole else stem(name)
        below = join(relpath, self.below) if self.below else relpath
        start = f"{below}/" if below else ""
        return f"{start}{self.prefix}{middle}{self.suffix}{self.ending}"

    def matches(self, relpath: str, name: str, extensions: tuple[str, ...]) -> bool:
        """Whether a file could be the one for some picture."""
        if name[-len(self.ending) :].lower() != self.ending.lower():
            return False
        front = name[: -len(self.ending)]
        inner = front[len(self.prefix) : len(front) - len(self.suffix)]
        return (
            len(front) > len(self.prefix) + len(self.suffix)
            and front.startswith(self.prefix)
            and front.endswith(self.suffix)
            and (not self.whole or inner.lower().endswith(extensions))
            and (not self.below or relpath == self.below or relpath.endswith("/" + self.below))
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """What one role of a row is.

    Attributes:
        role: its name.
        alternatives: the first that is there counts.
        optional: a picture without it is no failure.
        text: the text itself, with placeholders; instead of a file.
        function: makes the cell from the row; instead of a file.
    """

    role: str
    alternatives: tuple[Template, ...] = ()
    optional: bool = False
    text: str | None = None
    function: Callable[[Row], Any] | None = None

    def absent(self, name: str) -> str:
        """The error of a row without it."""
        names = [alternative.relative(name) for alternative in self.alternatives]
        told = f"{names[0]} isn't" if len(names) == 1 else f"none of {', '.join(names)} is"
        return f"no {self.role}: {told} there"

    def text_of(self, folder: str, name: str) -> str:
        """Its text for a picture in a folder."""
        values = {"stem": stem(name), "name": name, "folder": os.path.basename(folder)}
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text or "")


class Finder:
    """The files that rules may find, each looked up in one step.

    Args:
        files: in the order of the bytes of their paths, which decides between files that differ in the case of their
            ending only.
    """

    def __init__(self, files: Iterable[File]) -> None:
        self._exact: dict[str, File] = {}
        self._folded: dict[str, File] = {}  # by the lower case of the ending, where it isn't in lower case
        for file in files:
            path = join(file.relpath, file.name)
            self._exact[path] = file
            folded = _folded(path)
            if folded != path:
                self._folded.setdefault(folded, file)

    def find(self, rule: Rule, relpath: str, name: str) -> File | None:
        """The file of a rule for the picture of this name in this folder."""
        for alternative in rule.alternatives:
            place = alternative.place(relpath, name)
            if place is None:
                continue
            file = self._exact.get(place)
            if file is None:
                folded = _folded(place)
                # Capitals come before small letters in the order of bytes.
                file = self._folded.get(folded) or self._exact.get(folded)
            if file is not None:
                return file
        return None


def parse_links(links: Mapping[str, Link] | None, primary: str = "image") -> tuple[Rule, ...]:
    """The rules of `{role: template or function}`, in order.

    Args:
        links: None: no rules.
        primary: the role of the pictures themselves, which no rule can have.

    Raises:
        UsageError: a role or template that can't be meant; the message names the role.
    """
    if links is not None and not isinstance(links, Mapping):
        raise UsageError(f"links are {{role: rule}}, such as {{'caption': '.txt'}}, not {type(links).__name__}")
    return tuple(_rule(role, link, primary) for role, link in (links or {}).items())


def endings(links: Mapping[str, Link] | None, primary: str = "image") -> set[str]:
    """The endings, in lower case and with their dot, of the files that rules look for.

    Raises:
        UsageError: a role or template that can't be meant.
    """
    rules = parse_links(links, primary)
    return {alternative.ending.lower() for rule in rules for alternative in rule.alternatives}


def claims(rules: Sequence[Rule], relpath: str, name: str, extensions: tuple[str, ...] = ()) -> bool:
    """Whether a file belongs to a picture, there or not, and so is none itself.

    Args:
        rules: what may claim it.
        relpath: of its folder.
        name: its name.
        extensions: endings of pictures, in lower case: what `{name}` ends with.
    """
    return any(alternative.matches(relpath, name, extensions) for rule in rules for alternative in rule.alternatives)


def stem(name: str) -> str:
    """A file's name without its last ending."""
    dot = name.rfind(".")
    return name[:dot] if dot > 0 else name


def join(relpath: str, name: str) -> str:
    """A path below the root."""
    return f"{relpath}/{name}" if relpath else name


def _folded(path: str) -> str:
    dot = path.rfind(".")
    return path[:dot] + path[dot:].lower()


def _rule(role: object, link: object, primary: str) -> Rule:
    if not isinstance(role, str) or not role:
        raise UsageError(f"the role of a link is a name, such as 'caption', not {role!r}")
    if role == primary:
        raise UsageError(f"{role!r} is the role of the scanned files themselves; give the link another one")
    if callable(link):
        return Rule(role, function=link)
    if not isinstance(link, str):
        raise UsageError(f"the link of {role!r} is a template such as '.txt', or a function; not {link!r:.80}")
    if link.startswith("="):
        _check_placeholders(role, link, _IN_TEXTS)
        return Rule(role, text=link[1:])
    template = link.strip()
    optional = template.endswith("?")
    parts = [part.strip() for part in template.removesuffix("?").split("|")]
    return Rule(role, tuple(_template(role, part) for part in parts), optional)


def _template(role: str, text: str) -> Template:
    def refused(why: str) -> UsageError:
        return UsageError(f"the link {text!r} of {role!r} {why}")

    if not text:
        raise UsageError(f"the link of {role!r} is empty; write its ending, such as '.txt', or 'masks/{{stem}}.png'")
    if "\0" in text:
        raise refused("holds a NUL, which no name can")
    if text.startswith("/"):
        raise refused("is an absolute path; write it relative to the folder of the picture")
    folder, _, name = text.rpartition("/")
    found = _check_placeholders(role, text, _IN_NAMES)
    if not found and not folder and not name[0].isalnum():
        name, found = "{stem}" + name, ["stem"]  # `.txt` and `-mask.png` are put behind the picture's name
    if len(found) != 1 or _PLACEHOLDER.search(folder):
        raise refused("needs {stem} (the picture's name without its ending) or {name}, once, in the name of the file")
    prefix, rest = name.split("{" + found[0] + "}")
    suffix, ending = os.path.splitext("x" + rest)
    if len(ending) < 2:
        raise refused("needs an ending, such as .png, at its end")
    steps = [step for step in posixpath.normpath(folder).split("/") if step != "."] if folder else []
    up = steps.count("..")
    below = "/".join(steps[up:])
    if prefix.startswith(".") or any(step.startswith(".") for step in steps[up:]):
        raise refused("names a hidden file or folder; those aren't scanned")
    return Template(up, below, prefix, suffix[1:], ending, found[0] == "name")


def _check_placeholders(role: str, text: str, known: Sequence[str]) -> list[str]:
    found = _PLACEHOLDER.findall(text)
    for name in found:
        if name not in known:
            places = ", ".join(f"{{{place}}}" for place in known)
            raise UsageError(f"the link {text!r} of {role!r} names {{{name}}}; there are {places}")
    return found
