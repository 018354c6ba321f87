"""Failures: each is reported by name, costs nothing else, and is tried again by its own rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import FakeEncoder, as_nobody, build, check_counts, picture, pictures, spy

import casstore
from casstore.errors import CasstoreError, EncoderError, NonFiniteError, NoSpaceError, PictureError

DECODE = "casstore.build.builder.decode_row"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def truncated(path: Path, seed: int = 0) -> Path:
    """A JPEG whose header is fine and whose end is missing."""
    picture(path, seed=seed)
    path.write_bytes(path.read_bytes()[:-40])
    return path


def failed(report: Any) -> list[str]:
    """The samples that failed, sorted."""
    return sorted(failure.sample for failure in check_counts(report).failures)


def stored(store: casstore.Store) -> list[str]:
    """The names of the files that are stored."""
    return sorted(Path(row[0]).name for row in store.sql("SELECT path FROM v_variants").rows)


# -- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"), [(b"", "empty"), (b"a red cat", "not a picture"), (None, "truncated")], ids=str
)
def test_a_bad_picture_fails_alone_and_by_name(
    store: casstore.Store, folder: Path, data: bytes | None, words: str
) -> None:
    """T19, T33: an empty file, text named .jpg and a truncated JPEG each fail with a reason; the rest is stored."""
    pictures(folder, 3)
    bad = truncated(folder / "bad.jpg")
    if data is not None:
        bad.write_bytes(data)
    report = check_counts(build(store, folder, FakeEncoder()))
    (failure,) = report.failures
    assert (report.encoded, failure.sample, failure.path, failure.error) == (3, "bad.jpg", str(bad), "PictureError")
    assert words in failure.message


def test_t22_one_bad_picture_among_100_costs_only_itself(store: casstore.Store, folder: Path) -> None:
    """T22: of 100 pictures of which number 90 is corrupt, 99 are stored, and the next build encodes nothing."""
    paths = pictures(folder, 100, size=(16, 16))
    paths[90].write_bytes(paths[90].read_bytes()[:60])
    encoder = FakeEncoder()
    report = check_counts(build(store, folder, encoder))
    assert (report.encoded, failed(report), store.status().variants) == (99, ["p090.png"], 99)
    again = check_counts(build(store, folder, encoder))
    assert (again.hits, again.encoded, failed(again), len(encoder.seen)) == (99, 0, ["p090.png"], 99)


def test_t22_one_unreadable_file_among_100_costs_only_itself() -> None:
    """T22: of 100 files of which number 90 can't be read, 99 are stored; the one is named and isn't remembered."""

    def work(folder: Path) -> Any:
        paths = pictures(folder / "data", 100, size=(16, 16))
        paths[90].chmod(0)
        with casstore.open(folder / "store", create=True, durability="off") as store:
            report = check_counts(build(store, folder / "data", FakeEncoder()))
            return report.encoded, failed(report), store.status().variants, store.status().failures

    assert as_nobody(work) == [99, ["p090.png"], 99, 0]


def test_a_bad_picture_is_not_decoded_again(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that failed isn't opened by the next builds, which report it all the same."""
    truncated(folder / "bad.jpg")
    first = check_counts(build(store, folder, FakeEncoder()))
    tried = spy(monkeypatch, DECODE)
    again = check_counts(build(store, folder, FakeEncoder()))
    assert (tried, [f.message for f in again.failures]) == ([], [f.message for f in first.failures])
    assert dict(again.reasons) == {"failed": 1}


