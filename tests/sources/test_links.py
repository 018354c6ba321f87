"""Link rules: which file a template means, which files it claims, and what can't be meant."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kit import ROOT

from casstore.errors import UsageError
from casstore.model import Content
from casstore.sources.links import File, Finder, Rule, claims, endings, join, parse_links

CONTENT = Content("file", bytes(32), 0)
PICTURES = (".png", ".jpg")


def rule(link: Any, role: str = "other") -> Rule:
    return parse_links({role: link})[0]


def finder(*paths: str) -> Finder:
    """A finder over files at these paths, in the order that a scan gives them."""
    return Finder(File(*os.path.split(path), CONTENT) for path in sorted(paths, key=os.fsencode))


def find(link: str, picture: str, *paths: str) -> str | None:
    """The path of the file that a rule finds for a picture."""
    found = finder(*paths).find(rule(link), *os.path.split(picture))
    return found and join(found.relpath, found.name)


# -- finding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "picture", "there"),
    [
        (".txt", "a.png", "a.txt"),
        ("{stem}.txt", "x/y/a.png", "x/y/a.txt"),
        ("{name}.txt", "a.png", "a.png.txt"),
        ("-masklabel.png", "x/a.jpg", "x/a-masklabel.png"),
        ("masks/{stem}.png", "x/a.jpg", "x/masks/a.png"),
        ("./masks//{stem}.png", "a.jpg", "masks/a.png"),
        ("../masks/{stem}.png", "x/y/a.jpg", "x/masks/a.png"),
        ("../{stem}.txt", "x/a.jpg", "a.txt"),
        ("mask_{stem}_v2.png", "a.jpg", "mask_a_v2.png"),
        (".txt", "a.b.png", "a.b.txt"),
        (".tar.gz", "a.png", "a.tar.gz"),
        (" .txt ? ", "a.png", "a.txt"),
    ],
)
def test_a_template_means_one_file(link: str, picture: str, there: str) -> None:
    """A template finds exactly the file beside the picture that it spells, and no neighbour."""
    others = ["b.txt", "a.txt.png", "xa.txt", "masks/b.png", "x/b.txt", "aa-masklabel.png"]
    assert find(link, picture, *others) is None
    assert find(link, picture, *others, there) == there


NAMES = st.text(
    st.characters(exclude_characters="/\0{}|?", exclude_categories=["Cs"]) | st.sampled_from("-_.[]* é"), max_size=12
)
ENDINGS = st.text(st.sampled_from("abXYZ019_-é"), min_size=1, max_size=4).map(lambda text: "." + text)


@given(NAMES, NAMES, NAMES, ENDINGS, st.sets(NAMES, max_size=8), st.booleans())
def test_a_template_of_any_name_finds_exactly_its_file(
    prefix: str, stem: str, suffix: str, ending: str, others: set[str], whole: bool
) -> None:
    """Whatever stands around the placeholder, the rule finds the file of that name among others, and claims it."""
    assume(stem and not stem.startswith(".") and not prefix.startswith((".", "=")) and prefix == prefix.lstrip())
    picture = f"{stem}.png"
    middle = picture if whole else stem
    there = f"{prefix}{middle}{suffix}{ending}"
    link = f"{prefix}{{{'name' if whole else 'stem'}}}{suffix}{ending}"
    parsed = rule(link)
    names = {f"{other}{ending}" for other in others} | {f"{prefix}{other}{suffix}{ending}" for other in others}
    found = finder(*names, there).find(parsed, "", picture)
    assert found is not None and found.name == there
    assert claims([parsed], "", there, PICTURES)
    assert ending.lower() in endings({"other": link})
    assert find(link, picture, *(name for name in names if name.lower() != there.lower())) is None


@given(st.binary(min_size=1, max_size=20).filter(lambda data: not {0, 47} & set(data) and data[:1] != b"."))
def test_undecodable_names_count_by_their_bytes(raw: bytes) -> None:
    """A name that isn't UTF-8 finds the file with the very same bytes (case T34)."""
    stem = os.fsdecode(raw)
    other = os.fsdecode(raw + b"\xff")
    assert find(".txt", f"{stem}.png", f"{other}.txt", f"{stem}.txt") == f"{stem}.txt"


def test_the_first_alternative_that_is_there_counts() -> None:
    """`a|b` takes b only where there is no a."""
    assert find(".txt|.caption", "a.png", "a.caption", "a.txt") == "a.txt"
    assert find(".txt | .caption", "a.png", "a.caption") == "a.caption"


