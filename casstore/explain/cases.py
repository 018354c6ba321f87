"""Why a file is served or isn't: against what is stored under its key, or the nearest relative of that. Reads only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from casstore.core.handle import Handle
from casstore.core.read import lookup
from casstore.explain.explanation import Compared, Event, Explanation, Relative
from casstore.explain.family import Family, Stored, family_of
from casstore.explain.others import Others, count_others
from casstore.identity import resolutions
from casstore.identity.keys import NO_PARAMS, Key
from casstore.identity.recipes import Recipe, difference, shown, spec_fields
from casstore.index.recipes import newest_each, newest_meant
from casstore.index.states import usual_encode_us
from casstore.model import Hit, Miss
from casstore.objects.payload import Layout

UNDONE_FIELDS = 3  # of a recipe, that a person is asked to change back
NOT_TRIED = ("failed", "source unavailable")  # by a build, unless it is told to


def explain(
    handle: Handle,
    path: str | os.PathLike[str],
    recipe: Recipe | str | None,
    resolution: resolutions.Resolutions,
    *,
    given: bool,
    names: Sequence[str] = (),
) -> tuple[Explanation, ...]:
    """See `Store.explain`.

    Args:
        handle: the open store.
        path: of the file.
        recipe: itself, its name or the begin of its digest; None: each that has something for the file.
        resolution: that is wanted.
        given: whether one was; otherwise all that are stored are meant.
        names: that must be there.
    """
    handle.check_open()
    family = family_of(handle, path)
    meant = _recipes(family, recipe)
    cases = [case for each in meant for case in _cases(handle, family, each, resolution, given=given, names=names)]
    counted = len(cases) == 1  # counting takes its time
    return tuple(case.explanation(counted=counted) for case in cases)


def _recipes(family: Family, recipe: Recipe | str | None) -> list[Recipe]:
    """The recipes that are meant; of those that nobody has named, the newest of each name."""
    if isinstance(recipe, Recipe):
        return [recipe]
    if recipe is not None:
        return [Recipe.known(newest_meant(family.recipes, recipe).spec)]
    used = {each.key[3].hex() for each in family.stored} | {each.recipe.hex() for each in family.failed}
    names = {row.name for row in family.recipes if row.digest in used}
    return [Recipe.known(row.spec) for row in newest_each(family.recipes) if row.name in names]


def _cases(
    handle: Handle,
    family: Family,
    recipe: Recipe,
    resolution: resolutions.Resolutions,
    *,
    given: bool,
    names: Sequence[str],
) -> list[_Case]:
    """One for each resolution; one without keys if nothing can be looked up."""
    wanted = [key for key, _ in family.wanted(recipe, resolution, given=given)]
    keys = [key for key in wanted if key is not None]
    found = lookup(handle, keys)
    cases: dict[str, _Case] = {}
    for key, answer in zip(keys, found, strict=True):
        case = cases.setdefault(key.resolution, _Case(handle, family, recipe, resolution, given, frozenset(names)))
        case.add(key, answer)
    if cases:
        return list(cases.values())
    unknown = _Case(handle, family, recipe, resolution, given, frozenset(names))
    if family.content.refused:
        unknown.miss = Miss("failed", family.content.note or "")
    elif wanted:
        unknown.miss = Miss("failed", "its size isn't known, so no resolution can be chosen")
    return [unknown]


class _Case:
    """One file with one recipe at one resolution."""

    def __init__(
        self,
        handle: Handle,
        family: Family,
        recipe: Recipe,
        resolution: resolutions.Resolutions,
        given: bool,
        names: frozenset[str],
    ) -> None:
        self.handle, self.family, self.recipe = handle, family, recipe
        self.asked, self.given, self.names = resolution, given, names
        self.answers: list[tuple[Key, Hit | Miss]] = []
        self.miss: Miss | None = Miss("new")

    def add(self, key: Key, answer: Hit | Miss) -> None:
        """Another variant that is wanted at this resolution."""
        if isinstance(answer, Hit) and (lacks := self.names - answer.layout.keys() - answer.values.keys()):
            answer = Miss("output missing", ", ".join(sorted(lacks)))
        if isinstance(answer, Miss):
            answer = self.family.miss_unscanned(key, answer)
        self.answers.append((key, answer))

    def explanation(self, *, counted: bool) -> Explanation:
        """What there is to say; `counted`: also how many others share the fate."""
        family, recipe = self.family, self.recipe
        misses = [(key, answer) for key, answer in self.answers if isinstance(answer, Miss)]
        key = (misses or self.answers)[0][0] if self.answers else None
        miss = misses[0][1] if misses else None if self.answers else self.miss
        nearest = None if key is None else family.nearest(key)
        with self.handle.index.read() as connection:
            usual = usual_encode_us(connection, recipe.digest, recipe.name)
        others = Others(None)
        if counted and miss is not None:
            others = count_others(
                self.handle,
                family,
                recipe,
                miss.reason,
                self.asked,
                given=self.given,
                names=self.names,
                relative=nearest,
            )
        tried = [answer for _, answer in misses if answer.reason not in NOT_TRIED]
        return Explanation(
            path=family.path,
            kind=family.kind,
            recipe=recipe.name,
            digest=recipe.digest.hex(),
            resolution=None if key is None else key.resolution,
            reason=None if miss is None else miss.reason,
            detail="" if miss is None else miss.detail,
            variants=len(self.answers) or 1,
            hits=len(self.answers) - len(misses),
            fields=() if key is None else tuple(_compared(family, key, nearest, hit=miss is None, names=self.names)),
            relative=None if miss is None or nearest is None else _relative(family, recipe, nearest),
            others=others.number,
            undone=others.undone,
            encode_us=usual,
            undo=None if miss is None else _undo(family, recipe, miss, nearest),
            to_encode=len(tried) if self.answers else int(miss is not None and miss.reason not in NOT_TRIED),
            history=tuple(_history(family, recipe, nearest)),
        )


def _relative(family: Family, recipe: Recipe, nearest: Stored) -> Relative:
    digest = nearest.key[3]
    same_content = nearest.key[1] in {content.digest for content in family.now}
    name = next((row.title for row in family.recipes if row.digest == digest.hex()), recipe.name)
    return Relative(name, digest.hex(), nearest.story.at, nearest.key[4], same_content, digest == recipe.digest)


# -- field by field ----------------------------------------------------------------------------------------------------


def _compared(
    family: Family, key: Key, nearest: Stored | None, *, hit: bool, names: frozenset[str]
) -> Iterable[Compared]:
    """What is stored beside what is wanted; what isn't known of either is None."""
    then = nearest.key if nearest is not None else None
    content = key.primary.digest
    same = then is not None and then[1] == content
    yield Compared("content", None if then is None else then[1].hex(), content.hex(), then is not None and not same)
    if key.primary.kind == "text":
        was = None if then is None else family.texts.get(then[1])
        yield Compared("text", was, family.texts.get(content), then is not None and not same)
    now = {"bytes": family.nbytes, "modified_at": family.modified_at}
    yield Compared("file", now if same else _file_then(family, then), now)
    yield from _compared_recipes(family, key.recipe, then)
    wanted: tuple[tuple[int, str, Any, Any], ...] = (
        (4, "resolution", key.resolution, None),
        (5, "variation", key.variation, 0),
        (6, "params", key.params, NO_PARAMS),
    )
    for place, name, value, usual in wanted:
        stored = None if then is None else then[place]
        if value != usual or stored not in (None, usual):
            yield Compared(name, stored, value, then is not None and stored != value)
    yield from _compared_members(family, key, then)
    if nearest is None:
        return
    values = json.loads(nearest.row.values) if nearest.row.values is not None and nearest.row.sound else {}
    for name, value in values.items():
        yield Compared(name, value, value if hit else None)
    tensors = {
        name: f"{info.dtype} [{','.join(map(str, info.shape))}]"
        for part in (nearest.row.parts if nearest.row.sound else ())
        for name, info in Layout.parse(part.layout).tensors.items()
    }
    for name, told in tensors.items():
        yield Compared(name, told, told if hit else None)
    for name in sorted(names - values.keys() - tensors.keys()):
        yield Compared(name, None, "wanted", True)


