"""The stages of a build: the hook, batches and their retries, executors, encoders that open files, stalls, space."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import FakeEncoder, build, check_counts, expected_of, picture, pictures, python, spy
from many import LONG

import casstore
from casstore.build.pool import wait
from casstore.build.space import RESERVE
from casstore.errors import BuildInterrupted, BuildStopped, EncoderError, NoSpaceError

DECODE = "casstore.build.builder.decode_row"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pictures(tmp_path / "data", 12)
    return tmp_path / "data"


def failed(report: Any) -> list[str]:
    return sorted(failure.sample for failure in check_counts(report).failures)


def samples(*numbers: int) -> list[str]:
    return [f"p{number:03}.png" for number in numbers]


# -- before_encode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooled", [False, True])
def test_the_hook_runs_once_before_the_first_call_on_this_thread(
    store: casstore.Store, folder: Path, pooled: bool
) -> None:
    """before_encode is called once, before anything is encoded, on the thread that builds; also with an executor."""
    calls = []

    def hook() -> None:
        calls.append((threading.current_thread(), list(encoder.batches)))

    encoder = FakeEncoder()
    with ThreadPoolExecutor(3) as pool:
        options: dict[str, Any] = {"executor": pool, "encode_threads": 3} if pooled else {}
        check_counts(build(store, folder, encoder, batch_size=2, before_encode=hook, **options))
    assert calls == [(threading.current_thread(), [])]


@pytest.mark.parametrize("pooled", [False, True])
def test_an_error_of_the_hook_ends_the_build_and_fails_no_item(
    store: casstore.Store, folder: Path, pooled: bool
) -> None:
    """An encoder whose preparation failed isn't called; the build raises that error, and no item counts as failed."""

    def hook() -> None:
        raise RuntimeError("no such model")

    encoder = FakeEncoder()
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="no such model"):
        build(store, folder, encoder, before_encode=hook, executor=pool if pooled else None)
    assert (encoder.seen, store.status().failures) == ([], 0)


