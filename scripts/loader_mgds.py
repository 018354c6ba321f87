"""SmartDiskCache (Nerogar/mgds, pull request 49), fetching epochs of these samples in a process of its own."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import loader_data
from loader_data import BATCH


class Smart:
    """Two caches, one for latents and one for texts, as its users set them up; filled when this is made.

    Args:
        checkout: of mgds.
        folder: a new one, for its files.
        count: of samples.
    """

    def __init__(self, checkout: Path, folder: Path, count: int) -> None:
        folder.mkdir()
        source = checkout / "src" if (checkout / "src").is_dir() else checkout
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, str(source), str(folder), count), daemon=True)
        self._process.start()
        other.close()
        self._pipe.recv()

    def epoch(self) -> float:
        """Seconds per sample, after the first batch."""
        self._pipe.send("epoch")
        found: float = self._pipe.recv()
        return found

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()


def _serve(pipe: Any, source: str, folder: str, count: int) -> None:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        dataset, loader = _pipeline(source, Path(folder), count)
        dataset.start_next_epoch()  # fills the caches
    pipe.send("filled")
    with contextlib.suppress(EOFError):
        while pipe.recv():
            with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
                dataset.start_next_epoch()
                each = iter(loader)
                next(each)
                began = time.perf_counter()
                fetched = sum(len(batch["latent"]) for batch in each)
            pipe.send((time.perf_counter() - began) / fetched)


def _pipeline(source: str, folder: Path, count: int) -> tuple[Any, Any]:
    """Its dataset, and a loader over it."""
    sys.path.insert(0, source)
    import torch
    from mgds.MGDS import MGDS, TrainDataLoader  # type: ignore[import-not-found]
    from mgds.OutputPipelineModule import OutputPipelineModule  # type: ignore[import-not-found]
    from mgds.PipelineModule import PipelineModule, PipelineState  # type: ignore[import-not-found]
    from mgds.pipelineModules.SmartDiskCache import SmartDiskCache  # type: ignore[import-not-found]
    from mgds.pipelineModuleTypes.RandomAccessPipelineModule import (  # type: ignore[import-not-found]
        RandomAccessPipelineModule,
    )

    tensors = loader_data.samples()
    paths = _sources(folder / "sources", count)

    class Upstream(PipelineModule, RandomAccessPipelineModule):  # type: ignore[misc]
        def length(self) -> int:
            return count

        def get_inputs(self) -> list[str]:
            return []

        def get_outputs(self) -> list[str]:
            return ["path", "latent", "hidden"]

        def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
            return {"path": paths[index]} | loader_data.sample(tensors, index)

    caches = [
        SmartDiskCache(cache_dir=str(folder / name), split_names=[name], aggregate_names=[], source_path_in_name="path")
        for name in ("latent", "hidden")
    ]
    modules = [Upstream(), *caches, OutputPipelineModule(["latent", "hidden"])]
    dataset = MGDS(torch.device("cpu"), [], {}, modules, BATCH, PipelineState(2), seed=0)
    return dataset, TrainDataLoader(dataset, BATCH)


def _sources(folder: Path, count: int) -> Sequence[str]:
    """A small file for each sample, which its cache goes by."""
    folder.mkdir()
    for n in range(count):
        (folder / f"{n:06}.txt").write_text(f"sample {n}")
    return [str(folder / f"{n:06}.txt") for n in range(count)]
