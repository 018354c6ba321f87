"""Recipes: what belongs to their identity, what doesn't, and what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from kit import ROOT

from casstore.errors import IdentityMismatchError, UsageError
from casstore.identity.decoding import Decode
from casstore.identity.recipes import Recipe, check_same, difference

FIELDS: dict[str, Any] = {
    "weights": "ab" * 32,
    "dtype": "bfloat16",
    "code": 1,
    "preprocess": {"fit": "crop", "filter": "lanczos"},
    "seed": 7,
    "mode": "sample",
}


class Shrink:
    """A preprocess step whose spec is whatever it is given."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    def __call__(self, image: Any, size: tuple[int, int] | None) -> tuple[Any, dict[str, Any]]:
        return image, {}


def test_a_recipe_digest_is_blake3_of_its_canonical_fields() -> None:
    """The digest is the derive-key BLAKE3 of the spec, and the spec is the canonical JSON of the binding fields."""
    recipe = Recipe("vae", **FIELDS)
    assert recipe.spec == (
        '{"code":1,"dtype":"BF16","mode":"sample","name":"vae","preprocess":{"filter":"lanczos","fit":"crop"},'
        f'"seed":7,"weights":"{"ab" * 32}"}}'
    )
    assert recipe.digest == blake3(recipe.spec.encode(), derive_key_context="casstore recipe 1").digest()


def test_fields_that_are_none_are_not_in_the_spec() -> None:
    """None means not given, also for further keywords, so that a new field never changes old digests."""
    assert Recipe("vae", weights=None, seed=None, anything=None).spec == '{"name":"vae"}'


def test_the_order_of_fields_does_not_matter() -> None:
    """Recipes with the same fields in another order are equal, as are their hashes."""
    one, other = Recipe("vae", **FIELDS), Recipe("vae", **dict(reversed(FIELDS.items())))
    assert (one, hash(one), one.digest) == (other, hash(other), other.digest)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "vae2"},
        {"weights": "cd" * 32},
        {"dtype": "float16"},
        {"code": 2},
        {"code": True},
        {"code": "1"},
        {"preprocess": {"fit": "crop", "filter": "box"}},
        pytest.param({"preprocess": Shrink("half")}, id="a preprocess with a spec"),
        {"seed": 8},
        {"mode": "mean"},
        {"further": 0},
        *({name: None} for name in FIELDS),
    ],
    ids=str,
)
def test_every_binding_field_is_part_of_the_identity(change: dict[str, Any]) -> None:
    """Changing, adding or leaving out a single field makes another recipe."""
    one, other = Recipe("vae", **FIELDS), Recipe(**{"name": "vae", **FIELDS, **change})
    assert one != other and one.digest != other.digest


@pytest.mark.parametrize("stride", [8, {"latent": 8}])
def test_the_stride_is_not_part_of_the_identity(stride: Any) -> None:
    """A stride is only checked against: with and without it, it is the same recipe."""
    assert Recipe("vae", stride=stride) == Recipe("vae")


@pytest.mark.parametrize(("stride", "expected"), [(None, (None, None)), (8, (8, 8)), ({"latent": 8}, (8, None))])
def test_a_stride_is_declared_for_all_tensors_or_by_name(stride: Any, expected: Any) -> None:
    """`stride_of` gives a number to every tensor, a mapping only to those it names."""
    recipe = Recipe("vae", stride=stride)
    assert (recipe.stride_of("latent"), recipe.stride_of("mask")) == expected


@pytest.mark.parametrize(
    ("spellings", "short"),
    [
        (("bfloat16", "BF16", torch.bfloat16), "BF16"),
        (("float32", "F32", torch.float32, np.dtype("float32"), np.dtype(">f4"), np.float32), "F32"),
        (("float8_e4m3fn", torch.float8_e4m3fn), "F8_E4M3"),
        (("mixed, fp8 weights",), "mixed, fp8 weights"),
    ],
)
def test_a_dtype_has_one_spelling_in_the_spec(spellings: tuple[Any, ...], short: str) -> None:
    """A dtype of torch, of NumPy, or its name in either all mean the same."""
    assert {json.loads(Recipe("vae", dtype=dtype).spec)["dtype"] for dtype in spellings} == {short}


@pytest.mark.parametrize("field", ["weights", "dtype", "code", "preprocess", "seed", "further"])
def test_a_field_that_is_not_json_is_refused_by_name(field: str) -> None:
    """A value without a stable JSON form is a UsageError that names recipe and field."""
    with pytest.raises(UsageError, match=f"recipe 'vae': field '{field}'"):
        Recipe("vae", **{field: object()})


