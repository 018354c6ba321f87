"""The main job, step by step, through the command line that a user types. Called by scripts/demo."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from casstore.sources.images import EXTENSIONS

PHOTOS = Path(__file__).parents[2] / "shared" / "data" / "photos"
RESOLUTION = "256"
PICTURES = ("--encoder", "pixels", "--resolution", RESOLUTION)
CAPTIONS = ("--role", "caption", "--encoder", "words:encode")
ENCODER = '''
"""A text encoder that needs no weights: each word adds a row of random numbers of its own."""
import zlib
import numpy as np
import casstore


class encode:
    recipe = casstore.Recipe("words", code=1, dtype="float32")

    def __call__(self, items):
        return [{"embedding": self.embed(item.text)} for item in items]

    def embed(self, text):
        rows = [np.random.default_rng(zlib.crc32(w.encode())).standard_normal(64, "float32") for w in text.split()]
        return np.stack(rows or [np.zeros(64, "float32")])
'''


def casstore(*arguments: str, ok: tuple[int, ...] = (0,)) -> str:
    """Run a command, show it and what it prints, and return its stdout."""
    print(f"$ casstore {shlex.join(arguments)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "casstore", *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    if done.returncode not in ok:
        raise SystemExit(f"the command ended with exit code {done.returncode}")
    return done.stdout


def build(photos: Path, store: Path, expected: int | None = None, what: Sequence[str] = PICTURES) -> None:
    """Build, and check how many rows were encoded (None: some)."""
    arguments = ["build", str(photos), *what, "--store", str(store)]
    told = casstore(*arguments, ok=(0, 1))  # 1: some pictures of the folder can't be decoded
    found = re.search(r"([0-9 ]+) encoded", told)
    encoded = int(found[1].replace(" ", "")) if found else 0
    if encoded != expected and not (expected is None and encoded):
        wanted = "some" if expected is None else expected
        raise SystemExit(f"{encoded} rows were encoded where {wanted} should have been")


def say(text: str) -> None:
    """Announce a step."""
    print(f"\n== {text}", flush=True)


def copy_photos(source: Path, target: Path) -> None:
    """Copy the pictures of a folder, so that the demo may edit them."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*"))
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def draw_photos(target: Path, count: int = 24) -> None:
    """Draw pictures of many sizes."""
    target.mkdir()
    rng = random.Random(0)
    for number in range(count):
        size = rng.choice([640, 768, 896]), rng.choice([448, 576, 640, 896])
        image = Image.new("RGB", size, tuple(rng.randrange(256) for _ in range(3)))
        draw = ImageDraw.Draw(image)
        for _ in range(40):
            x, y, r = rng.randrange(size[0]), rng.randrange(size[1]), rng.randrange(10, 120)
            draw.ellipse((x - r, y - r, x + r, y + r), fill=tuple(rng.randrange(256) for _ in range(3)))
        image.save(target / f"drawn_{number:02}.jpg", quality=90)


def pictures_in(folder: Path) -> list[Path]:
    """The files that a scan takes, without those that can't be decoded, sorted."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in EXTENSIONS:
            continue
        try:
            with Image.open(path) as image:
                image.load()
            found.append(path)
        except OSError:
            continue
    return found


def edit(path: Path) -> None:
    """Turn the picture over."""
    with Image.open(path) as image:
        turned = image.convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    with Image.open(path) as image:
        kind = image.format
    turned.save(path, kind)


def main(*folders: str) -> None:
    work = Path(tempfile.mkdtemp(prefix="casstore-demo-"))
    photos, store = work / "photos", work / "cache"
    if folders:
        source = Path(folders[0]).resolve()
        if not source.is_dir():
            raise SystemExit(f"{source} isn't a folder")
        say(f"copying the pictures of {source} to {photos}, so that the demo may edit them")
        copy_photos(source, photos)
    elif PHOTOS.is_dir():
        say(f"copying the pictures of {PHOTOS} to {photos}, so that the demo may edit them")
        copy_photos(PHOTOS, photos)
    else:
        say(f"drawing two dozen pictures in {photos}")
        draw_photos(photos)

    say("1. make a store and encode everything into it")
    casstore("init", "--store", str(store))
    build(photos, store)

    say("2. the same again: nothing is encoded")
    build(photos, store, 0)

    first, second = (pictures_in(photos) * 2)[:2]
    say(f"3. edit one picture ({first.name}, mirrored): one is encoded")
    edit(first)
    build(photos, store, 1)

    moved = photos / "moved" / second.name
    say(f"4. move one picture to {moved.relative_to(photos)}: nothing is encoded, content is what counts")
    moved.parent.mkdir()
    second.rename(moved)
    build(photos, store, 0)

    say("5. a caption beside each picture, and a text encoder: half of a training cache is text")
    for number, path in enumerate(pictures_in(photos)):
        path.with_suffix(".txt").write_text(f"photo {number}, a {('wide', 'tall')[number % 2]} view\n")
    (work / "words.py").write_text(ENCODER)
    os.chdir(work)  # where casstore looks for words.py
    build(photos, store, None, CAPTIONS)

    say("6. edit one caption: one is encoded, and no picture is touched")
    pictures_in(photos)[0].with_suffix(".txt").write_text("a photo that was turned over\n")
    build(photos, store, 1, CAPTIONS)
    build(photos, store, 0)

    say("7. what the store holds")
    casstore("status", "--store", str(store))

    say("8. ask it with SQL")
    query = "SELECT recipe, resolution, count(*) AS variants, sum(stored_bytes) AS bytes FROM v_variants GROUP BY 1, 2"
    casstore("sql", query, "--store", str(store))

    say("9. the edited picture's old tensors: nobody has asked to delete them, so nothing is garbage")
    casstore("gc", "--store", str(store))

    say("done. Try next:")
    print(f"  export CASSTORE_STORE={store}")
    print(f"  casstore build {photos} --encoder pixels --resolution 512   # another size lives beside the first")
    print("  casstore verify --deep")
    print(f"(with {Path(sys.executable).parent} on the PATH)")


if __name__ == "__main__":
    main(*sys.argv[1:])
