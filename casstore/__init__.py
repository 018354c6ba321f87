"""casstore: an embedded, content-addressed store for tensors that were expensive to compute.

Encode once: never wrong, never lost, never twice. Names are loaded when they are first used, so that importing the
package costs next to nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

logging.getLogger("casstore").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from casstore import errors as errors
    from casstore.encoders.collector import BatchCollector as BatchCollector
    from casstore.encoders.preprocess import FitCrop as FitCrop
    from casstore.identity.buckets import Buckets as Buckets
    from casstore.identity.contents import Text as Text
    from casstore.identity.decoding import Decode as Decode
    from casstore.identity.keys import Key as Key
    from casstore.identity.recipes import Preprocess as Preprocess
    from casstore.identity.recipes import Recipe as Recipe
    from casstore.identity.weights import weights_digest as weights_digest
    from casstore.model import BuildReport as BuildReport
    from casstore.model import Hit as Hit
    from casstore.model import Item as Item
    from casstore.model import Miss as Miss
    from casstore.store import Store as Store
    from casstore.store import open as open

_HOME = {
    "BatchCollector": "casstore.encoders.collector",
    "Buckets": "casstore.identity.buckets",
    "BuildReport": "casstore.model",
    "Decode": "casstore.identity.decoding",
    "FitCrop": "casstore.encoders.preprocess",
    "Hit": "casstore.model",
    "Item": "casstore.model",
    "Key": "casstore.identity.keys",
    "Miss": "casstore.model",
    "Preprocess": "casstore.identity.recipes",
    "Recipe": "casstore.identity.recipes",
    "Store": "casstore.store",
    "Text": "casstore.identity.contents",
    "open": "casstore.store",
    "weights_digest": "casstore.identity.weights",
}

__all__ = [
    "BatchCollector",
    "Buckets",
    "BuildReport",
    "Decode",
    "FitCrop",
    "Hit",
    "Item",
    "Key",
    "Miss",
    "Preprocess",
    "Recipe",
    "Store",
    "Text",
    "errors",
    "open",
    "weights_digest",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        return import_module("casstore.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'casstore' has no attribute {name!r}")
    found = getattr(import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