def test_what_is_not_json_inside_a_field_is_refused_by_place() -> None:
    """The message leads to the member, however deep it is."""
    with pytest.raises(UsageError, match=r"'preprocess'\.filter\[0\] is nan"):
        Recipe("vae", preprocess={"filter": [float("nan")]})


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"batch": 4}, '{"batch":4,"name":"vae"}'),
        ({"batch": "invariant"}, '{"name":"vae"}'),
        (
            {"decode": Decode(icc="srgb", background=(0, 0, 0))},
            '{"decode":{"background":[0,0,0],"icc":"srgb"},"name":"vae"}',
        ),
        ({"decode": Decode()}, '{"name":"vae"}'),
        ({"namespace": "team"}, '{"name":"vae"}'),
        ({"geometry": ["flip"]}, '{"name":"vae"}'),
        ({"depends": {"latent": ["image"]}}, '{"name":"vae"}'),
        ({"weights": False}, '{"name":"vae"}'),
    ],
    ids=str,
)
def test_what_each_field_adds_to_the_spec(fields: dict[str, Any], spec: str) -> None:
    """Binding fields are in the spec unless they are at their default; informative ones never are."""
    assert Recipe("vae", **fields).spec == spec


@pytest.mark.parametrize(
    ("fields", "digest"),
    [
        ({}, "33ed2cf2c9ba030d9c901d640405d21201617fe025becdd1a5e848b55da9c923"),
        ({"batch": 4}, "b60aa15ac5817b4fbe0546dd4007e6bd58ad89fff67287d720584113ed5b3423"),
        (
            {"decode": Decode(orientation="ignore", background="mask")},
            "98b1c106e21d92bee8cf87fa0999bab9372f2c8c1165208b0f02040eff5a5e5a",
        ),
    ],
    ids=str,
)
def test_a_digest_is_the_same_in_every_version(fields: dict[str, Any], digest: str) -> None:
    """What was stored once is found by every later casstore."""
    assert Recipe("vae", **fields).digest.hex() == digest


def test_fields_that_are_not_given_have_their_defaults() -> None:
    """Without them a batch has any length, pictures are decoded as ever, and nothing depends on less than all roles."""
    recipe = Recipe("vae")
    assert (recipe.batch, recipe.decode, recipe.namespace, recipe.depends) == (None, Decode(), None, {})
    assert recipe.geometry == ("crop_offset", "crop_resolution", "original_resolution", "flip", "frames")


def test_fields_that_are_given_are_there_to_be_read() -> None:
    """Each keyword is an attribute, lists as tuples."""
    rules = Decode(frames="refuse")
    recipe = Recipe(
        "vae", batch=2, decode=rules, namespace="team", geometry=["crop"], depends={"mask": ["image", "mask"]}
    )
    assert (recipe.batch, recipe.decode, recipe.namespace) == (2, rules, "team")
    assert (recipe.geometry, recipe.depends) == (("crop",), {"mask": ("image", "mask")})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("batch", value) for value in (0, -1, True, 1.0, "4", "all")),
        *(("decode", value) for value in ({}, "srgb", Decode)),
        *(("namespace", value) for value in ("", 1, "\ud800")),
        *(("geometry", value) for value in ("flip", [1], [""], {"flip"}, ["flip", "flip"])),
        *(
            ("depends", value)
            for value in (("mask",), {"mask": "image"}, {"mask": [1]}, {1: ["image"]}, {"": ["image"]})
        ),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_meant_is_refused_by_name(field: str, value: Any) -> None:
    """The message names recipe and field."""
    with pytest.raises(UsageError, match=f"recipe 'vae': field '{field}'"):
        Recipe("vae", **{field: value})


