"""The real encoder of the test data: the tiny FLUX.2 autoencoder's encoder half (see the data's README)."""

from __future__ import annotations

from typing import Any

import torch
from kit import DATA
from safetensors.torch import load_file
from torch import Tensor, nn

import casstore
from casstore.model import Item

WEIGHTS = DATA / "taef2" / "encoder.safetensors"


class Block(nn.Module):
    """conv-ReLU-conv-ReLU-conv plus the identity, then ReLU; with a pool branch applied first where there is one."""

    def __init__(self, pool: bool) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            *[layer for _ in range(3) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())][:-1]
        )
        if pool:
            self.pool = nn.Sequential(
                nn.Conv2d(64, 256, 1, bias=False), nn.GroupNorm(4, 256), nn.ReLU(), nn.Conv2d(256, 64, 1, bias=False)
            )

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "pool"):
            x = x + self.pool(x)
        return torch.relu(self.conv(x) + x)


def network() -> nn.Sequential:
    """The encoder, float32, with its real weights: RGB [n, 3, h, w] in 0..1 -> [n, 32, h / 8, w / 8]."""

    def down() -> nn.Module:
        return nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False)

    def block(pool: bool = False) -> nn.Module:
        return Block(pool)

    layers = [nn.Conv2d(3, 64, 3, padding=1), block()]
    layers += [down(), block(), block(), block(), down(), block(), block(), block()]
    layers += [down(), block(True), block(True), block(True), nn.Conv2d(64, 32, 3, padding=1)]
    net = nn.Sequential(*layers)
    state = load_file(WEIGHTS)
    names = {name: _local_name(name, set(net.state_dict())) for name in state}
    net.load_state_dict({names[name]: value.float() for name, value in state.items()})
    return net.eval()


def _local_name(name: str, known: set[str]) -> str:
    """The name of a weight in `network`, whatever prefix the file gives it."""
    parts = name.split(".")
    return next(found for i in range(len(parts)) if (found := ".".join(parts[i:])) in known)


class Taef2:
    """A casstore encoder: FitCrop to the bucket, the real network, bfloat16 latents."""

    def __init__(self) -> None:
        self.net = network()
        self.recipe = casstore.Recipe(
            "taef2",
            weights=casstore.weights_digest(self.net),
            dtype="float32",
            code=1,
            preprocess=casstore.FitCrop("lanczos"),
            stride=8,
        )
        self.calls = 0

    @torch.inference_mode()
    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        self.calls += 1
        batch = torch.stack([torch.from_numpy(item.image.copy()) for item in items]).permute(0, 3, 1, 2).float() / 255
        return [{"latent": latent.to(torch.bfloat16)} for latent in self.net(batch)]
