"""The items of a dataset, and how torch makes a batch of them: without a copy, where they lie in one tensor already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from casstore.errors import UsageError


class Row(dict[str, Any]):
    """An item: tensors and values under their names, facts of the row, and `sample`.

    Items that were read together are views of one tensor [n, ...] per name. torch's `default_collate` hands that tensor
    back as it is, unless an item was left out, moved or given another tensor.
    """

    __slots__ = ("_batch", "_place")

    def __init__(self, *given: Any, batch: Mapping[str, Any] | None = None, place: int = 0) -> None:
        super().__init__(*given)
        self._batch, self._place = batch, place

    def __reduce__(self) -> tuple[Any, ...]:
        return Row, (dict(self),)


def collate(rows: Sequence[Row], *, collate_fn_map: Any = None) -> dict[str, Any]:
    """A batch of items: tensors [n, ...], numbers as a tensor [n]; what can't be stacked, such as texts, as a list.

    Raises:
        UsageError: the tensors of two items have different shapes, or one has a tensor that another lacks.
    """
    import torch
    from torch.utils.data._utils.collate import collate as collate_any
    from torch.utils.data._utils.collate import default_collate_fn_map

    if collate_fn_map is None:
        collate_fn_map = default_collate_fn_map
    first = rows[0]
    names = list(dict.fromkeys(name for row in rows for name in row))
    together = first._batch if _is_whole(rows) else None
    found: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        tensors = sum(isinstance(value, torch.Tensor) for value in values)
        if together is not None and name in together and _are_views(values, together[name]):
            found[name] = together[name]
        elif tensors:
            _check_alike(rows, name, values)
            found[name] = collate_any(values, collate_fn_map=collate_fn_map)
        else:
            found[name] = _listed(values, collate_any, collate_fn_map)
    return found


def _is_whole(rows: Sequence[Row]) -> bool:
    batch = rows[0]._batch
    return batch is not None and all(row._batch is batch and row._place == n for n, row in enumerate(rows))


def _are_views(values: Sequence[Any], whole: Any) -> bool:
    """Whether these are still the items of a batch tensor, and nobody has put others in their place."""
    if len(values) != len(whole):
        return False
    step, start = whole.stride(0) * whole.element_size(), whole.data_ptr()
    shape, stride, dtype = whole.shape[1:], whole.stride()[1:], whole.dtype
    kind = type(whole)
    return all(
        type(value) is kind
        and value.dtype == dtype
        and value.shape == shape
        and value.stride() == stride
        and value.data_ptr() == start + n * step
        for n, value in enumerate(values)
    )


def _check_alike(rows: Sequence[Row], name: str, values: Sequence[Any]) -> None:
    shapes = [tuple(getattr(value, "shape", ())) if value is not None else None for value in values]
    other = next((n for n, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        told = [
            f"{row.get('sample')!r} has {'none' if s is None else list(s)}" for row, s in zip(rows, shapes, strict=True)
        ]
        raise UsageError(
            f"{name!r} can't be stacked: {told[0]}, {told[other]}; let a batch have items of one resolution only"
        )


def _listed(values: list[Any], collate_any: Any, collate_fn_map: Any) -> Any:
    if all(isinstance(value, (int, float)) for value in values):
        return collate_any(values, collate_fn_map=collate_fn_map)
    return values


def register() -> None:
    """Tell torch how to make a batch of rows."""
    from torch.utils.data._utils.collate import default_collate_fn_map

    default_collate_fn_map.setdefault(Row, collate)
