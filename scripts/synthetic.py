"""Fill a synthetic index:  scripts/make_index N DIR   N entries (source, content, variant, object, part), no files."""

import hashlib
import sys
import time

import casstore
from casstore.identity.keys import Key
from casstore.index.objects import NewObject, save_objects
from casstore.index.roots import save_root
from casstore.index.sources import SeenSource, Stat, save_sources
from casstore.index.variants import NewPart, NewVariant, Stamp, save_variants
from casstore.model import Content, Stored, TensorInfo
from casstore.objects.payload import Layout

BATCH = 4000
FOLDER = 1000  # files per directory
RECIPE = casstore.Recipe("synthetic", code=1, dtype="bfloat16")
LAYOUT = Layout.of([("latent", TensorInfo("BF16", (16, 128, 96)))])
NAMES = '{"tensors":{"latent":["BF16",3]},"values":["crop_offset","original_resolution"]}'


def digest(kind: str, number: int) -> bytes:
    return hashlib.sha256(f"{kind} {number}".encode()).digest()


def key_of(number: int) -> Key:
    content = Content("file", digest("content", number), 1_000_000 + number, 1024, 768, 1)
    return Key.content(content, RECIPE, resolution="768x1024")


def rows(numbers: range) -> tuple[list[SeenSource], list[NewObject], list[NewVariant]]:
    sources, objects, variants = [], [], []
    for number in numbers:
        key = key_of(number)
        stat = Stat(key.primary.nbytes, 10**18 + number, 10**18 + number, number + 1)
        sources.append(SeenSource(f"d{number // FOLDER:05}", f"photo_{number:07}.jpg", stat, True, key.primary))
        name = digest("object", number)
        objects.append(
            NewObject(Stored(name, "zstd", LAYOUT.text, 260_000 + number % 1000, number), LAYOUT.payload_nbytes)
        )
        values = f'{{"crop_offset":[{number % 7},0],"original_resolution":[768,{1024 + number % 97}]}}'
        variants.append(NewVariant(key, (NewPart(name, Stamp(NAMES)),), values, "new", 40_000))
    return sources, objects, variants


def fill(store: casstore.Store, count: int, start: int = 0) -> None:
    index = store._handle.index
    with index.write() as connection:
        root = save_root(connection, "/synthetic/photos")
    for first in range(start, start + count, BATCH):
        sources, objects, variants = rows(range(first, min(first + BATCH, start + count)))
        with index.write() as connection:
            save_sources(connection, root, sources)
            save_objects(connection, objects)
            save_variants(connection, variants, (), None)


def main() -> None:
    if len(sys.argv) != 3 or not sys.argv[1].isdecimal():
        sys.exit(__doc__)
    began = time.perf_counter()
    with casstore.open(sys.argv[2], create=True, durability="off") as store:
        fill(store, int(sys.argv[1]))
        count = store.status().variants
    print(f"{count:,} entries in {time.perf_counter() - began:.1f} s: {sys.argv[2]}")


if __name__ == "__main__":
    main()
