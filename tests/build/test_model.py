"""Whatever is edited, asked for, stopped, lost or collected: what is served is what a model in a dict says."""

from __future__ import annotations

import functools
import hashlib
import io
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
from core.helpers import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kit import check_counts, object_files
from PIL import Image

import casstore
from casstore.errors import BuildInterrupted
from casstore.model import Item

SAMPLES = ["a", "b", "c"]
ROLES = [("image", "mask", "caption"), ("image", "mask"), ("image",)]
LINKS = {"mask": "-mask.png?", "caption": ".txt?"}
DEPENDS = {
    "latent": ("image",),
    "extra": ("image",),
    "masked": ("image", "mask"),
    "words": ("image", "caption"),
}
USUAL = ("latent", "masked", "words")
RECIPES = [casstore.Recipe("r", code=code, stride=8, depends=DEPENDS) for code in (1, 2)]
CLIP = casstore.Recipe("clip", code=1)

samples, seeds = st.sampled_from(SAMPLES), st.integers(0, 2)
jitters = st.sampled_from([False, False, False, True])
recipes, roles = st.sampled_from([*RECIPES[:1] * 4, RECIPES[1]]), st.sampled_from([ROLES[0], *ROLES])
several = st.sampled_from([["16x16"], ["16x16"], ["16x16"], ["8x16"], ["16x16", "16x8"]])
wanted = st.sampled_from([None, None, None, ("latent",), ("latent", "extra")])


