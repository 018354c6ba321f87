"""The Store that people see."""

from casstore.store.opened import Store, open
from casstore.store.reading import THE_ONLY_ONE

__all__ = ["THE_ONLY_ONE", "Store", "open"]
