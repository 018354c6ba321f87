"""What is stored already and stays, when a variant lacks names or when one of several inputs has changed.

A name that isn't stored is added beside the others; and where only a member was edited, the names that don't depend on
it are taken over from the variant that was. Both are right only if this pass has placed the picture as the stored one
did: the same crop, flip and size. Where that can't be told, all is encoded again in one pass.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casstore.build.plan import Plan, PlanRow
from casstore.core.handle import Handle
from casstore.core.put import Kept, can_be_served, seen_of
from casstore.identity.arrays import is_tensor, shape_of
from casstore.identity.canonical import exact
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe
from casstore.index.members import StoredMember, composites
from casstore.index.variants import PartRow, VariantRow, find_variants, variants_of
from casstore.model import TensorInfo
from casstore.objects.payload import Layout

CHUNK = 2000


@dataclass(frozen=True, slots=True)
class Beside:
    """What a result goes beside.

    Attributes:
        kept: stays.
        stored: names of its tensors and values.
        layout: of its tensors.
        asked: names that the encoder is asked for; none: nothing is left to encode.
        required: of these, those that it has to return.
        whole: names that it has to return in a pass that makes all of it again; none: those of the plan.
    """

    kept: Kept
    stored: frozenset[str]
    layout: Mapping[str, TensorInfo]
    asked: frozenset[str]
    required: frozenset[str]
    whole: frozenset[str]

    @property
    def replacing(self) -> Kept | None:
        """For a result that takes the place of it all."""
        return None if self.kept.seen is None else Kept((), {}, self.kept.seen)


def find_beside(handle: Handle, plan: Plan, rows: Sequence[PlanRow]) -> dict[bytes, Beside]:
    """{key digest: what is stored beside it}, for those of these misses of which something is."""
    keyed = [row for row in rows if row.key is not None and row.miss is not None]
    damaged = plan.names is not None  # then it wouldn't be told otherwise which names there were
    lacking = [r for r in keyed if r.lacking or (damaged and r.miss is not None and r.miss.reason == "damaged")]
    edited = [r for r in keyed if not r.lacking] if plan.recipe.depends and plan.augment == "add" else []
    found: dict[bytes, Beside] = {}
    for start in range(0, len(lacking), CHUNK):
        part = {row.key.digest: row for row in lacking[start : start + CHUNK] if row.key is not None}
        with handle.index.glance() as connection:
            stored = find_variants(connection, [row.key for row in part.values() if row.key is not None])
        for digest, variant in stored.items():
            if variant.sound:
                found[digest] = _own(handle, variant, part[digest].lacking, plan)
    for start in range(0, len(edited), CHUNK):
        found |= _relatives(handle, plan, [row.key for row in edited[start : start + CHUNK] if row.key is not None])
    return found


def _own(handle: Handle, variant: VariantRow, lacking: frozenset[str], plan: Plan) -> Beside:
    """A variant that lacks names, or one that can't be served any more."""
    values = _values_of(variant)
    layout = _layout_of(variant.parts)
    stored = frozenset(layout) | values.keys()
    if not can_be_served(handle, variant):
        names = frozenset(plan.names or ())
        # As it was seen: a part of the result may bring back the file that is lacking, but not the names.
        return Beside(Kept((), {}, seen_of(variant)), stored, layout, stored | names, names, frozenset())
    kept = Kept(variant.parts, values, seen_of(variant))
    # Without a value that says how the picture was placed nobody can tell whether another pass places it alike.
    told = plan.augment == "add" and any(name in values for name in plan.recipe.geometry)
    asked = lacking if told else stored | lacking
    return Beside(kept, stored, layout, asked, asked, stored | lacking)


def _relatives(handle: Handle, plan: Plan, keys: Sequence[Key]) -> dict[bytes, Beside]:
    """What can be taken over from variants of the same primary with other members."""
    with handle.index.glance() as connection:
        stored = variants_of(connection, list({key.primary.digest for key in keys}))
        inputs = {identity[2] for identity, _ in stored}
        members = composites(connection, list(inputs))
    beside: dict[tuple[Any, ...], list[tuple[bytes, VariantRow]]] = defaultdict(list)
    for identity, variant in stored:
        if not variant.damaged:
            beside[(*identity[:2], *identity[3:])].append((identity[2], variant))
    found = {}
    for key in keys:
        alike = (key.primary.kind, key.primary.digest, key.recipe.digest, key.resolution, key.variation, key.params)
        rows = sorted(beside.get(alike, ()), key=lambda pair: pair[1].id, reverse=True)
        taken = _taken(handle, key, plan, rows, members) if rows else None
        if taken is not None:
            found[key.digest] = taken
    return found


