"""Calls of the embedded library that are disturbed: by signals, by a fork, by a loop that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import topics
from topics.embedded import Database, Topic
from topics.embedded import database as database_module
from topics.embedded.database import DatabaseClosed, DatabaseForked
from topics.engine.engine import Engine
from topics.engine.ticket import Ticket, resolved
from topics.errors import DataLoss, InvalidRequest
from topics.model.results import Record
from topics.runtime.kernel import Kernel

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with topics.open(str(tmp_path), wal_shards=1) as opened:
        opened.topic("t").append("first")
        yield opened


@contextmanager
def handling(number: int, handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def values(database: Database) -> list[Any]:
    return [record.value for record in database.topic("t").read() if isinstance(record, Record)]


def test_a_follower_is_told_of_what_was_lost_before_its_first_record(database: Database) -> None:
    topic = database.topic("small")
    topic.configure(cap_records=2)

    def overflow() -> None:
        while not database.long_polls._waiting:
            pass
        topic.append_many(range(5))

    thread = threading.Thread(target=overflow)
    thread.start()
    with pytest.raises(DataLoss) as caught:
        next(topic.follow())
    thread.join()
    assert (caught.value.gap_from, caught.value.gap_to, caught.value.reason) == (1, 3, "cap")
    assert next(topic.follow()).value == 3


def test_a_directory_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nothing: Any = None
    with pytest.raises(TypeError):
        topics.open(nothing)
    assert list(tmp_path.iterdir()) == []
    with topics.open(tmp_path / "data", wal_shards=1) as opened:
        opened.topic("t").append(1)


def test_a_reader_from_the_start_asks_for_what_is_there(tmp_path: Path) -> None:
    with topics.open(tmp_path, wal_shards=1) as opened:
        opened.topic("e", durability="ephemeral").append(1)
    with topics.open(tmp_path, wal_shards=1) as again:
        assert list(again.topic("e").read()) == []
        (gap,) = again.topic("e").read(gaps="yield")
        assert isinstance(gap, topics.Gap)
        assert (gap.gap_from, gap.reason) == (1, "restart")


# --- signals ---------------------------------------------------------------------------------------------------------


def test_an_interrupt_in_the_middle_of_a_change_comes_when_it_is_over(database: Database) -> None:
    over = []

    def change(_: Engine) -> Ticket[None]:
        signal.raise_signal(signal.SIGINT)
        over.append("all of it")
        return resolved(None)

    with pytest.raises(KeyboardInterrupt):
        database.call(change)
    assert over == ["all of it"]
    database.topic("t").append("second")
    assert values(database) == ["first", "second"]


def test_a_handler_that_uses_the_database_does_not_enter_a_change(database: Database) -> None:
    order = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        database.topic("t").append("by the handler")
        order.append("handler")

    def change(_: Engine) -> Ticket[None]:
        signal.raise_signal(signal.SIGHUP)
        order.append("change")
        return resolved(None)

    with handling(signal.SIGHUP, on_signal):
        database.call(change)
    assert order == ["change", "handler"]
    assert values(database) == ["first", "by the handler"]


@pytest.mark.parametrize(
    "wait", [lambda topic: topic.page(1, wait_ms=30_000), lambda topic: next(topic.follow(1))], ids=["page", "follow"]
)
def test_an_interrupt_that_came_to_another_thread_ends_a_wait(
    database: Database, wait: Callable[[Topic], object]
) -> None:
    def interrupt() -> None:
        while not database.long_polls._waiting:
            pass
        signal.raise_signal(signal.SIGINT)  # to the thread that calls it

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        wait(database.topic("t"))
    thread.join()
    assert not database.long_polls._waiting
    database.topic("t").append("second")
    assert values(database) == ["first", "second"]


def test_a_close_that_was_interrupted_is_finished_by_the_next(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(database._kernel, "finish_close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            database.close()
    database.close()
    with topics.open(str(tmp_path)) as again:
        assert values(again) == ["first"]


def test_an_open_that_was_interrupted_lets_go_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Kernel:
        signal.raise_signal(signal.SIGINT)
        return Kernel(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(database_module, "Kernel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            topics.open(str(tmp_path))
    with topics.open(str(tmp_path)) as again:
        assert again.topic("t").append("first").first_seq == 1


def test_a_closed_database_holds_no_file(tmp_path: Path) -> None:
    with topics.open(str(tmp_path), wal_shards=1, segment_max_events=2) as database:
        database.topic("t").append_many(range(10))
        database.checkpoint()
        assert len(values(database)) == 10
        assert held_files(tmp_path)
    assert held_files(tmp_path) == []


def test_a_closed_database_is_not_checkpointed(database: Database) -> None:
    database.close()
    with pytest.raises(DatabaseClosed):
        database.checkpoint()


def held_files(folder: Path) -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if os.path.exists(link)]
    return [name for name in names if name.startswith(str(folder))]


# --- a fork ----------------------------------------------------------------------------------------------------------


def in_a_child(step: Callable[[], str], *, until: int | None = None) -> tuple[int, int]:
    """A forked child that tells what `step` gave and lives until `until` is closed: its pid, and where it is told."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        return pid, told
    try:
        os.write(tell, step().encode())
        os.close(tell)
        if until is not None:
            os.read(until, 1)
    finally:
        os._exit(0)


