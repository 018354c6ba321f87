"""BatchCollector: who is batched with whom, who sees which error, and that nobody waits forever.

Where a test needs certain batches, the window is so long that only a full batch ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import pytest
import torch
from causal import CLOSE, LENGTH, Prompt, causal, prompt, prompts, stacked
from kit import ROOT

from casstore import BatchCollector
from casstore.encoders.padding import trim_padding
from casstore.errors import EncoderError, UsageError

T = TypeVar("T")
R = TypeVar("R")

LONG = 600.0  # a window that ends no test
PATIENCE = 60  # seconds after which a test takes a thread for stuck


class Double:
    """A forward that doubles, and remembers its batches; `bad` items raise, and with them the batch that has them."""

    def __init__(self, bad: Iterable[Any] = ()) -> None:
        self.bad = set(bad)
        self.batches: list[list[Any]] = []

    def __call__(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        found = self.bad & set(items)
        if found:
            raise LookupError(f"bad: {sorted(found)}")
        return [2 * item for item in items]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


def together(call: Callable[[T], R], items: Sequence[T]) -> list[Future[R]]:
    """`call(item)` for all items, each in a thread of its own; all have ended."""
    pool = ThreadPoolExecutor(max(1, len(items)))
    futures = [pool.submit(call, item) for item in items]
    _, stuck = wait(futures, PATIENCE)
    if stuck:
        pytest.fail(f"{len(stuck)} of {len(items)} threads are stuck")
    pool.shutdown()
    return futures


def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        os.sched_yield()


def results(futures: Iterable[Future[R]]) -> list[R]:
    return [future.result() for future in futures]


@pytest.fixture(autouse=True)
def nobody_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait are woken; that they also look by themselves from time to time must not be needed."""
    monkeypatch.setattr("casstore.encoders.collector._POLL", LONG)


# -- batches -------------------------------------------------------------------------------------------------------


def test_calls_of_many_threads_become_full_batches() -> None:
    """Thirty-two threads, batches of four: each caller gets its own result, and the forward ran eight times."""
    forward = Double()
    collector = BatchCollector(forward, max_batch=4, window=LONG)
    assert results(together(collector, range(32))) == [2 * i for i in range(32)]
    assert forward.sizes == [4] * 8
    assert sorted(item for batch in forward.batches for item in batch) == list(range(32))


def test_more_work_than_threads_never_stops() -> None:
    """Eight threads with a hundred items: some share a batch, none is larger than allowed, all are answered."""
    forward = Double()
    collector = BatchCollector(forward, max_batch=4, window=0.05)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(collector, range(100), timeout=PATIENCE)) == [2 * i for i in range(100)]
    assert sum(forward.sizes) == 100 and 1 < max(forward.sizes) <= 4


@pytest.mark.parametrize("window", [0, 0.001])
def test_one_thread_alone_gets_its_results(window: float) -> None:
    """Without others an item is a batch of its own when the window is over."""
    forward = Double()
    collector = BatchCollector(forward, window=window)
    assert [collector(i) for i in range(3)] == [0, 2, 4] and forward.sizes == [1, 1, 1]


def test_a_batch_of_one_never_waits() -> None:
    """max_batch=1 is serial: the window doesn't matter."""
    forward = Double()
    collector = BatchCollector(forward, max_batch=1, window=LONG)
    assert results(together(collector, range(5))) == [0, 2, 4, 6, 8] and forward.sizes == [1] * 5


def test_forwards_never_overlap() -> None:
    """While one runs, other threads gather for the next."""
    inside, gate, waiting = [], threading.Event(), threading.Event()

    def forward(items: list[int]) -> list[int]:
        inside.append(items)
        waiting.set()
        assert gate.wait(PATIENCE) and inside == [items]
        inside.clear()
        return items

    collector = BatchCollector(forward, max_batch=3, window=0)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(collector, i) for i in range(8)]
        assert waiting.wait(PATIENCE)
        until(lambda: len(collector._calls) == 8)
        gate.set()
        assert [future.result(PATIENCE) for future in futures] == list(range(8))


