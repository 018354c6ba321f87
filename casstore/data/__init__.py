"""Datasets over plans, for training: `store.dataset(image=plan, text=other_plan)`.

torch is imported when the first dataset is made, not before.
"""

from casstore.data.dataset import Dataset
from casstore.data.picks import EMPTY, Pick
from casstore.data.rows import Row

__all__ = ["EMPTY", "Dataset", "Pick", "Row"]