@pytest.mark.parametrize(
    ("name", "roles", "expected"),
    [
        ("latent", ("image", "mask", "depth"), ("image",)),
        ("latent_mask", ("image", "mask", "depth"), ("image", "mask")),
        ("latent_mask", ("depth", "mask"), ("depth", "mask")),
        ("latent_mask", ("image",), ("image",)),
        ("other", ("image", "mask", "depth"), ("image", "mask", "depth")),
        ("latent", (), ()),
    ],
)
def test_a_name_depends_on_the_primary_and_the_roles_that_are_said(
    name: str, roles: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """`roles_of` keeps the plan's order; the primary always counts, and a name that isn't declared depends on all."""
    recipe = Recipe("vae", depends={"latent": (), "latent_mask": ("mask", "image", "unknown")})
    assert recipe.roles_of(name, roles) == expected


def test_a_recipe_travels_to_other_processes_whole() -> None:
    """All fields, informative ones too, are there after the transport."""
    from multiprocessing.reduction import ForkingPickler

    recipe = Recipe("vae", weights=False, batch=2, decode=Decode(icc="srgb"), namespace="n", depends={"a": ("b",)})
    back = ForkingPickler.loads(ForkingPickler.dumps(recipe))  # type: ignore[attr-defined]
    assert {name: getattr(back, name) for name in Recipe.__slots__} == {
        name: getattr(recipe, name) for name in Recipe.__slots__
    }


# -- lint ------------------------------------------------------------------------------------------------------------

SAFE: dict[str, Any] = {"weights": "ab" * 32, "dtype": "bfloat16", "code": 1}


@pytest.mark.parametrize("field", SAFE)
def test_lint_names_the_field_that_is_missing(field: str) -> None:
    """A recipe of a model without weights, dtype or code version is told so, and how to write it."""
    (warning,) = Recipe("vae", **{**SAFE, field: None}).lint()
    assert warning.startswith("recipe 'vae' has no ") and f"{field}=" in warning


def test_lint_warns_of_weights_that_are_no_digest() -> None:
    """A model's name isn't its content."""
    (warning,) = Recipe("vae", **{**SAFE, "weights": "v1"}).lint()
    assert "'v1', which is no digest" in warning


@pytest.mark.parametrize("recipe", [Recipe("vae", **SAFE), Recipe("pixels", weights=False, code=1)], ids=repr)
def test_lint_has_nothing_to_say_of_a_complete_recipe(recipe: Recipe) -> None:
    """A recipe that says weights=False has no model, and so needs neither weights nor a dtype."""
    assert recipe.lint() == ()


# -- differences -----------------------------------------------------------------------------------------------------


def test_a_difference_names_only_the_fields_that_differ() -> None:
    """In order of their names, None where a recipe doesn't have one; 1 and True are two values."""
    old, new = Recipe("vae", **{**SAFE, "code": 1}), Recipe("vae", weights="ab" * 32, code=True, seed=3)
    assert difference(old.spec, new.spec) == (("code", 1, True), ("dtype", "BF16", None), ("seed", None, 3))
    assert difference(old.spec, old.spec) == ()


@pytest.mark.parametrize("spec", ["", "[]", "{", "[" * 100_000])
def test_what_is_no_spec_has_no_difference(spec: str) -> None:
    """A text that isn't the spec of a recipe is refused."""
    with pytest.raises(UsageError, match="isn't the spec"):
        difference(Recipe("vae").spec, spec)


def test_a_mismatch_is_told_with_the_differing_fields_only() -> None:
    """`check_same` says what was made with what, and carries {field: (expected, got)}."""
    expected, got = Recipe("vae", **SAFE), Recipe("vae", **{**SAFE, "weights": "cd" * 32})
    check_same(expected.spec, expected.spec, "snapshot paper")
    with pytest.raises(IdentityMismatchError) as caught:
        check_same(expected.spec, got.spec, "snapshot paper")
    assert str(caught.value).startswith(
        "snapshot paper was made with another recipe: weights cdcd..cd (expected abab..ab). "
    )
    assert caught.value.fields == {"weights": ("ab" * 32, "cd" * 32)}


def test_a_mismatch_keeps_its_fields_on_its_way_between_processes() -> None:
    """The error is picklable with them."""
    from multiprocessing.reduction import ForkingPickler

    error = IdentityMismatchError("it differs", {"seed": (1, None)})
    back = ForkingPickler.loads(ForkingPickler.dumps(error))  # type: ignore[attr-defined]
    assert (str(back), back.fields) == ("it differs", {"seed": (1, None)})


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", None, 1])
def test_a_recipe_needs_a_name(name: Any) -> None:
    """An empty name, or one that is no string, is refused."""
    with pytest.raises(UsageError, match="needs a name"):
        Recipe(name)


@pytest.mark.parametrize("step", [lambda image, size: (image, {}), Shrink(None)], ids=["no spec", "spec is None"])
def test_a_preprocess_that_does_not_say_what_it_does_is_refused(step: Any) -> None:
    """Work on the pixels without a spec would give other tensors under the identity of the untouched picture."""
    with pytest.raises(UsageError, match="spec"):
        Recipe("vae", preprocess=step)


def test_a_preprocess_class_in_place_of_an_object_is_refused() -> None:
    """A class has no spec of its own yet: forgetting the parentheses is an error."""
    with pytest.raises(UsageError, match="spec"):
        Recipe("vae", preprocess=Shrink)


def test_a_callable_preprocess_is_kept_and_bound_by_its_spec() -> None:
    """The object is handed on, and the identity is that of its spec as a plain value."""
    step = Shrink({"to": "half"})
    recipe = Recipe("vae", preprocess=step)
    assert recipe.preprocess is step and recipe == Recipe("vae", preprocess={"to": "half"})
    assert Recipe("vae", preprocess={"to": "half"}).preprocess is None


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_the_digest_is_the_same_in_every_process(seed: str) -> None:
    """No hash randomisation reaches a digest."""
    code = f"from casstore.identity.recipes import Recipe; print(Recipe('vae', **{FIELDS!r}).digest.hex())"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == Recipe("vae", **FIELDS).digest.hex()