def test_the_oldest_calls_come_first() -> None:
    """Those who waited during a forward are served in the order in which they came."""
    gate = threading.Event()
    forward = Double()

    def slow(items: list[int]) -> list[int]:
        assert gate.wait(PATIENCE)
        return forward(items)

    collector = BatchCollector(slow, max_batch=2, window=0)
    with ThreadPoolExecutor(7) as pool:
        for i in range(7):
            pool.submit(collector, i)
            until(lambda count=i + 1: len(collector._calls) == count)  # type: ignore[misc]
        gate.set()
    assert forward.batches == [[0], [1, 2], [3, 4], [5, 6]]


def test_only_items_of_equal_key_share_a_batch() -> None:
    """Sixteen items of two lengths: four full batches, each of one length."""
    forward = Double()
    collector = BatchCollector(forward, max_batch=4, window=LONG, key=len)
    words = [letter * (1 + i % 2) for i, letter in enumerate("abcdefghijklmnop")]
    assert results(together(collector, words)) == [2 * word for word in words]
    assert forward.sizes == [4] * 4
    assert all(len({len(word) for word in batch}) == 1 for batch in forward.batches)


def test_a_key_that_fails_is_its_callers_error() -> None:
    """A key that raises, or returns what has no hash, concerns nobody else."""

    def unfit(item: int) -> Any:
        return [item] if item else 1 // item

    collector = BatchCollector(Double(), window=0, key=unfit)
    with pytest.raises(ZeroDivisionError):
        collector(0)
    with pytest.raises(UsageError, match="unhashable"):
        collector(1)
    assert not collector._calls


def test_tensors_as_keys_are_never_equal() -> None:
    """A key whose == isn't a truth value stops nobody: only the same object is the same key."""
    forward = Double()
    collector = BatchCollector(forward, max_batch=2, window=0.01, key=lambda item: torch.zeros(3))
    assert results(together(collector, range(4))) == [0, 2, 4, 6] and forward.sizes == [1] * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda item: [torch.full((3,), item), torch.full((2, 2), item)],
        lambda item: {"hidden": torch.full((3,), item)},
        lambda item: None,
        lambda item: (),
        lambda item: ValueError(item),
    ],
    ids=["list of tensors", "dict", "None", "empty", "an error as a value"],
)
def test_results_are_opaque(make: Callable[[int], Any]) -> None:
    """Whatever the forward returns for an item is what the caller gets, the same object."""
    made = [make(i) for i in range(4)]
    collector: BatchCollector[int, Any] = BatchCollector(lambda items: [made[i] for i in items], 4, LONG)
    assert all(found is wanted for found, wanted in zip(results(together(collector, range(4))), made, strict=True))


@pytest.mark.parametrize("kind", [torch.tensor, tuple, iter], ids=["tensor", "tuple", "iterator"])
def test_rows_of_a_tensor_are_results(kind: Callable[[list[int]], Any]) -> None:
    """The forward may return a tensor [N, ...], or anything that gives N results in order."""
    collector: BatchCollector[int, Any] = BatchCollector(lambda items: kind([i + 1 for i in items]), 4, LONG)
    assert [int(found) for found in results(together(collector, range(4)))] == [1, 2, 3, 4]


# -- errors --------------------------------------------------------------------------------------------------------


def test_a_bad_item_fails_alone() -> None:
    """A batch that raises is tried one by one: the others get their results, the bad one's caller its error."""
    forward = Double(bad=[2])
    collector = BatchCollector(forward, max_batch=5, window=LONG)
    futures = together(collector, range(5))
    with pytest.raises(LookupError, match=r"bad: \[2\]"):
        futures[2].result()
    assert results(futures[:2] + futures[3:]) == [0, 2, 6, 8]
    assert forward.sizes == [5, 1, 1, 1, 1, 1]


def test_if_all_fail_each_caller_sees_its_own_error() -> None:
    """A broken encoder is an error of every caller, about the caller's item."""
    collector = BatchCollector(Double(bad=range(4)), max_batch=4, window=LONG)
    errors = [future.exception() for future in together(collector, range(4))]
    assert [str(error) for error in errors] == [f"bad: [{i}]" for i in range(4)]
    assert len({id(error) for error in errors}) == 4


