"""The key of a file, where not all of it is said: what is stored decides, if that is just one thing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from casstore.build.cells import resolutions_of
from casstore.core.handle import Handle
from casstore.errors import AmbiguousMembersError, AmbiguousResolutionError, PictureError
from casstore.identity import resolutions
from casstore.identity.canonical import canonical
from casstore.identity.contents import FilePath, content_of_value
from casstore.identity.keys import Key
from casstore.identity.recipes import Recipe
from casstore.index.members import Form, StoredMember, composites, described, forms_with
from casstore.model import Content, Member
from casstore.sources.fresh import content_of

PRIMARY_ROLES = ("image", "primary", "the file")
"""Of a composite that isn't stored, so that its primary's role can't be looked up: the first that isn't a member's."""


def key_of_file(
    handle: Handle,
    path: str | os.PathLike[str],
    recipe: Recipe,
    wanted: resolutions.Resolutions,
    *,
    only_one: bool,
    variation: int,
    members: Mapping[str, Any] | None,
    params: Mapping[str, Any] | None,
) -> Key:
    """See `Store.key`.

    Args:
        handle: the open store.
        path: of the primary.
        recipe: what its tensors are made with.
        wanted: the resolution.
        only_one: none was given; `wanted` means nothing then.
        variation: counts from 0.
        members: by role; None: not given.
        params: further JSON.
    """
    content = content_of(handle, path)
    told = canonical(dict(params or {}), "params")
    beside = None if members is None else _contents(handle, members)
    with handle.index.read() as connection:
        forms = forms_with(connection, content, recipe.digest)
        drawn = [form for form in forms if form.variation == variation] or forms
        alike = [form for form in drawn if form.params == told] or drawn
        stored = composites(connection, list({form.inputs for form in alike}))
    if beside is not None:
        alike = [form for form in alike if _fits(content, beside, stored.get(form.inputs))]
    resolution = _only_resolution(path, recipe, alike) if only_one else _resolution(content, path, wanted, recipe)
    here = {form.inputs for form in alike if form.resolution == resolution} or {form.inputs for form in alike}
    if len(here) > 1 and beside is None:
        raise AmbiguousMembersError(
            f"{os.fspath(path)} is stored with {recipe.name} together with different members; give members= as one of: "
            + "; ".join(sorted(_told(handle, content, stored.get(inputs, [])) for inputs in here))
        )
    if len(here) == 1:
        found = _members(stored.get(next(iter(here)), []))
    else:
        role = next(role for role in PRIMARY_ROLES if role not in (members or {}))
        found = [Member(role, 0, content), *beside] if beside else []
    return Key(content, recipe, resolution, variation, told, members=tuple(found))


def _contents(handle: Handle, members: Mapping[str, Any]) -> list[Member]:
    found = []
    for role, value in members.items():
        content = content_of_value(role, value)
        if content is not None:
            known = content_of(handle, content.path) if isinstance(content, FilePath) else content
            found.append(Member(role, 0, known))
    return found


def _fits(content: Content, beside: list[Member], stored: list[StoredMember] | None) -> bool:
    """Whether a stored form has exactly these members besides the primary."""
    wanted = {(member.role, member.ordinal, member.content.digest) for member in beside}
    if stored is None:
        return not wanted
    rest = {member[:3] for member in stored} - wanted
    return len(rest) == len(stored) - len(wanted) == 1 and next(iter(rest))[2] == content.digest


def _only_resolution(path: str | os.PathLike[str], recipe: Recipe, forms: list[Form]) -> str:
    stored = sorted({form.resolution for form in forms})
    if len(stored) > 1:
        names = ", ".join(repr(r) if r else "None (full size)" for r in stored)
        raise AmbiguousResolutionError(
            f"{os.fspath(path)} is stored with {recipe.name} at {len(stored)} resolutions; give one: {names}"
        )
    return stored[0] if stored else resolutions.FULL


def _resolution(content: Content, path: str | os.PathLike[str], wanted: resolutions.Resolutions, recipe: Recipe) -> str:
    if wanted is None or isinstance(wanted, str):
        return wanted or resolutions.FULL
    found = resolutions_of(content, os.fsdecode(path), wanted, recipe)
    if found is None:
        why = content.note or "its size isn't known"
        raise PictureError(f"{os.fspath(path)}: {why}; give the resolution as 'HxW'")
    if len(found) > 1:
        raise AmbiguousResolutionError(f"{os.fspath(path)}: {wanted!r} chooses several; give one: {', '.join(found)}")
    return found[0]


def _members(stored: list[StoredMember]) -> list[Member]:
    """The members of a stored composite, as a key has them; their digests are all that counts there."""
    return [Member(member.role, member.ordinal, Content(member.kind, member.digest, 0)) for member in stored]


def _told(handle: Handle, content: Content, stored: list[StoredMember]) -> str:
    """A stored form, as a person would give it."""
    others = [member for member in stored if member.digest != content.digest]
    if not others:
        return "{} (alone)"
    with handle.index.read() as connection:
        names = described(connection, [member.digest for member in others])
    return "{" + ", ".join(f"{m.role}: {names.get(m.digest) or m.digest.hex()[:12]}" for m in others) + "}"
