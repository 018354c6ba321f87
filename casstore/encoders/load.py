"""Finding encoders and functions by name."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from casstore.errors import UsageError
from casstore.identity.recipes import Recipe
from casstore.model import Item

_FORM = re.compile("[^:]+:.+")


@runtime_checkable
class Encoder(Protocol):
    """Makes tensors from items; `recipe` says everything about how."""

    @property
    def recipe(self) -> Recipe: ...

    def __call__(self, items: list[Item]) -> Sequence[Mapping[str, Any]]: ...


def load_encoder(name: str) -> Encoder:
    """The encoder `pixels`, or the one at "package.module:attribute".

    The module is imported with the current folder first on sys.path. The attribute is an encoder, or a class or
    function without arguments that returns one.

    Raises:
        UsageError: it can't be imported, or isn't an encoder; the message says why.
    """
    if name == "pixels":
        from casstore.encoders.pixels import Pixels

        return Pixels()
    if _FORM.fullmatch(name) is None:
        raise UsageError(f"encoder {name!r}: write pixels, or package.module:attribute")
    try:
        found = _import(name)
        if isinstance(found, type) or not hasattr(found, "recipe"):
            found = found()
    except (Exception, SystemExit) as error:
        raise UsageError(f"encoder {name!r} can't be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(found, "recipe", None), Recipe) or not callable(found):
        raise UsageError(
            f"encoder {name!r} is of type {type(found).__name__} without a `recipe` or that can't be called"
        )
    encoder: Encoder = found
    return encoder


def load_function(name: str, what: str) -> Callable[..., Any]:
    """The function at "package.module:attribute", imported with the current folder first on sys.path.

    Raises:
        UsageError: it can't be imported or called; the message names it as `what`.
    """
    if _FORM.fullmatch(name) is None:
        raise UsageError(f"{what} {name!r}: write package.module:attribute")
    try:
        found = _import(name)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{what} {name!r} can't be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UsageError(f"{what} {name!r} is of type {type(found).__name__}, which can't be called")
    function: Callable[..., Any] = found
    return function


def _import(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