@pytest.mark.parametrize("kind", ["truncated", "refused"])
def test_retry_failed_tries_bad_pictures_again(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With retry_failed a picture that failed is decoded again, and still reported once."""
    bad = truncated(folder / "bad.jpg")
    if kind == "refused":
        bad.write_bytes(b"a red cat")
    build(store, folder, FakeEncoder())
    tried = spy(monkeypatch, DECODE)
    assert failed(build(store, folder, FakeEncoder(), retry_failed=True)) == ["bad.jpg"]
    assert len(tried) == 1


def test_new_bytes_end_a_pictures_failure(store: casstore.Store, folder: Path) -> None:
    """A picture that was mended is encoded without being asked for."""
    bad = truncated(folder / "bad.jpg")
    build(store, folder, FakeEncoder())
    picture(bad)
    report = check_counts(build(store, folder, FakeEncoder()))
    assert (report.encoded, report.failed, stored(store)) == (1, 0, ["bad.jpg"])


def test_copies_of_a_bad_picture_fail_with_it(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows with the same bytes fail together, each by its own name, after one attempt."""
    bad = truncated(folder / "bad.jpg")
    (folder / "copy.jpg").write_bytes(bad.read_bytes())
    tried = spy(monkeypatch, DECODE)
    assert failed(build(store, folder, FakeEncoder())) == ["bad.jpg", "copy.jpg"]
    assert len(tried) == 1


# -- encoders: a batch fails -----------------------------------------------------------------------------------------


def boom(items: list[casstore.Item]) -> None:
    """Fail on p003, as a GPU might."""
    if "p003.png" in [item.sample for item in items]:
        raise RuntimeError("out of memory")


class Odd(FakeEncoder):
    """Returns for the batch with p003 what `odd` makes of the right results."""

    def __init__(self, odd: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.odd = odd

    def __call__(self, items: list[casstore.Item]) -> Any:
        results = super().__call__(items)
        return self.odd(results) if "p003.png" in [item.sample for item in items] else results


BATCH_FAULTS: dict[str, Callable[[], FakeEncoder]] = {
    "raises": lambda: FakeEncoder(before=boom),
    "too-few": lambda: Odd(lambda results: results[:-1]),
    "too-many": lambda: Odd(lambda results: [*results, results[0]]),
    "none": lambda: Odd(lambda results: None),
    "one-dict": lambda: Odd(lambda results: results[0]),
    "generator": lambda: Odd(iter),
}
MESSAGES = {
    "raises": "out of memory",
    "too-few": "0 results for 1 items",
    "too-many": "2 results for 1 items",
    "none": "a NoneType for 1 items",
    "one-dict": "a dict for 1 items",
    "generator": "a list_iterator for 1 items",
}


@pytest.mark.parametrize("fault", BATCH_FAULTS)
def test_a_batch_that_the_encoder_fails_on_fails_alone(store: casstore.Store, folder: Path, fault: str) -> None:
    """An encoder that raises or returns anything but one result per item: its batch is tried item by item, so that the
    bad one fails alone."""
    pictures(folder, 6)
    report = build(store, folder, BATCH_FAULTS[fault](), batch_size=2)
    assert failed(report) == ["p003.png"]
    assert all(MESSAGES[fault] in failure.message for failure in report.failures)
    assert stored(store) == ["p000.png", "p001.png", "p002.png", "p004.png", "p005.png"]


def test_t20_a_failure_is_reported_and_tried_again_alone(store: casstore.Store, folder: Path) -> None:
    """T20: of 10 sources the encoder fails on 2: 8 are stored, 2 reported with reasons; the next build tries these."""
    pictures(folder, 10)

    def fail(items: list[casstore.Item]) -> None:
        if items[0].sample in ("p004.png", "p008.png"):
            raise MemoryError("GPU memory")

    report = build(store, folder, FakeEncoder(before=fail), batch_size=1)
    assert (report.encoded, failed(report), len(stored(store))) == (8, ["p004.png", "p008.png"], 8)
    assert all((f.error, "GPU memory" in f.message) == ("MemoryError", True) for f in report.failures)
    encoder = FakeEncoder()
    again = check_counts(build(store, folder, encoder, batch_size=1))
    assert (again.hits, again.encoded, dict(again.reasons)) == (8, 2, {"retry": 2})
    assert encoder.seen == ["p004.png", "p008.png"]


def test_success_ends_the_failure(store: casstore.Store, folder: Path) -> None:
    """What was encoded in the end isn't remembered as failed."""
    pictures(folder, 4)
    build(store, folder, FakeEncoder(before=boom))
    assert store.status().failures == 1
    build(store, folder, FakeEncoder())
    assert store.status().failures == 0


def test_attempts_are_counted(store: casstore.Store, folder: Path) -> None:
    """Each build that fails on a key again adds one to its attempts."""
    pictures(folder, 4)
    for _ in range(3):
        build(store, folder, FakeEncoder(before=boom), batch_size=1)
    assert store.sql("SELECT attempts, error_type FROM failures").rows == [(3, "RuntimeError")]


@pytest.mark.parametrize("error", [PictureError("no faces in it"), type("PictureError", (Exception,), {})("mine")])
def test_an_encoder_error_is_tried_again_whatever_its_class(
    store: casstore.Store, folder: Path, error: Exception
) -> None:
    """An error of the encoder's is tried again by every build, also if it is called PictureError."""
    pictures(folder, 1)

    def refuse(items: list[casstore.Item]) -> None:
        raise error

    assert failed(build(store, folder, FakeEncoder(before=refuse))) == ["p000.png"]
    assert check_counts(build(store, folder, FakeEncoder())).encoded == 1


# -- encoders: an item fails -----------------------------------------------------------------------------------------


def nan(result: dict[str, Any]) -> dict[str, Any]:
    result["latent"][0, 0, 0] = np.nan
    return result


ITEM_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "shape": (lambda r: {"latent": r["latent"][:, :-1]}, r"'latent'.*7x8.*64x64.*8x8"),
    "nan": (nan, r"'latent'.*1 of 256"),
    "inf": (lambda r: {"latent": np.full_like(r["latent"], np.inf)}, r"'latent'.*256 of 256"),
    "dotted": (lambda r: {"unet.latent": r["latent"]}, r"'unet\.latent'"),
    "object-dtype": (lambda r: {"latent": r["latent"], "extra": np.array([{}, None])}, "'extra'.*object"),
    "none": (lambda r: None, "not NoneType"),
    "empty": (lambda r: {}, "at least one tensor"),
    "set-as-value": (lambda r: r | {"tags": {1, 2}}, r"value\.tags"),
    "surrogate-as-name": (lambda r: {"\udcff": r["latent"]}, "udcff"),
}


@pytest.mark.parametrize("fault", ITEM_FAULTS)
def test_a_result_that_cannot_be_stored_fails_alone(store: casstore.Store, folder: Path, fault: str) -> None:
    """One wrong result of a batch fails with a message that names the tensor or value; its neighbours are stored."""
    pictures(folder, 4)
    change, words = ITEM_FAULTS[fault]
    report = build(store, folder, FakeEncoder(change={"p001.png": change}))
    assert failed(report) == ["p001.png"]
    assert report.failures[0].error in ("EncoderError", "NonFiniteError")
    assert re.search(words, report.failures[0].message), report.failures[0].message
    assert stored(store) == ["p000.png", "p002.png", "p003.png"]


def test_a_wrong_result_is_tried_again(store: casstore.Store, folder: Path) -> None:
    """An item that failed by its result is encoded again by the next build."""
    pictures(folder, 2)
    build(store, folder, FakeEncoder(change={"p001.png": nan}))
    encoder = FakeEncoder()
    assert check_counts(build(store, folder, encoder)).encoded == 1
    assert encoder.seen == ["p001.png"]


def test_nonfinite_numbers_are_stored_where_they_are_meant(store: casstore.Store, folder: Path) -> None:
    """With allow_nonfinite, NaN is stored bit by bit."""
    (path,) = pictures(folder, 1)
    encoder = FakeEncoder(change={"p000.png": nan})
    assert check_counts(build(store, folder, encoder, allow_nonfinite=True)).encoded == 1
    got = store.get(path, encoder.recipe, as_numpy=True)["latent"]
    assert np.isnan(got).sum() == 1 and np.isnan(got[0, 0, 0])


def test_t24_nan_under_one_dtype_is_stored_under_another_and_never_served_for_it(
    store: casstore.Store, folder: Path
) -> None:
    """T24: of three, one is all NaN and one has a single NaN in half precision: neither is stored, the report counts
    the values; in bfloat16 all are; back in half precision those two are still missing."""
    paths = pictures(folder, 3)
    bad = {"p000.png": lambda r: {"latent": np.full_like(r["latent"], np.nan)}, "p001.png": nan}
    half = FakeEncoder(casstore.Recipe("vae", dtype="float16", code=1, stride=8), change=bad)
    report = check_counts(build(store, folder, half))
    assert [re.findall("[0-9]+ of 256", f.message) for f in report.failures] == [["256 of 256"], ["1 of 256"]]
    other = FakeEncoder(casstore.Recipe("vae", dtype="bfloat16", code=1, stride=8))
    assert check_counts(build(store, folder, other)).encoded == 3
    plan = store.plan(store.scan(folder), half.recipe, resolution="64x64")
    assert (plan.hits, dict(plan.reasons)) == (1, {"retry": 2})
    for path in paths[:2]:
        with pytest.raises(casstore.errors.MissError):
            store.get(path, half.recipe, resolution="64x64")


def test_a_preprocess_that_raises_fails_its_item_only(store: casstore.Store, folder: Path) -> None:
    """An error in the decode threads is a failure of that row, and is tried again."""

    class Picky:
        spec = "picky"

        def __call__(self, image: Any, size: Any) -> Any:
            if image.size == (8, 8):
                raise ArithmeticError("too small")
            return image, {}

    pictures(folder, 3)
    picture(folder / "tiny.png", size=(8, 8))
    encoder = FakeEncoder(casstore.Recipe("picky", preprocess=Picky()))
    assert failed(build(store, folder, encoder)) == ["tiny.png"]
    assert dict(store.plan(store.scan(folder), encoder.recipe, resolution="64x64").reasons) == {"retry": 1}


# -- on_error="raise" ------------------------------------------------------------------------------------------------


RAISED: dict[str, tuple[Callable[[], FakeEncoder], type[Exception]]] = {
    "raises": (lambda: FakeEncoder(before=boom), EncoderError),
    "count": (lambda: Odd(lambda results: results[:-1]), EncoderError),
    "nan": (lambda: FakeEncoder(change={"p003.png": nan}), NonFiniteError),
    "shape": (lambda: FakeEncoder(change={"p003.png": ITEM_FAULTS["shape"][0]}), EncoderError),
}


@pytest.mark.parametrize("fault", RAISED)
def test_raise_stops_with_a_typed_error_that_names_the_file(store: casstore.Store, folder: Path, fault: str) -> None:
    """With on_error="raise" the first fault of the encoder ends the build; the error is casstore's and names the file,
    and what was encoded before is stored."""
    pictures(folder, 6)
    make, kind = RAISED[fault]
    with pytest.raises(CasstoreError, match=r"p00[23]\.png") as error:
        build(store, folder, make(), batch_size=2, on_error="raise")
    assert isinstance(error.value, kind)
    assert {"p000.png", "p001.png"} <= set(stored(store)) <= {"p000.png", "p001.png", "p002.png"}


@pytest.mark.parametrize("kind", ["truncated", "text", "changed"])
def test_raise_stops_at_a_bad_picture(store: casstore.Store, folder: Path, kind: str) -> None:
    """With on_error="raise" a file that can't be decoded, or changed, ends the build with a typed error naming it."""
    paths = pictures(folder, 3)
    if kind == "truncated":
        truncated(folder / "p001.jpg")
    elif kind == "text":
        (folder / "p001.jpg").write_text("a red cat")
    encoder = FakeEncoder()
    plan = store.plan(store.scan(folder), encoder.recipe, resolution="64x64")
    if kind == "changed":
        picture(paths[1], seed=77)
    with pytest.raises(CasstoreError, match=r"p001\."):
        store.build(plan, encoder, on_error="raise")


def test_raise_stores_what_the_same_call_made_of_the_others(store: casstore.Store, folder: Path) -> None:
    """With on_error="raise" a bad result ends the build, but those behind it in its batch were encoded, and are stored;
    the first error is raised, and no other call begins."""
    pictures(folder, 8)
    encoder = FakeEncoder(change={"p001.png": nan, "p002.png": lambda result: None})
    with pytest.raises(NonFiniteError, match=r"p001\.png"):
        build(store, folder, encoder, batch_size=4, on_error="raise")
    assert (stored(store), encoder.batches) == (["p000.png", "p003.png"], [4])


def test_a_last_commit_that_fails_is_noted(
    store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be stored at the end of a build is its error, and `status` tells of it, not of a build under way."""

    def full(batch: Any) -> None:
        raise NoSpaceError("the disk is full")

    pictures(folder, 3)
    monkeypatch.setattr("casstore.core.batch.Batch.flush", full)
    with pytest.raises(NoSpaceError, match="full"):
        build(store, folder, FakeEncoder())
    (run,) = store.status().runs
    assert run.finished_at is not None and "full" in (run.error or "")
    assert (run.counts["encoded"], run.counts["left"]) == (0, 3)


def test_what_raise_left_is_done_by_the_next_build(store: casstore.Store, folder: Path) -> None:
    """After a stop by an error nothing that was stored is encoded again."""
    pictures(folder, 6)
    with pytest.raises((CasstoreError, RuntimeError)):
        build(store, folder, FakeEncoder(before=boom), batch_size=1, on_error="raise")
    encoder = FakeEncoder()
    assert check_counts(build(store, folder, encoder)).encoded == 3
    assert encoder.seen == ["p003.png", "p004.png", "p005.png"]


def test_a_strange_tensor_costs_its_own_item_only(store: casstore.Store, tmp_path: Path) -> None:
    """A sparse tensor, which hardly any operation takes, fails its item with a message; the others are stored."""
    torch = pytest.importorskip("torch")
    pictures(tmp_path / "p", 3)
    encoder = FakeEncoder(change={"p001.png": lambda result: {"latent": torch.eye(8).to_sparse()}})
    report = check_counts(build(store, tmp_path / "p", encoder))
    assert (report.encoded, [(f.sample, f.error) for f in report.failures]) == (2, [("p001.png", "EncoderError")])
    assert "sparse" in report.failures[0].message


def test_a_picture_that_fails_has_no_note(store: casstore.Store, tmp_path: Path) -> None:
    """A note says how a picture was converted; one that couldn't be isn't in the notes, nor in the view's."""
    picture(tmp_path / "p" / "f.tiff", mode="F")
    (tmp_path / "p" / "text.jpg").write_text("hello")
    report = check_counts(build(store, tmp_path / "p", FakeEncoder()))
    assert (report.failed, report.notes) == (2, ())
    rows = store.sql("SELECT note, error IS NOT NULL FROM v_sources WHERE path LIKE '%text.jpg'").rows
    assert rows == [(None, 1)]
