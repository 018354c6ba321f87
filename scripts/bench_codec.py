"""The codec alone, on one core: stored size, encoding and decoding, against Blosc2 in the same run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import RUNS, ratios, seconds, spread

from casstore.objects import container
from casstore.objects.scratch import aligned
from casstore.objects.tensors import payload_digest, to_payload

DATA = Path(os.environ.get("CASSTORE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
SAMPLE = 1 << 21  # bytes that one timing goes through at least


@dataclass(frozen=True, slots=True)
class Case:
    """Tensors of one kind, each an object of its own; the first is timed. `width`: bytes per number."""

    name: str
    tensors: list[torch.Tensor]
    width: int


def cases() -> list[Case]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))

    padded = torch.zeros(512, 4096, dtype=torch.bfloat16)
    padded[:60] = normal(60, 4096).bfloat16()
    found = [
        Case("fp32 N(0,1), 512 KiB", [normal(32, 64, 64)], 4),
        Case("padded bf16, 60 of 512 rows", [padded], 2),
        Case("mask of ones, 64 KiB", [torch.ones(256, 256, dtype=torch.bool)], 1),
        Case("random uint8, 256 KiB", [torch.from_numpy(rng.integers(0, 256, 1 << 18, dtype=np.uint8))], 1),
    ]
    if not (DATA / "latents_bf16.safetensors").is_file():
        print(f"  no real latents at {DATA} (CASSTORE_TEST_DATA says where): their lines are left out")
        return found
    from safetensors.torch import load_file

    bf16, fp16 = (list(load_file(DATA / f"latents_{kind}.safetensors").values()) for kind in ("bf16", "fp16"))
    return [
        Case("real bf16 latents, 256 KiB", bf16, 2),
        Case("the same, 32 KiB", [latent[:4] for latent in bf16], 2),
        Case("the same, 8 MiB in one", [torch.cat(bf16 * 3)[:1024]], 2),
        Case("the same as fp32, 512 KiB", [latent.float() for latent in bf16], 4),
        Case("real fp16 latents, 256 KiB", fp16, 2),
        Case("the same as fp32, 512 KiB", [latent.float() for latent in fp16], 4),
        *found,
    ]


def bench_codec(folder: Path) -> None:
    """Sizes, then speeds: bytes of tensor per second, and (x) ours over Blosc2's (shuffle, zstd 1, one thread)."""
    try:
        import blosc2
    except ImportError:
        blosc2 = None
        print("  the comparison needs Blosc2: pip install blosc2")
    else:
        blosc2.set_nthreads(1)
        print(f"codec: against Blosc2 {blosc2.__version__}, {RUNS} pairs")
    for case in cases():
        _bench(case, blosc2)


def _bench(case: Case, blosc2: Any) -> None:
    payloads = [to_payload({"t": tensor}) for tensor in case.tensors]
    stored = [b"".join(container.encode(p.layout, p.data, p.digest)) for p in payloads]
    raw = sum(p.layout.data_nbytes for p in payloads)
    print(f"  {case.name}")
    print(f"    stored / raw                            {sum(map(len, stored)) / raw:8.4f}")
    layout, data, digest = payloads[0].layout, payloads[0].data, payloads[0].digest
    nbytes = layout.data_nbytes
    repeat = max(1, SAMPLE // nbytes)
    source, out = aligned(nbytes), aligned(nbytes)
    source[:] = data[len(layout.header) :]
    best: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Callable[[int], float]:
        def run(number: int) -> float:
            took = seconds(call, repeat)
            best[name] = min(took, best.get(name, took))
            return took

        return run

    encode = timed("encode", lambda: container.encode(layout, data, digest))
    hashed = timed("hashed", lambda: container.encode(layout, data, payload_digest(data)))
    decode = timed("decode", lambda: container.decode_into(stored[0], digest, layout, {"t": out}))
    if blosc2 is None:
        for _ in range(RUNS):
            encode(0), hashed(0), decode(0)
        found: dict[str, list[float]] = {}
    else:
        options = {"typesize": case.width, "clevel": 1, "filter": blosc2.Filter.SHUFFLE, "codec": blosc2.Codec.ZSTD}
        packed = blosc2.compress(source, **options)
        print(f"    Blosc2's / raw, of the first            {len(packed) / nbytes:8.4f}")
        pack = timed("pack", lambda: blosc2.compress(source, **options))
        unpack = timed("unpack", lambda: blosc2.decompress(packed, dst=out))
        found = {"encode": ratios(pack, encode), "decode": ratios(unpack, decode)}
        hashed(0), hashed(0), hashed(0)
    for name, what in (("encode", "encode"), ("hashed", "encode with BLAKE3"), ("decode", "decode")):
        pairs = f"   x {spread(found[name])}" if name in found else ""
        print(f"    {what + ', GB/s at best':40}{nbytes / best[name] / 1e9:7.2f}{pairs}")
    assert np.array_equal(out, source)
