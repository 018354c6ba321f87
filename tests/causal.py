"""A tiny causal transformer, and prompts for it that are padded on the right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

WORDS, WIDTH, LENGTH = 50, 16, 12
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-4}


class Layer(torch.nn.Module):
    """Attention of one head in which no token sees a later or a masked one, and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.think = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH))

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.attend(hidden).chunk(3, dim=-1)
        seen = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril() & mask[:, None, :].bool()
        scores = (query @ key.mT / math.sqrt(WIDTH)).masked_fill(~seen, -1e9)
        hidden = hidden + scores.softmax(dim=-1) @ value
        return hidden + cast(Tensor, self.think(hidden))


class Causal(torch.nn.Module):
    """Tokens [N, L] and mask [N, L] -> the hidden states [N, L, WIDTH] of each layer. `shapes`: of all calls."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Embedding(4 * LENGTH, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        self.shapes.append(tuple(tokens.shape))
        hidden = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        states = []
        for layer in self.layers:
            hidden = layer(hidden, mask)
            states.append(hidden)
        return states

    def last(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The last hidden state only."""
        return cast(Tensor, self(tokens, mask)[-1])


@cache
def causal() -> Causal:
    """One that is always the same. Without gradients, in any thread."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Causal().eval().requires_grad_(False)


@dataclass(frozen=True)
class Prompt:
    """Tokens [L], their mask [L], and how many are real."""

    tokens: Tensor
    mask: Tensor
    real: int


def prompt(real: int, length: int = LENGTH, seed: int = 0) -> Prompt:
    """A prompt of `real` tokens; the padding is token 0."""
    mask = torch.arange(length) < real
    tokens = torch.randint(1, WORDS, (length,), generator=torch.Generator().manual_seed(seed))
    return Prompt(tokens * mask, mask.long(), real)


def prompts(count: int = 8) -> list[Prompt]:
    """Prompts of many lengths."""
    return [prompt(1 + i * 5 % LENGTH, seed=i) for i in range(count)]


def stacked(batch: list[Prompt]) -> tuple[Tensor, Tensor]:
    """Tokens and mask [N, L]."""
    return torch.stack([prompt.tokens for prompt in batch]), torch.stack([prompt.mask for prompt in batch])
