"""Encoders: the one that comes with casstore, and finding others by name."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kit import build, picture

import casstore
from casstore.encoders.load import Encoder, load_encoder
from casstore.encoders.pixels import Pixels
from casstore.encoders.preprocess import FitCrop
from casstore.errors import UsageError
from casstore.sources.images import decode

_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A function that writes a module into the current folder and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(source: str) -> str:
        name = f"encoder_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


GOOD = """
from kit import FakeEncoder
from casstore import Recipe
class Encoder:
    def __init__(self): self.recipe = Recipe("mine")
    def __call__(self, items): return []
    def method(self): return self
ready = Encoder()
def make(): return Encoder()
def fails(): raise LookupError("no weights")
class NoRecipe:
    def __call__(self, items): return []
class Other:
    recipe = "a string"
    def __call__(self, items): return []
class Silent: recipe = Recipe("mine")
number = 3
"""


@pytest.mark.parametrize("attribute", ["ready", "make", "Encoder", "ready.method"])
def test_an_encoder_a_class_or_a_function_can_be_named(module: Callable[[str], str], attribute: str) -> None:
    """module:attribute in the current folder may be an encoder, or a class or function that makes one."""
    found = load_encoder(f"{module(GOOD)}:{attribute}")
    assert isinstance(found, Encoder) and found.recipe == casstore.Recipe("mine")


@pytest.mark.parametrize("attribute", ["NoRecipe", "Other", "Silent", "number", "fails", "nothing", "ready.nothing"])
def test_what_is_no_encoder_is_refused_by_name(module: Callable[[str], str], attribute: str) -> None:
    """An attribute that is missing, fails, or makes no encoder is a UsageError that names it."""
    name = f"{module(GOOD)}:{attribute}"
    with pytest.raises(UsageError, match=name):
        load_encoder(name)


@pytest.mark.parametrize("name", ["", "pixel", "module", "module:", ":attribute", "no_such_module_at_all:x"])
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    """A name in another form, or of a module that isn't there, is a UsageError."""
    with pytest.raises(UsageError, match="encoder"):
        load_encoder(name)


@pytest.mark.parametrize("source", ["1 / 0", "def broken(:", "import no_such_module_at_all", "raise SystemExit(0)"])
def test_a_module_that_cannot_be_imported_is_refused(module: Callable[[str], str], source: str) -> None:
    """Whatever goes wrong while the module is imported, sys.exit too, is a UsageError and never a silent end."""
    with pytest.raises(UsageError, match="can't be loaded"):
        load_encoder(f"{module(source)}:x")


def test_pixels_are_the_upright_picture_fitted_to_the_resolution(store: casstore.Store, tmp_path: Path) -> None:
    """pixels stores uint8 [3, height, width] of what FitCrop makes of the upright picture, with FitCrop's values."""
    path = picture(tmp_path / "data" / "a.jpg", size=(100, 60))
    encoder = load_encoder("pixels")
    build(store, path.parent, encoder, resolution="64x128")
    got = store.get(path, encoder.recipe, as_numpy=True)
    wanted, values = FitCrop("lanczos")(decode(path.read_bytes()), (64, 128))
    np.testing.assert_array_equal(got.pop("pixels"), np.moveaxis(wanted, 2, 0))
    assert got == values == {"crop_offset": [6, 0], "original_resolution": [60, 100]}


def test_pixels_has_one_recipe() -> None:
    """Two instances have equal recipes, so that caches are shared."""
    assert Pixels().recipe == Pixels().recipe