def test_a_batch_that_is_too_large_for_the_memory_is_encoded_singly() -> None:
    """An error of the batch and of no item costs time and nothing else; the log says so once loudly."""
    sizes: list[int] = []

    def forward(items: list[int]) -> list[int]:
        sizes.append(len(items))
        if len(items) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return items

    collector = BatchCollector(forward, max_batch=3, window=LONG)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.handle = lambda record: records.append(record) or True  # type: ignore[method-assign,func-returns-value]
    log = logging.getLogger("casstore.encoders")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        assert results(together(collector, range(6))) == list(range(6))
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    assert sorted(sizes) == [1] * 6 + [3] * 2
    assert [record.levelname for record in records] == ["WARNING", "DEBUG"]
    assert "batch of 3 (OutOfMemoryError: out of memory)" in records[0].getMessage()


def test_the_memory_of_a_failed_batch_is_free_when_its_items_are_tried_alone() -> None:
    """What the forward held when it raised isn't kept by the error while the items are encoded again."""
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def forward(items: list[int]) -> list[int]:
        alive.extend(ref() is not None for ref in held[:1])
        if len(items) > 1:
            activations = torch.zeros(9)
            held.append(weakref.ref(activations))
            raise MemoryError
        return items

    gc.disable()
    try:
        assert results(together(BatchCollector(forward, 2, LONG), range(2))) == [0, 1]
    finally:
        gc.enable()
    assert alive == [False, False]


def test_an_error_that_was_handled_keeps_no_tensors() -> None:
    """When a caller is done with its error, what the forward held is freed at once, without the cycle collector."""
    held: list[weakref.ref[torch.Tensor]] = []

    def forward(items: list[int]) -> list[int]:
        activations = torch.zeros(9)
        held.append(weakref.ref(activations))
        raise ValueError

    collector = BatchCollector(forward, window=0)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):  # pytest.raises would keep it
            collector(1)
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ([], "0 results for 3 items"),
        ([1, 2], "2 results"),
        ([1, 2, 3, 4], "4 results"),
        (torch.zeros(1, 3), "1 results"),
        (None, "a NoneType"),
        (7, "a int"),
        ("abc", "a str"),
        ({1: 1, 2: 2, 3: 3}, "a dict"),
        ({1, 2, 3}, "a set"),
    ],
    ids=repr,
)
def test_another_number_of_results_is_an_error_of_all(returned: Any, told: str) -> None:
    """Which result is whose can't be known then: every caller of the batch gets an EncoderError; nothing is retried."""
    calls: list[int] = []

    def forward(items: list[int]) -> Any:
        calls.append(len(items))
        return returned

    collector: BatchCollector[int, Any] = BatchCollector(forward, max_batch=3, window=LONG)
    errors = [future.exception() for future in together(collector, range(3))]
    assert [type(error) for error in errors] == [EncoderError] * 3 and len({id(error) for error in errors}) == 3
    assert told in str(errors[0]) and "forward" in str(errors[0])
    assert calls == [3]


def test_it_can_be_used_after_any_error() -> None:
    """Errors of items, of counts, and calls of itself leave nothing behind."""
    answers: list[Callable[[list[int]], Any]] = [
        lambda items: 1 // 0,
        lambda items: [],
        lambda items: [collector(items[0])],
    ]
    collector: BatchCollector[int, Any] = BatchCollector(lambda items: answers.pop()(items), window=0)
    for kind in (UsageError, EncoderError, ZeroDivisionError):
        with pytest.raises(kind):
            collector(1)
    answers.append(lambda items: items)
    assert collector(5) == 5 and not collector._calls and collector._leader is None


def test_a_call_by_its_own_forward_is_refused() -> None:
    """It would wait for itself: a UsageError that says so, in a batch and when its items are tried alone."""

    def forward(items: list[int]) -> list[int]:
        return [collector(item) for item in items]

    collector = BatchCollector(forward, max_batch=2, window=LONG)
    for future in together(collector, range(2)):
        with pytest.raises(UsageError, match="its own forward"):
            future.result()