def test_a_forked_child_is_refused_and_does_no_harm(database: Database) -> None:
    def use() -> str:
        try:
            database.topic("t").append("by the child")
        except DatabaseForked as error:
            database.close()
            return str(error)
        return "appended"

    pid, told = in_a_child(use)
    assert "forked child" in os.read(told, 1000).decode()
    os.waitpid(pid, 0)
    os.close(told)
    database.topic("t").append("second")
    assert values(database) == ["first", "second"]


def test_a_forked_child_does_not_keep_the_directory_locked(database: Database, tmp_path: Path) -> None:
    until, release = os.pipe()

    def stay() -> str:
        os.close(release)
        return "here"

    pid, told = in_a_child(stay, until=until)
    assert os.read(told, 1000) == b"here"
    database.close()
    with topics.open(str(tmp_path)) as again:
        assert values(again) == ["first"]
    os.close(release)
    os.waitpid(pid, 0)
    os.close(told)
    os.close(until)


# --- a loop that ends ------------------------------------------------------------------------------------------------


async def followed_and_left(database: Database) -> None:
    """Cancelled while it waits for a second record."""
    following = aiter(database.topic("t").afollow())
    assert (await anext(following)).value == "first"
    waiting = asyncio.ensure_future(anext(following))
    while not database.long_polls._waiting:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])


def test_a_follower_that_was_cancelled_waits_no_longer(database: Database) -> None:
    asyncio.run(followed_and_left(database))
    assert not database.long_polls._waiting


def test_writers_do_not_suffer_from_a_follower_whose_loop_was_closed(database: Database) -> None:
    loop = asyncio.new_event_loop()
    following = database.topic("t").afollow(1)
    waiting: asyncio.Task[Any] = loop.create_task(anext(following))  # type: ignore[arg-type]
    while not database.long_polls._waiting:
        loop.run_until_complete(asyncio.sleep(0))
    loop.call_soon(waiting.cancel)
    loop.close()
    database.topic("t").append("second")
    assert values(database) == ["first", "second"]
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


# --- wrong values ----------------------------------------------------------------------------------------------------


def test_a_wrong_value_does_not_get_into_the_log(database: Database, tmp_path: Path) -> None:
    wrong: Any = 1
    with pytest.raises(InvalidRequest):
        database.router("r").put("t", "copies", preserve_node=wrong)
    with pytest.raises(InvalidRequest):
        database.topic("t").delete(before_seq=1.5)  # type: ignore[arg-type]
    database.topic("t").append("second")
    database.close()
    with topics.open(str(tmp_path)) as again:
        assert values(again) == ["first", "second"]