@functools.cache
def png(seed: int) -> bytes:
    """A picture; the same seeds for pictures and masks, so that equal bytes under both roles are common."""
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def made(name: str, key: casstore.Key, contents: Mapping[str, bytes], offset: Any) -> np.ndarray[Any, Any]:
    """The tensor of a name: of the roles that it depends on, the key's settings, and where the picture was cropped."""
    height, width = (int(side) for side in key.resolution.split("x"))
    told = [(role, contents[role].hex()) for role in DEPENDS[name] if role in contents]
    text = repr((name, told, key.recipe.spec, key.resolution, key.variation, offset))
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return np.random.default_rng(seed).standard_normal((2, height // 8, width // 8))


class Encoder:
    """Makes what it is asked for; may crop elsewhere each time, and stop or fail at some item."""

    def __init__(self, jitter: bool, fail_at: int, stop: bool) -> None:
        self.jitter, self.fail_at, self.stop = jitter, fail_at, stop
        self.calls = 0

    def __call__(self, items: list[Item]) -> list[dict[str, Any]]:
        found = []
        for item in items:
            self.calls += 1
            if self.calls == self.fail_at:
                raise KeyboardInterrupt if self.stop else RuntimeError("no memory")
            if item.text is not None:
                found.append({"embedding": np.frombuffer(item.text.encode(), np.uint8)})
                continue
            offset = [self.calls if self.jitter else 0, 0]
            contents = {"image": item.data}
            for role, member in item.members.items():
                contents[role] = member.data if member.text is None else member.text.encode()
            asked = USUAL if item.names is None else item.names
            names = [name for name in DEPENDS if name in asked and contents.keys() >= set(DEPENDS[name])]
            tensors = {name: made(name, item.key, contents, offset) for name in names}
            found.append({**tensors, "crop_offset": offset})
        return found


class Model(RuleBasedStateMachine):
    """The files, and {key: (what it was made from, the names that have to be there)} of all that was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.folder = self.place / "data"
        self.folder.mkdir()
        self.store = casstore.open(self.place / "store", create=True, durability="off")
        self.stored: dict[casstore.Key, tuple[dict[str, bytes], set[str]]] = {}
        self.doubtful: set[casstore.Key] = set()  # a file of theirs has gone, and perhaps nobody has noticed
        self.texts: set[str] = set()
        self.recipe = RECIPES[0]
        self.roles, self.resolutions, self.variations = ROLES[0], ["16x16"], 1

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.place)

    def path(self, sample: str, role: str = "image") -> Path:
        return self.folder / (sample + {"image": ".png", "mask": "-mask.png", "caption": ".txt"}[role])

    # -- edits -----------------------------------------------------------------------------------------------------

    @initialize()
    def fill(self) -> None:
        for number, sample in enumerate(SAMPLES[:2]):
            self.path(sample).write_bytes(png(number))
            self.path(sample, "mask").write_bytes(png(number + 2))
            self.path(sample, "caption").write_text(f"caption {number}")

    @rule(sample=samples, role=st.sampled_from(["image", "mask", "mask", "caption"]), seed=seeds)
    def edit(self, sample: str, role: str, seed: int) -> None:
        data = f"caption {seed}".encode() if role == "caption" else png(seed)
        self.path(sample, role).write_bytes(data)

    @rule(sample=samples, other=samples, role=st.sampled_from(["image", "mask", "caption"]), delete=st.booleans())
    def remove(self, sample: str, other: str, role: str, delete: bool) -> None:
        """Delete a file, or give it another name."""
        if delete:
            self.path(sample, role).unlink(missing_ok=True)
        elif self.path(sample, role).exists():
            self.path(sample, role).rename(self.path(other, role))

    # -- settings --------------------------------------------------------------------------------------------------

    @rule(recipe=recipes, roles=roles, resolutions=several, variations=st.integers(1, 2))
    def switch(self, recipe: Any, roles: Any, resolutions: list[str], variations: int) -> None:
        self.recipe, self.roles, self.resolutions, self.variations = recipe, roles, resolutions, variations

    # -- upkeep ----------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 99), forget=st.booleans())
    def collect(self, number: int, forget: bool) -> None:
        """gc, perhaps after a variant was forgotten."""
        if forget and self.stored:
            key = list(self.stored)[number % len(self.stored)]
            assert self.store.forget(key).execute() == 1
            del self.stored[key]
        self.store.gc(yes=True, grace_hours=0)

    @rule(number=st.integers(0, 99), noticed=st.booleans())
    def lose(self, number: int, noticed: bool) -> None:
        """An object file goes; what refers to it is gone."""
        files = object_files(self.store.path)
        if files:
            file = files[number % len(files)]
            texts = {casstore.Key.text(text, CLIP): text for text in self.texts}
            users = [key for key in (*self.stored, *texts) if file.stem in self.hit(key).digests]
            file.unlink()
            noticed = noticed or any(key in texts for key in users)
            if noticed:
                self.store.verify()
            for key in users:
                if not noticed:
                    self.doubtful.add(key)
                else:
                    assert self.store.lookup(key) == casstore.Miss("damaged", ANY)
                self.stored.pop(key, None)
                self.texts.discard(texts.get(key, ""))

    # -- plans and builds ------------------------------------------------------------------------------------------

    def hit(self, key: casstore.Key) -> casstore.Hit:
        found = self.store.lookup(key)
        assert isinstance(found, casstore.Hit), (key, found)
        return found

    def rows(self) -> dict[tuple[str, str, int], dict[str, bytes]]:
        """{(sample, resolution, variation): what it is made from} of all that is asked for."""
        return {
            (f"{sample}.png", resolution, variation): {
                role: self.path(sample, role).read_bytes() for role in self.roles if self.path(sample, role).exists()
            }
            for sample in SAMPLES
            if self.path(sample).exists()
            for variation in range(self.variations)
            for resolution in self.resolutions
        }

    @rule(
        names=wanted,
        augment=st.sampled_from(["add", "add", "rebuild"]),
        jitter=jitters,
        fail_at=st.sampled_from([0, 0, 0, 1, 2, 3]),
        stop=st.booleans(),
        batch_size=st.integers(1, 3),
    )
    def build(self, names: Any, augment: Any, jitter: bool, fail_at: int, stop: bool, batch_size: int) -> None:
        """Plan, and compare with the model; build, perhaps with a failure or a stop, and compare again."""
        inputs = self.store.scan(self.folder, links=LINKS)
        rows = self.rows()
        options: dict[str, Any] = {"role": self.roles, "names": names, "augment": augment}
        plan = self.store.plan(inputs, self.recipe, resolution=self.resolutions, variations=self.variations, **options)
        planned = {(r.row.sample, r.key.resolution, r.variation): r for r in plan.rows}
        assert planned.keys() == rows.keys()
        for at, row in planned.items():
            served = row.key in self.stored and self.stored[row.key][1] >= set(names or ())
            assert (row.miss is None) == served or row.key in self.doubtful, (at, row.miss)
        missing = {row.key for row in plan.misses}
        encoder = Encoder(jitter, fail_at, stop)
        complete = False
        try:
            report = self.store.build(plan, encoder, batch_size=batch_size)
            counts = (report.hits, report.encoded, report.by_others, report.failed, report.left)
            assert min(counts) >= 0 and sum(counts) == plan.planned and report.left == 0, counts
            complete = report.failed == 0
            assert complete or encoder.calls >= fail_at > 0, report.failures
        except BuildInterrupted:
            assert stop and fail_at
        for at, contents in rows.items():
            key = planned[at].key
            found = self.store.lookup(key)
            if key in self.doubtful and not (complete and key in missing):
                continue
            if isinstance(found, casstore.Hit):
                have = found.layout.keys() & DEPENDS.keys()
                had = self.stored.get(key, ({}, set()))[1]
                assert have >= had, "a stored name was lost"
                assert key in missing or have == had, "a hit was changed"
                assert not complete or have >= set(names or ())
                self.stored[key] = (contents, set(have))
                self.doubtful.discard(key)
            else:
                assert not complete and key not in self.stored, (at, found)

    @rule(
        sample=samples,
        role=st.sampled_from(["image", "mask", "mask", "caption", "caption"]),
        seed=seeds,
        names=wanted,
        jitter=jitters,
    )
    def edit_and_build(self, sample: str, role: str, seed: int, names: Any, jitter: bool) -> None:
        self.edit(sample, role, seed)
        self.build(names, "add", jitter, 0, False, 8)

    @rule(names=wanted, jitter=jitters)
    def just_build(self, names: Any, jitter: bool) -> None:
        self.build(names, "add", jitter, 0, False, 8)

    @rule()
    def build_captions(self) -> None:
        inputs = self.store.scan(self.folder, links=LINKS)
        texts = {
            self.path(s, "caption").read_text()
            for s in SAMPLES
            if all(map(Path.exists, (self.path(s), self.path(s, "caption"))))
        }
        report = check_counts(self.store.build(self.store.plan(inputs, CLIP, role="caption"), Encoder(False, 0, False)))
        assert report.encoded == len(texts - self.texts)
        self.texts |= texts

    # -- what is served --------------------------------------------------------------------------------------------

    @invariant()
    def all_that_was_stored_is_served(self) -> None:
        """Exactly the tensors of the contents and settings of the key, all cropped where the variant says."""
        for key, (contents, names) in self.stored.items():
            found = self.store.get(key, as_numpy=True)
            assert found.keys() - {"crop_offset"} == names
            for name in names:
                np.testing.assert_array_equal(
                    found[name], made(name, key, contents, found["crop_offset"]), err_msg=name
                )
        for text in self.texts:
            found = self.store.get(casstore.Key.text(text, CLIP), as_numpy=True)
            assert found["embedding"].tobytes() == text.encode()

    @rule(sample=samples, resolution=st.sampled_from(["16x16", "8x16", "16x8"]), variation=st.integers(0, 1))
    def get_by_path(self, sample: str, resolution: str, variation: int) -> None:
        """By its path a file gives what is stored for its present contents, or a miss."""
        if not self.path(sample).exists():
            return
        contents = {r: self.path(sample, r).read_bytes() for r in self.roles if self.path(sample, r).exists()}
        members: dict[str, Any] = {role: self.path(sample, role) for role in contents if role == "mask"}
        members |= {role: contents[role].decode() for role in contents if role == "caption"}
        options: dict[str, Any] = {"resolution": resolution, "variation": variation, "members": members}
        key = self.store.key(self.path(sample), self.recipe, **options)
        if key in self.stored:
            assert self.stored[key][0] == contents
        elif key not in self.doubtful:
            assert isinstance(self.store.lookup(key), casstore.Miss)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