def test_one_collector_may_call_another() -> None:
    """A forward that uses a second collector waits for that one only."""
    inner: BatchCollector[int, int] = BatchCollector(Double(), window=0)
    outer: BatchCollector[int, int] = BatchCollector(
        lambda items: [inner(item) for item in items], max_batch=3, window=LONG
    )
    assert results(together(outer, range(3))) == [0, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"forward": 3}, "forward is of type int"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"max_batch": 2.5}, "max_batch is 2.5"),
        ({"window": -1}, "window is -1"),
        ({"window": float("nan")}, "window is nan"),
        ({"window": float("inf")}, "window is inf"),
        ({"window": "x"}, "window is 'x'"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], told: str) -> None:
    """At once, and with the value that was given."""
    with pytest.raises(UsageError, match=told):
        BatchCollector(**{"forward": Double(), **arguments})


# -- stops and interrupts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("single", [False, True], ids=["batch", "retry"])
def test_a_stop_reaches_its_batch_and_nobody_else(kind: type[BaseException], single: bool) -> None:
    """What isn't an Exception is raised in all threads of the batch, isn't retried, and the next batch runs."""
    batches: list[list[int]] = []

    def forward(items: list[int]) -> list[int]:
        batches.append(items)
        if single and len(batches) == 1:
            raise ValueError("a batch to be tried one by one")
        if len(batches) == 1 + single:
            raise kind("stop")
        return items

    collector = BatchCollector(forward, max_batch=3, window=LONG)
    futures = together(collector, range(6))
    stopped = [i for i, future in enumerate(futures) if isinstance(future.exception(), kind)]
    assert sorted(batches[0]) == stopped
    assert [future.result() for i, future in enumerate(futures) if i not in stopped] == sorted(batches[-1])
    assert [len(batch) for batch in batches] == ([3, 1, 3] if single else [3, 3])


def test_ctrl_c_in_a_leader_that_gathers_makes_another_one_lead() -> None:
    """The interrupted thread gets its KeyboardInterrupt at once; who waited for it leads the next batch."""
    forward = Double()
    collector = BatchCollector(forward, max_batch=3, window=LONG)
    main = threading.main_thread().ident
    assert main is not None
    with ThreadPoolExecutor(4) as pool:

        def interrupt() -> Future[int]:
            until(lambda: collector._leader is not None)
            follower = pool.submit(collector, 1)
            until(lambda: len(collector._calls) == 2)
            signal.pthread_kill(main, signal.SIGINT)
            return follower

        helper = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            collector(0)
        follower = helper.result(PATIENCE)
        others = [pool.submit(collector, i) for i in (2, 3)]
        assert [future.result(PATIENCE) for future in (follower, *others)] == [2, 4, 6]
    assert [sorted(batch) for batch in forward.batches] == [[1, 2, 3]]


def test_ctrl_c_in_a_thread_that_waits_leaves_the_others_alone() -> None:
    """Its item is dropped, or encoded for nobody; the leader and its batch go on."""
    began, gate = threading.Event(), threading.Event()

    def forward(items: list[int]) -> list[int]:
        began.set()
        assert gate.wait(PATIENCE)
        return items

    collector = BatchCollector(forward, max_batch=4, window=0)
    main = threading.main_thread().ident
    assert main is not None
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(collector, 0)
        assert began.wait(PATIENCE)

        def interrupt() -> None:
            until(lambda: len(collector._calls) == 2)
            signal.pthread_kill(main, signal.SIGINT)

        helper = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            collector(1)
        helper.result(PATIENCE)
        assert [call.item for call in collector._calls] == [0]
        gate.set()
        assert leader.result(PATIENCE) == 0