def test_endings_count_in_any_case_and_the_exact_one_wins() -> None:
    """A.TXT is found by `.txt`; where several differ in case only, the exact name wins, else the first by bytes."""
    assert find(".txt", "a.png", "a.TXT") == "a.TXT"
    assert find(".TXT", "a.png", "a.txt") == "a.txt"
    assert find(".txt", "a.png", "a.TXT", "a.txt", "a.Txt") == "a.txt"
    assert find(".txt", "a.png", "a.Txt", "a.tXT") == "a.Txt"
    assert find(".TXT", "a.png", "a.Txt", "a.txt") == "a.Txt"


def test_only_the_ending_counts_in_any_case() -> None:
    """Names and folders are told apart by case, as the file system does."""
    assert find(".txt", "a.png", "A.txt") is None
    assert find("masks/{stem}.png", "a.jpg", "Masks/a.png") is None
    assert find("-mask.png", "a.jpg", "a-MASK.png") is None


def test_a_rule_never_leaves_the_root() -> None:
    """`..` from the root finds nothing."""
    assert find("../{stem}.txt", "a.jpg", "a.txt") is None


# -- claiming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "path", "claimed"),
    [
        ("-masklabel.png", "a-masklabel.png", True),
        ("-masklabel.png", "a-masklabel.PNG", True),
        ("-masklabel.png", "-masklabel.png", False),
        ("-masklabel.png", "a.png", False),
        ("masks/{stem}.png", "masks/a.png", True),
        ("masks/{stem}.png", "x/masks/a.png", True),
        ("masks/{stem}.png", "x/notmasks/a.png", False),
        ("masks/{stem}.png", "a.png", False),
        ("../masks/{stem}.png", "masks/a.png", True),
        ("mask_{stem}.png", "mask_a.png", True),
        ("mask_{stem}.png", "mask_.png", False),
        ("aXa{stem}aXa.png", "aXaXa.png", False),
        ("{name}.png", "a.jpg.png", True),
        ("{name}.png", "a.png", False),
        ("{name}.png", "a.b.png", False),
        (".txt|-m.png", "a-m.png", True),
    ],
)
def test_a_file_that_matches_a_rule_is_claimed(link: str, path: str, claimed: bool) -> None:
    """Whether a file is no picture depends on its name alone, not on whether its picture is there."""
    assert claims([rule(link)], *os.path.split(path), PICTURES) is claimed


# -- refusing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "link",
    [
        *("", "?", "|", ".txt|", "{stem}", "{name}?", "{stem}.", "masks/.png", "mask.png", "/masks/{stem}.png"),
        *("{stem}/{stem}.png", "{stem}-{stem}.png", "{stem}{name}.png", "{stem}/x.png", "{x}.png", "{}.png"),
        *(".hidden/{stem}.png", ".{stem}.png", "masks/.{stem}.png", "a\0{stem}.txt", "={x}"),
        *(None, 3, b".txt", [".txt"], ("a", "b")),
    ],
)
def test_a_link_that_can_not_be_meant_is_refused(link: Any) -> None:
    """A bad template is a UsageError that names the role."""
    with pytest.raises(UsageError, match="'cond'"):
        parse_links({"cond": link})


@pytest.mark.parametrize("links", [{"image": ".txt"}, {"": ".txt"}, {3: ".txt"}, ".txt", ["caption"]])
def test_roles_that_can_not_be_meant_are_refused(links: Any) -> None:
    """The role of the pictures, an empty name and what is no dict are UsageErrors."""
    with pytest.raises(UsageError):
        parse_links(links)


def test_a_rule_can_be_compared_and_not_changed() -> None:
    """Two rules of one template are equal; a rule is frozen."""
    assert rule(".txt?") == rule("{stem}.txt?") != rule(".txt")
    change: Callable[..., Any] = setattr
    with pytest.raises(AttributeError):
        change(rule(".txt"), "role", "x")


DOCUMENT = (ROOT / "docs" / "inputs.md").read_text()
EXAMPLES = re.findall(r"^\| `(\S+)` \| `(\S+)` \| `(\S+)` \|$", DOCUMENT, re.MULTILINE)


@pytest.mark.parametrize(("link", "picture", "there"), EXAMPLES)
def test_the_examples_of_the_documents(link: str, picture: str, there: str) -> None:
    """Each line of the table in docs/inputs.md is what happens."""
    assert find(link.replace("\\|", "|"), picture, there) == there


def test_there_are_examples() -> None:
    """The table is found."""
    assert len(EXAMPLES) == 10