def test_a_build_of_hits_does_nothing(store: casstore.Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all is stored no hook is called, nothing decoded or encoded, no run and no owner noted."""
    build(store, folder, FakeEncoder())
    runs, decoded, hooks, encoder = len(store.status().runs), spy(monkeypatch, DECODE), [], FakeEncoder()
    owners = spy(monkeypatch, "casstore.index.owners.save_owner")
    report = check_counts(build(store, folder, encoder, before_encode=lambda: hooks.append(1)))
    assert (report.hits, decoded, hooks, encoder.seen, owners) == (12, [], [], [], [])
    assert len(store.status().runs) == runs


def test_nothing_to_encode_calls_no_hook(store: casstore.Store, tmp_path: Path) -> None:
    """Where the only miss can't be decoded, there is nothing to prepare an encoder for."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bad.jpg").write_bytes(picture(tmp_path / "good.jpg").read_bytes()[:-40])
    hooks: list[int] = []
    assert failed(build(store, tmp_path / "data", FakeEncoder(), before_encode=lambda: hooks.append(1))) == ["bad.jpg"]
    assert hooks == []


# -- batches ---------------------------------------------------------------------------------------------------------


class Sizes(FakeEncoder):
    """Notes the samples of each call, before it may raise."""

    def __init__(self, before: Callable[[list[casstore.Item]], None] | None = None, **recipe: Any) -> None:
        super().__init__(casstore.Recipe("fake", code=1, stride=8, **recipe), before=self.note)
        self.calls: list[list[str]] = []
        self.then = before

    def note(self, items: list[casstore.Item]) -> None:
        self.calls.append([item.sample for item in items])
        if self.then is not None:
            self.then(items)

    @property
    def sizes(self) -> list[int]:
        return [len(call) for call in self.calls]


def fails_on(sample: str, error: Exception) -> Callable[[list[casstore.Item]], None]:
    def fail(items: list[casstore.Item]) -> None:
        if sample in [item.sample for item in items]:
            raise error

    return fail


def test_a_batch_that_raises_is_tried_item_by_item(store: casstore.Store, folder: Path) -> None:
    """Only the bad item of a batch fails, after one call each; the batches behind it are whole again."""
    encoder = Sizes(fails_on("p002.png", ValueError("no")))
    assert failed(build(store, folder, encoder, batch_size=4)) == ["p002.png"]
    assert encoder.sizes == [4, 1, 1, 1, 1, 4, 4]


def test_batches_of_n_are_always_of_n(store: casstore.Store, folder: Path) -> None:
    """A recipe with batch=5 gets 5 items in every call, also at the end and where a batch is tried again; stored is
    what belongs to the items themselves."""
    encoder = Sizes(fails_on("p002.png", ValueError("no")), batch=5)
    assert failed(build(store, folder, encoder)) == ["p002.png"]
    assert encoder.sizes == [5] * 8
    assert encoder.calls[-1] == samples(10, 11, 10, 11, 10)
    for name in samples(1, 10, 11):
        got = store.get(folder / name, encoder.recipe, as_numpy=True)["latent"]
        assert np.array_equal(got, expected_of(folder / name, "64x64", encoder.recipe))


GPU_ERROR = type("OutOfMemoryError", (RuntimeError,), {})


@pytest.mark.parametrize("error", [MemoryError("full"), GPU_ERROR("CUDA out of memory")])
def test_out_of_memory_halves_the_batches_that_follow(store: casstore.Store, folder: Path, error: Exception) -> None:
    """Where the memory holds 2 items, batches of 8 become 4, then 2, and stay so; nothing fails."""

    def little(items: list[casstore.Item]) -> None:
        if len(items) > 2:
            raise error

    encoder = Sizes(little)
    assert failed(build(store, folder, encoder, batch_size=8)) == []
    assert encoder.sizes == [8, 4, *[2] * 6]


def test_an_item_that_is_too_large_alone_fails(store: casstore.Store, folder: Path) -> None:
    """An item for which the memory doesn't suffice at all fails alone."""
    encoder = Sizes(fails_on("p003.png", MemoryError("full")))
    assert failed(build(store, folder, encoder, batch_size=4)) == ["p003.png"]


def test_out_of_memory_fails_the_batch_where_its_size_counts(store: casstore.Store, folder: Path) -> None:
    """A recipe with batch=4 can't be given less, so the items of that batch fail, and only they."""
    encoder = Sizes(fails_on("p003.png", MemoryError("full")), batch=4)
    assert failed(build(store, folder, encoder)) == samples(0, 1, 2, 3)
    assert encoder.sizes == [4, 4, 4]


def test_batches_are_bounded_in_pixels(store: casstore.Store, folder: Path) -> None:
    """With batch_pixels a call has at most so many pixels, and at least one item."""
    encoder = Sizes()
    check_counts(build(store, folder, encoder, batch_size=8, batch_pixels=5 * 64 * 64))
    assert encoder.sizes == [5, 5, 2]
    small = Sizes(note=1)
    check_counts(build(store, folder, small, batch_pixels=1))
    assert small.sizes == [1] * 12


# -- executors -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(3) as made:
        yield made


def test_an_executor_encodes_single_items_side_by_side(store: casstore.Store, folder: Path, pool: Any) -> None:
    """encode_threads items are at work at a time, each in a call of its own; counts and tensors are the same."""
    together = threading.Barrier(3)
    encoder = Sizes(lambda items: (together.wait(LONG), None)[1])
    report = check_counts(build(store, folder, encoder, executor=pool, encode_threads=3))
    assert (report.encoded, encoder.sizes) == (12, [1] * 12)
    for path in sorted(folder.iterdir()):
        got = store.get(path, encoder.recipe, as_numpy=True)["latent"]
        assert np.array_equal(got, expected_of(path, "64x64", encoder.recipe))


def test_an_executor_stays_open(store: casstore.Store, folder: Path, tmp_path: Path, pool: Any) -> None:
    """The caller's pool isn't shut down, neither by a build that ends nor by one that fails, and serves the next."""
    build(store, folder, FakeEncoder(), executor=pool)
    pictures(tmp_path / "more", 3, size=(32, 32))
    with pytest.raises(EncoderError):
        bad = FakeEncoder(before=fails_on("p001.png", ValueError("no")))
        build(store, tmp_path / "more", bad, executor=pool, on_error="raise")
    assert check_counts(build(store, tmp_path / "more", FakeEncoder(), executor=pool)).encoded == 2
    assert pool.submit(int, "7").result(LONG) == 7


@pytest.mark.parametrize("cancelling", [False, True])
def test_a_pool_that_is_shut_down_ends_the_build_and_loses_nothing(
    store: casstore.Store, folder: Path, cancelling: bool
) -> None:
    """Where the caller shuts its pool down meanwhile, all that it has encoded is stored before the error is raised."""
    with ThreadPoolExecutor(1) as pool:

        def shut_down(items: list[casstore.Item]) -> None:
            if len(encoder.seen) == 3:
                pool.shutdown(wait=False, cancel_futures=cancelling)

        encoder = FakeEncoder(before=shut_down)
        with pytest.raises(RuntimeError, match="shutdown"):
            build(store, folder, encoder, executor=pool, encode_threads=4)
    assert 4 <= len(encoder.seen) < 12 and store.status().variants == len(encoder.seen)


def test_a_job_that_is_cancelled_while_somebody_waits_for_it_has_ended() -> None:
    """Somebody else who cancels the jobs of a pool ends the waiting for one, and nothing is raised by that."""

    class Cancelled(Future[None]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            self.cancel()
            return super().exception(timeout)

    assert wait(Cancelled(), LONG, bool)


def test_in_an_executor_an_item_fails_alone(store: casstore.Store, folder: Path, pool: Any) -> None:
    """An item that an encoder fails on in a pool is a failure of its own, remembered as ever."""
    encoder = FakeEncoder(before=fails_on("p004.png", ValueError("no")))
    assert failed(build(store, folder, encoder, executor=pool, encode_threads=3)) == ["p004.png"]
    again = FakeEncoder()
    assert check_counts(build(store, folder, again, executor=pool)).encoded == 1
    assert again.seen == ["p004.png"]


@pytest.mark.parametrize("pooled", [False, True])
def test_a_time_out_of_the_encoder_keeps_its_message(
    store: casstore.Store, folder: Path, pool: Any, pooled: bool
) -> None:
    """A TimeoutError that an encoder raises, say of a service, is told as it is and not taken for a stall."""
    encoder = FakeEncoder(before=fails_on("p004.png", TimeoutError("the service didn't answer")))
    report = build(store, folder, encoder, executor=pool if pooled else None)
    assert failed(report) == ["p004.png"]
    assert (report.failures[0].error, report.failures[0].message) == ("TimeoutError", "the service didn't answer")


def test_a_ctrl_c_in_an_executor_is_a_stop(store: casstore.Store, folder: Path, pool: Any) -> None:
    """KeyboardInterrupt in a pool's thread ends the build with its report; what was encoded before is stored."""
    encoder = FakeEncoder(before=fails_on("p005.png", KeyboardInterrupt()))  # type: ignore[arg-type]
    with pytest.raises(BuildInterrupted) as error:
        build(store, folder, encoder, executor=pool)
    report = check_counts(error.value.report, stopped=True)
    assert (report.encoded, report.failed, report.left) == (5, 0, 7)


def test_a_stop_waits_for_what_is_at_work_in_an_executor(store: casstore.Store, folder: Path, pool: Any) -> None:
    """After a stop the items that are being encoded are stored, no further one begins, and nothing goes on in the pool
    when the build has ended."""
    stop, together = threading.Event(), threading.Barrier(3, action=lambda: stop.set())
    at_work: list[str] = []

    def work(items: list[casstore.Item]) -> None:
        at_work.append(items[0].sample)
        together.wait(LONG)

    encoder = FakeEncoder(before=work)
    with pytest.raises(BuildStopped) as error:
        build(store, folder, encoder, executor=pool, encode_threads=3, stop=stop)
    assert sorted(encoder.seen) == sorted(at_work)
    assert check_counts(error.value.report, stopped=True).encoded == len(at_work) < 12


def test_a_pool_that_is_shut_down_fails_the_build(store: casstore.Store, folder: Path) -> None:
    """A pool that takes no work any more is an error that is raised, not a failure of every item."""
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        build(store, folder, FakeEncoder(), executor=pool)
    assert store.status().failures == 0


@pytest.mark.parametrize("pooled", [False, True])
def test_no_thread_outlives_a_build_that_fails(store: casstore.Store, folder: Path, pool: Any, pooled: bool) -> None:
    """Also while the error is kept, the threads of the build end with it."""
    before = set(threading.enumerate())  # other tests' batches that nobody has ended
    with pytest.raises(EncoderError) as kept:
        bad = FakeEncoder(before=fails_on("p001.png", ValueError("no")))
        build(store, folder, bad, executor=pool if pooled else None, on_error="raise")
    threads = [t for t in threading.enumerate() if t.name.startswith("casstore-") and t not in before]
    for thread in threads:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads) and kept.value


# -- encoders that open files ----------------------------------------------------------------------------------------


class Opens:
    """Opens its pictures itself, and may do something to them then."""

    recipe = casstore.Recipe("opens", code=1)
    reads = "path"

    def __init__(self, meanwhile: Callable[[Path], object] = bool) -> None:
        self.meanwhile = meanwhile
        self.items: list[casstore.Item] = []

    def __call__(self, items: list[casstore.Item]) -> list[dict[str, Any]]:
        self.items += items
        results = []
        for item in items:
            assert item.path is not None
            results.append({"bytes": np.frombuffer(Path(item.path).read_bytes(), dtype=np.uint8)})
            self.meanwhile(Path(item.path))
        return results


def test_an_encoder_that_opens_the_path_gets_no_bytes(store: casstore.Store, folder: Path) -> None:
    """With reads = "path" items have a path and sizes, neither data nor image, and nothing is decoded."""
    encoder = Opens()
    assert check_counts(build(store, folder, encoder, resolution=None)).encoded == 12
    assert all((item.data, item.image, item.width, item.height) == (None, None, 64, 64) for item in encoder.items)
    got = store.get(folder / "p003.png", encoder.recipe, as_numpy=True)["bytes"]
    assert got.tobytes() == (folder / "p003.png").read_bytes()


def replaced(path: Path) -> None:
    """Another file of the same size under the same name, of the same time."""
    before, data = path.stat(), path.read_bytes()
    path.unlink()
    path.write_bytes(data[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


MEANWHILE: dict[str, Callable[[Path], object]] = {
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "replaced": replaced,
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", MEANWHILE)
def test_a_file_that_changed_while_it_was_encoded_is_not_stored(store: casstore.Store, folder: Path, how: str) -> None:
    """What an encoder made of a file that isn't afterwards what it was before is dropped and reported as changed; its
    neighbours in the batch are stored."""
    encoder = Opens(lambda path: MEANWHILE[how](path) if path.name == "p004.png" else None)
    report = build(store, folder, encoder, resolution=None)
    assert (failed(report), report.failures[0].error, report.encoded) == (["p004.png"], "SourceChangedError", 11)
    assert store.status().failures == 0


# -- stalls ----------------------------------------------------------------------------------------------------------

STALLS = """
import sys, threading
from pathlib import Path
import casstore
from casstore.build import builder
from kit import FakeEncoder, build
real = builder.decode_row
def stall(planned, source):
    if planned.row.sample in sys.argv[3:]:
        threading.Event().wait()
    return real(planned, source)
builder.decode_row = stall
with casstore.open(sys.argv[1]) as store:
    report = build(store, Path(sys.argv[2]), FakeEncoder(), workers=2, item_timeout=3)
print(report.encoded, *(failure.sample + ":" + failure.error for failure in report.failures))
"""


def test_a_file_that_never_ends_fails_alone_and_keeps_nobody_from_ending(store: casstore.Store, folder: Path) -> None:
    """Files on a dead disk, as many as there are decode threads, fail when their time is over; the others are stored,
    and the process ends though its threads still wait."""
    done = python("-c", STALLS, store.path, folder, *samples(2, 3))
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == ["10", *(f"{name}:StalledError" for name in samples(2, 3))]


def test_an_encode_that_never_ends_in_an_executor_fails_alone(store: casstore.Store, folder: Path) -> None:
    """A call that hangs in a pool is a failure of its item when the time is over; the others are stored."""
    released = threading.Event()

    def hang(items: list[casstore.Item]) -> None:
        if items[0].sample == "p003.png":
            released.wait(LONG)

    with ThreadPoolExecutor(2) as pool:
        report = build(store, folder, FakeEncoder(before=hang), executor=pool, encode_threads=2, item_timeout=2)
        assert failed(report) == ["p003.png"] and "2 s" in report.failures[0].message
        assert report.encoded == 11
        released.set()


def test_a_long_call_on_this_thread_is_told(
    store: casstore.Store, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that takes longer than item_timeout can't be ended; a warning names its items."""
    told = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: Any) -> None:
            told.set()

    logger, handler = logging.getLogger("casstore.build.encoding"), Told()
    logger.addHandler(handler)
    try:
        encoder = FakeEncoder(before=lambda items: (told.wait(LONG), None)[1])
        assert check_counts(build(store, folder, encoder, batch_size=12, workers=1, item_timeout=1)).encoded == 12
    finally:
        logger.removeHandler(handler)
    assert told.is_set() and "p000.png" in caplog.text


def test_a_pipe_in_place_of_a_file_fails_alone(store: casstore.Store, folder: Path) -> None:
    """A named pipe that has taken the place of a picture since the plan is refused, not waited for."""
    plan = store.plan(store.scan(folder), FakeEncoder().recipe, resolution="64x64")
    (folder / "p003.png").unlink()
    os.mkfifo(folder / "p003.png")
    assert failed(store.build(plan, FakeEncoder())) == ["p003.png"]


# -- space -----------------------------------------------------------------------------------------------------------


def budget(store: casstore.Store, told: str) -> None:
    with open(Path(store.path, "casstore.toml"), "a") as stream:
        stream.write(f'\n[disk]\nbudget = "{told}"\n')


@pytest.fixture
def many(tmp_path: Path) -> Path:
    pictures(tmp_path / "many", 40)
    return tmp_path / "many"


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casstore.core.batch.GROUP_OBJECTS", 4)


def little_free(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casstore.core.handle.Handle.free_bytes", lambda self: RESERVE + (20 << 10))


def small_budget(store: casstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    budget(store, "20 KiB")


LIMITS = pytest.mark.parametrize("limit", [little_free, small_budget])


@LIMITS
def test_a_build_that_has_no_room_is_refused_before_it_starts(
    store: casstore.Store, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Any
) -> None:
    """Where the size of the recipe's results is known, a plan that is larger than the free space or the budget is
    refused with both numbers, and nothing is encoded."""
    pictures(tmp_path / "few", 3, size=(72, 64))
    build(store, tmp_path / "few", FakeEncoder())
    limit(store, monkeypatch)
    encoder = FakeEncoder()
    with pytest.raises(NoSpaceError, match=r"40 items of fake take about \d\d\.\d KiB, but .*(20|1\d)\.\d KiB"):
        build(store, many, encoder)
    assert (encoder.seen, store.status().variants) == ([], 3)


@LIMITS
@pytest.mark.usefixtures("small_groups")
def test_a_build_that_has_no_room_ends_after_its_first_group(
    store: casstore.Store, many: Path, monkeypatch: pytest.MonkeyPatch, limit: Any
) -> None:
    """Where the size isn't known yet, the first group tells it: the build ends with numbers, what was encoded stays,
    and with more room the next build encodes the rest."""
    with monkeypatch.context() as limited:
        limit(store, limited)
        encoder = FakeEncoder()
        with pytest.raises(NoSpaceError, match=r"3\d items of fake take about \d\d\.\d KiB, but .*KiB"):
            build(store, many, encoder, batch_size=4)
    stored = store.status().variants
    assert 4 <= stored == len(encoder.seen) < 40
    toml = Path(store.path, "casstore.toml")
    toml.write_text(toml.read_text().replace("20 KiB", "1 MiB"))
    assert check_counts(build(store, many, FakeEncoder())).encoded == 40 - stored


@pytest.mark.parametrize("told", ["a lot", "12 parsecs", "-3 GiB"])
def test_a_budget_that_cannot_be_meant_is_refused_before_anything_is_encoded(
    store: casstore.Store, folder: Path, told: str
) -> None:
    """A mistake in casstore.toml is a UsageError that quotes it."""
    budget(store, told)
    encoder = FakeEncoder()
    with pytest.raises(casstore.errors.UsageError, match=told):
        build(store, folder, encoder)
    assert encoder.seen == []


@pytest.mark.parametrize("kind", [np.zeros, torch.zeros])
def test_an_encoder_may_use_its_memory_again(store: casstore.Store, kind: Callable[..., Any]) -> None:
    """Results that lie in one buffer, which the next call overwrites, are stored as they were returned."""
    recipe, buffer = casstore.Recipe("buffer", code=1), kind((4, 5000))

    def encode(items: list[casstore.Item]) -> list[dict[str, Any]]:
        for place, item in enumerate(items):
            buffer[place] = int(item.sample)
        return [{"t": buffer[place]} for place in range(len(items))]

    rows = [{"sample": str(number), "caption": f"text {number}"} for number in range(50)]
    assert store.build(store.plan(store.inputs(rows), recipe, role="caption"), encode, batch_size=4).encoded == 50
    for number in range(50):
        assert (store.get(casstore.Key.text(f"text {number}", recipe))["t"] == number).all()


def test_a_stop_that_raises_loses_nothing(store: casstore.Store, folder: Path, pool: Any) -> None:
    """Its error is raised when all that was encoded is stored, what was at work in a pool by then included."""
    begun: list[Any] = []
    raised = threading.Event()

    def before(items: Any) -> None:
        begun.append(items)
        raised.wait(LONG)

    def stop() -> bool:
        if begun:
            raised.set()
            raise OSError("no answer")
        return False

    encoder = FakeEncoder(before=before)
    with pytest.raises(OSError, match="no answer"):
        build(store, folder, encoder, batch_size=1, stop=stop, executor=pool, encode_threads=3)
    assert 1 <= len(encoder.seen) == store.status().variants