def test_a_leader_that_could_not_even_leave_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while the leadership is handed on strands nobody: the next to look takes it over."""
    monkeypatch.setattr("casstore.encoders.collector._POLL", 0.05)
    collector = BatchCollector(Double(), max_batch=2, window=LONG)
    leave = collector._leave
    with ThreadPoolExecutor(2) as pool:
        stopped: list[int] = []

        def interrupted() -> None:
            stopped.append(1)
            raise KeyboardInterrupt

        def forward(items: list[int]) -> list[int]:
            until(lambda: len(collector._calls) == 3)
            collector._leave = interrupted  # type: ignore[method-assign]
            raise KeyboardInterrupt

        collector.forward = forward
        pairs = [pool.submit(collector, i) for i in range(2)]
        third = ThreadPoolExecutor(1)
        waiting = third.submit(collector, 2)
        assert all(isinstance(future.exception(PATIENCE), KeyboardInterrupt) for future in pairs)
        assert stopped and collector._leader is not None
        collector._leave, collector.forward = leave, Double()  # type: ignore[method-assign]
        assert pool.submit(collector, 3).result(PATIENCE) == 6
        assert waiting.result(PATIENCE) == 4
        third.shutdown()
    assert not collector._calls and collector._leader is None


def test_a_thread_that_could_not_even_leave_may_call_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It isn't taken for a forward that calls its own collector."""
    collector = BatchCollector(Double(bad=[1]), window=0)
    with monkeypatch.context() as patch:
        patch.setattr(collector, "_leave", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            collector(1)
    assert collector._leader is not None
    assert collector(2) == 4 and not collector._calls


class Struck(BaseException):
    """Thrown into threads from outside."""


def test_exceptions_at_any_moment_strand_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are struck at random by asynchronous exceptions, as Ctrl-C is one; afterwards all works as before."""
    monkeypatch.setattr("casstore.encoders.collector._POLL", 0.05)
    wrong: list[object] = []
    inside: list[object] = [None]

    def forward(items: list[int]) -> list[int]:
        mine = inside[0] = object()  # no lock, which a strike could leave locked
        os.sched_yield()
        if inside[0] is not mine:
            wrong.append("two forwards at once")
        return [2 * item for item in items]

    collector = BatchCollector(forward, max_batch=4, window=0.0005)
    stop: list[int] = []

    def work(number: int) -> None:
        i = 0
        while not stop:
            try:
                i += 1
                found = collector(1000 * number + i)
                if found != 2 * (1000 * number + i):
                    wrong.append(found)
            except Struck:
                continue

    def shielded(number: int) -> None:
        while not stop:
            try:
                work(number)
            except Struck:  # hit outside of the try above
                continue

    threads = [threading.Thread(target=shielded, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    draw = random.Random(8)
    strike = ctypes.pythonapi.PyThreadState_SetAsyncExc
    for _ in range(800):
        target = draw.choice(threads).ident
        assert target is not None
        strike(ctypes.c_ulong(target), ctypes.py_object(Struck))
        for _ in range(draw.randrange(50)):
            os.sched_yield()
    stop.append(1)
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    collector.forward = Double()
    assert results(together(collector, range(16))) == [2 * i for i in range(16)]
    assert not collector._calls and collector._leader is None


# -- forks ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("locked", [False, True], ids=["busy", "locked"])
def test_a_forked_child_can_use_it(locked: bool) -> None:
    """Forked while another thread leads, or just holds the lock, the child starts anew; the parent goes on."""
    began, gate = threading.Event(), threading.Event()
    parent = os.getpid()

    def forward(items: list[int]) -> list[int]:
        if os.getpid() == parent:
            began.set()
            assert gate.wait(PATIENCE)
        return [2 * item for item in items]

    collector = BatchCollector(forward, max_batch=2, window=0)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(collector, i) for i in range(2)]
        assert began.wait(PATIENCE)
        until(lambda: len(collector._calls) == 2)
        if locked:
            collector._lock.acquire()
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(PATIENCE)
                os._exit(0 if collector(21) == 42 and not collector._calls else 1)
            finally:
                os._exit(2)
        if locked:
            collector._lock.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        gate.set()
        assert [future.result(PATIENCE) for future in futures] == [0, 2]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_child_forked_inside_of_a_forward_ends_it_by_itself() -> None:
    """The thread that forks is still in its forward in the child, and gets its result in both."""
    children: list[int] = []

    def forward(items: list[int]) -> list[int]:
        if not children:
            children.append(os.fork())
        return items

    collector = BatchCollector(forward, window=0)
    found = collector(7)
    if children == [0]:
        try:
            signal.alarm(PATIENCE)
            os._exit(0 if found == 7 and collector(8) == 8 else 1)
        finally:
            os._exit(2)
    assert found == 7 and collector(8) == 8
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


# -- stress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_many_threads_many_failures(seed: int) -> None:
    """Twenty threads, two thousand items, keys, bad items and bad batches: each caller gets what is its own."""
    draw = random.Random(seed)
    bad = set(draw.sample(range(2000), 150))
    forward = Double(bad)
    busy = threading.Lock()

    def moody(items: list[int]) -> list[int]:
        assert busy.acquire(blocking=False)
        try:
            assert 1 <= len(items) <= 6 and len({item % 3 for item in items}) == 1
            if len(items) > 1 and draw.random() < 0.1:
                raise MemoryError
            return forward(items)
        finally:
            busy.release()

    collector = BatchCollector(moody, max_batch=6, window=0.0005, key=lambda item: item % 3)

    def answer(item: int) -> str | int:
        try:
            return collector(item)
        except LookupError as error:
            return str(error)

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(answer, range(2000), timeout=4 * PATIENCE))
    assert found == [f"bad: [{i}]" if i in bad else 2 * i for i in range(2000)]
    assert max(forward.sizes) > 1
    assert not collector._calls and collector._leader is None


# -- with a text encoder -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trim", [False, True], ids=["whole", "trimmed"])
def test_batches_of_prompts_equal_single_prompts(trim: bool) -> None:
    """A causal encoder called by eight threads gives on all real tokens what it gives one prompt after the other."""
    given = prompts(8)
    alone = [causal().last(*stacked([one]))[0] for one in given]

    def forward(batch: list[Prompt]) -> torch.Tensor:
        tokens, mask = stacked(batch)
        return trim_padding(causal().last, tokens, mask) if trim else causal().last(tokens, mask)

    before = len(causal().shapes)
    collector: BatchCollector[Prompt, torch.Tensor] = BatchCollector(forward, max_batch=4, window=LONG)
    found = results(together(collector, given))
    for prompt_, hidden, wanted in zip(given, found, alone, strict=True):
        assert hidden.shape == wanted.shape
        kept = prompt_.real if trim else LENGTH
        torch.testing.assert_close(hidden[:kept], wanted[:kept], **CLOSE)
        assert not hidden[kept:].any()
    assert [shape[0] for shape in causal().shapes[before:]] == [4, 4]


def test_batches_of_all_layers_cut_at_the_front_equal_single_ones() -> None:
    """An encoder whose result is a list of tensors, one for each layer, without the first tokens of a template."""
    given = prompts(8)

    def forward(batch: list[Prompt]) -> list[list[torch.Tensor]]:
        states = causal()(*stacked(batch))
        return [[state[i, 2:] for state in states] for i in range(len(batch))]

    collector = BatchCollector(forward, max_batch=4, window=LONG)
    for found, one in zip(results(together(collector, given)), given, strict=True):
        assert isinstance(found, list)
        for state, wanted in zip(found, forward([one])[0], strict=True):
            torch.testing.assert_close(state, wanted, **CLOSE)


def test_prompts_of_unequal_length_are_batched_by_length() -> None:
    """With the number of tokens as key nothing that can't be stacked meets; a prompt that is bad fails alone."""
    given = [prompt(3, length=4 + i % 2, seed=i) for i in range(8)]

    def forward(batch: list[Prompt]) -> list[torch.Tensor]:
        if any(one is given[5] for one in batch):
            raise ValueError("this prompt is bad")
        return [*causal().last(*stacked(batch))]

    collector = BatchCollector(forward, max_batch=4, window=LONG, key=lambda one: len(one.tokens))
    futures = together(collector, given)
    with pytest.raises(ValueError, match="this prompt is bad"):
        futures.pop(5).result()
    assert [len(hidden) for hidden in results(futures)] == [4, 5, 4, 5, 4, 4, 5]


def test_the_example_of_the_documents_runs() -> None:
    """The Python of docs/encoders.md is a program that works."""
    text = (ROOT / "docs" / "encoders.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(text.split("```python\n")[1].split("```")[0], "docs/encoders.md", "exec"), names)
    assert [hidden.shape for hidden in names["hidden"]] == [(names["LENGTH"], 16)] * len(names["prompts"])