def _taken(
    handle: Handle,
    key: Key,
    plan: Plan,
    rows: Iterable[tuple[bytes, VariantRow]],
    members: Mapping[bytes, Sequence[StoredMember]],
) -> Beside | None:
    depends, geometry, first = plan.recipe.depends, plan.recipe.geometry, set(plan.roles[:1])
    now = {member.role for member in key.members} or first
    parts: list[PartRow] = []
    values: dict[str, Any] = {}
    placed: dict[str, Any] = {}  # by the geometry values of those that parts come from
    stored: set[str] = set()
    known: set[str] = set()
    expected: set[str] = set()  # from the encoder, since it has returned them for contents under the same roles
    for inputs, variant in rows:
        then = members.get(inputs, ())
        told = _values_of(variant)
        names = _layout_of(variant.parts).keys() | told.keys()
        before = {member.role for member in then} or first
        known |= names
        for name in names:
            roles = key.roles_of(name)
            if (now & before).issuperset(now | before if roles is None else roles):
                expected.add(name)
        agreeing = [part for part in variant.parts if _part_agrees(key, part, stored)]
        here = {name: told[name] for name in geometry if name in told}
        alike = not parts or (here and exact(here) == exact(placed))
        if not agreeing or not alike or not can_be_served(handle, variant):
            continue
        placed = here
        parts += agreeing
        values |= {name: told[name] for name in told.keys() - stored if _value_agrees(key, name, then)}
        stored |= _layout_of(agreeing).keys() | values.keys()
    if not parts:
        return None
    wanted = expected if plan.names is None else set(plan.names)
    asked = wanted if plan.names is not None else known | depends.keys()
    if not asked <= stored and not any(name in values for name in geometry):
        return None  # nobody could tell whether this pass places the picture as that one did
    kept = Kept(tuple(parts), values, None)
    required = frozenset(wanted - stored)
    return Beside(kept, frozenset(stored), _layout_of(parts), frozenset(asked - stored), required, frozenset())


def _part_agrees(key: Key, part: PartRow, stored: Collection[str]) -> bool:
    """Whether none of a part is there yet, and all that each of its names depends on is what it was."""
    names = _layout_of([part]).keys()
    return names.isdisjoint(stored) and all(_inputs_digest(key, name) == part.inputs_digest for name in names)


def _inputs_digest(key: Key, name: str) -> bytes:
    depends = key.inputs_of(name)
    return key.inputs.digest if depends is None else depends.inputs.digest


def _value_agrees(key: Key, name: str, then: Iterable[StoredMember]) -> bool:
    """Whether all that a value depends on is what it was."""
    roles = key.roles_of(name)
    primary = key.primary.digest

    def counts(role: str, digest: bytes) -> bool:
        return roles is None or role in roles or digest == primary

    now = {m[:2]: m.content.digest for m in key.members if counts(m.role, m.content.digest)}
    before = {m[:2]: m.digest for m in then if counts(m.role, m.digest)}
    return (now if len(now) > 1 else {}) == (before if len(before) > 1 else {})


def placed_alike(recipe: Recipe, beside: Beside, result: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether this pass has placed the picture as the stored one did.

    Args:
        recipe: names the values that say how.
        beside: what is stored.
        result: all that the encoder returned.
        values: of the preprocessing.
    """
    told = {**values, **result}
    now = {name: told[name] for name in recipe.geometry if name in told}
    then = {name: beside.kept.values[name] for name in recipe.geometry if name in beside.kept.values}
    if not now or exact(now) != exact(then):
        return False
    shapes = [(name, shape_of(value)) for name, value in result.items() if is_tensor(value)]
    shapes += [(name, info.shape) for name, info in beside.layout.items()]
    return len({_pixels(recipe, name, shape) for name, shape in shapes} - {None}) <= 1


def _pixels(recipe: Recipe, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """The size in pixels that a tensor stands for, as far as strides are declared; None: it isn't spatial."""
    stride = recipe.stride_of(name) or 1
    return (shape[-2] * stride, shape[-1] * stride) if len(shape) >= 3 else None


def _values_of(variant: VariantRow) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(variant.values) if variant.values is not None else {}
    return found


def _layout_of(parts: Iterable[PartRow]) -> dict[str, TensorInfo]:
    return {name: info for part in parts for name, info in Layout.parse(part.layout).tensors.items()}