def _file_then(family: Family, then: Any) -> dict[str, int] | None:
    """Size and time of the file when it held what the relative was made of, as far as they are known."""
    noted = family.noted
    if then is not None and noted is not None and noted.content is not None and noted.content.digest == then[1]:
        return {"bytes": noted.stat.size, "modified_at": noted.stat.mtime_ns // 1_000_000}
    for each in family.earlier:
        if then is not None and each.digest == then[1]:
            return {"bytes": each.nbytes}
    return None


def _compared_recipes(family: Family, recipe: Recipe, then: Any) -> Iterable[Compared]:
    now = recipe.digest.hex()
    if then is None or then[3] == recipe.digest:
        yield Compared("recipe", None if then is None else now, now)
        return
    yield Compared("recipe", then[3].hex(), now, True)
    spec = _spec(family, then[3])
    if spec is None:
        return
    changed = difference(spec, recipe.spec)
    yield from (Compared(field, was, value, True) for field, was, value in changed)
    names = {field for field, _, _ in changed}
    yield from (Compared(f, v, v) for f, v in spec_fields(recipe.spec).items() if f not in names and f != "name")


def _compared_members(family: Family, key: Key, then: Any) -> Iterable[Compared]:
    stored = {} if then is None else {member[:2]: member for member in family.members.get(then[2], ())}
    wanted = {member[:2]: member.content for member in key.members}
    for place in sorted(stored.keys() | wanted.keys()):
        was = stored[place].digest if place in stored else None
        now = wanted[place].digest if place in wanted else None
        if now != key.primary.digest:
            shown_was, shown_now = (family.texts.get(d, d.hex()) if d is not None else None for d in (was, now))
            yield Compared(place[0], shown_was, shown_now, then is not None and was != now)


def _spec(family: Family, digest: bytes) -> str | None:
    return next((row.spec for row in family.recipes if row.digest == digest.hex()), None)


# -- how to undo it, and how it came about -----------------------------------------------------------------------------


def _undo(family: Family, recipe: Recipe, miss: Miss, nearest: Stored | None) -> str | None:
    if nearest is None:
        return None
    if miss.reason == "recipe":
        spec = _spec(family, nearest.key[3])
        changed = difference(spec, recipe.spec) if spec is not None else ()
        if not 0 < len(changed) <= UNDONE_FIELDS:
            return None
        told = [f"{f}={shown(v) if len(json.dumps(v)) > 60 else json.dumps(v)}" for f, v, _ in changed if v is not None]
        told += [f"no {field}" for field, value, _ in changed if value is None]
        return f"{', '.join(told)} in the recipe"
    if miss.reason == "resolution":
        return f'resolution="{nearest.key[4]}"' if nearest.key[4] else "no resolution"
    if miss.reason == "variation" and nearest.key[6] != NO_PARAMS:
        return f"params={nearest.key[6]}"
    if miss.reason == "output missing":
        return f"leave {miss.detail} out of the names"
    return None


def _history(family: Family, recipe: Recipe, nearest: Stored | None) -> list[Event]:
    """What happened to the file and to what is stored of it with the recipe, or under the nearest key; oldest first."""
    digest = recipe.digest
    events = [
        Event(
            each.story.at,
            "stored" if each.story.run is None else "encoded",
            each.story.reason,
            run=each.story.run,
            encode_us=each.story.encode_us,
            content=each.key[1].hex(),
            recipe=each.key[3].hex(),
        )
        for each in family.stored
        if each.key[3] == digest or each == nearest
    ]
    for failure in family.failed:
        if failure.recipe == digest:
            events.append(
                Event(
                    failure.last_at,
                    "failed",
                    detail=f"{failure.error_type}: {failure.message}",
                    attempts=failure.attempts,
                    content=failure.content.hex(),
                    recipe=digest.hex(),
                )
            )
    events += [Event(each.until, "edited", content=each.digest.hex()) for each in family.earlier]
    return sorted(events, key=lambda event: (event.at or 0, event.what != "edited"))
