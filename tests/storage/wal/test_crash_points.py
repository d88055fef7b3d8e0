"""Every call of short workloads as a crash point, as a kill and as a power cut of every pattern, and random long runs.

At each point the model knows what was acked by then. The start after the crash is compared with it, is itself cut
short and repeated for a sample of points, and must leave the same files when it is done again.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest
from tests.storage.wal.rig import FLAT, WAL, Log, Model, Sent, new_log

from topics.errors import CommitFailed
from topics.storage.wal.file_removal import remove_absorbed
from topics.storage.wal.wal_files import LogPosition
from topics.testing import POWER_PATTERNS, CrashPoints, CrashState, SimFs

Note = dict[str, list[tuple[Sent, str]]]


def lone_appends(log: Log) -> None:
    for _ in range(4):
        log.send(1)


def batches(log: Log) -> None:
    log.send(1, 3, 2)
    log.send(2, 2, durable=False)
    log.send(1, 1)


def unsynced_then_synced(log: Log) -> None:
    for count in (1, 2, 3):
        log.send(count, durable=False)
    log.sync()
    log.send(2, durable=False)


def rotation(log: Log) -> None:
    while len(log.numbers()) < 3:
        log.send(9)
        log.group.prepare_next()
    log.send(2, durable=False)


def large_submission(log: Log) -> None:
    log.send(1)
    log.send(4, size=2000)
    log.send(1)


def full_disk(log: Log) -> None:
    log.send(2)
    log.faults.short("pwrite", WAL, keep=90)
    log.faults.fail("pwrite", WAL, code=errno.ENOSPC, at=2)
    with pytest.raises(CommitFailed):
        log.send(1, 2)
    assert log.group.probe_space()
    log.send(1)


def full_disk_in_a_rotation(log: Log) -> None:
    while log.group.fits(300):
        log.send(3)
    log.faults.fail("create", "*CURRENT.tmp", code=errno.ENOSPC)
    with pytest.raises(CommitFailed):
        log.send(3)
    assert log.group.probe_space()
    log.send(1)


def failed_sync(log: Log) -> None:
    log.send(2)
    log.send(1, durable=False)
    log.faults.fail("datasync", WAL)
    with pytest.raises(CommitFailed):
        log.send(3)


def two_groups(log: Log) -> None:
    for _ in range(3):
        for key in log.groups:
            log.send(2, key=key)
            log.send(1, durable=False, key=key)


WORKLOADS: dict[str, tuple[Callable[[Log], None], int]] = {
    work.__name__: (work, shards)
    for work, shards in [
        (lone_appends, 1),
        (batches, 1),
        (unsynced_then_synced, 1),
        (rotation, 1),
        (large_submission, 1),
        (full_disk, 1),
        (full_disk_in_a_rotation, 1),
        (failed_sync, 1),
        (two_groups, 2),
    ]
}


def crash_states(work: Callable[[Log], None], shards: int, rng: Random) -> list[CrashState]:
    log = Log(SimFs(), shards=shards)
    points = CrashPoints(log.disk, note=lambda: noted(log))
    log.faults.hook = points.before
    log.start()
    work(log)
    points.end()
    log.monitor.check()
    return list(points.states(rng=rng))


def noted(log: Log) -> Note:
    return {key: [(sent, sent.state) for sent in sents] for key, sents in log.model.sent.items()}


def model_at(note: object) -> Model:
    """What was known at a crash point. A submission that was being written then may be there or not."""
    model = Model()
    for key, sents in note.items():  # type: ignore[attr-defined]
        model.sent[key] = [
            Sent(sent.sub, sent.data, sent.first_seq, sent.count, "unknown" if state == "queued" else state)
            for sent, state in sents
        ]
    return model


def after_crash(state: CrashState, shards: int) -> Log:
    log = Log(state.disk, model_at(state.note), shards=shards)
    log.killed = state.how == "kill"
    return log


def killed_before_the_boot_line(state: CrashState) -> bool:
    """A sync failed and the process was killed before it could say so: no start can know that bytes are in doubt."""
    marking = state.call is not None and state.call.kind == "truncate" and state.call.path.endswith(".topics.lock")
    return state.how == "kill" and marking


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_crash_at_any_call_keeps_what_was_acked_and_whole_submissions_only(name: str) -> None:
    work, shards = WORKLOADS[name]
    rng = Random(name)
    states = crash_states(work, shards, rng)
    assert len(states) > 100
    for i, state in enumerate(states):
        log = after_crash(state, shards).start().checked()
        if killed_before_the_boot_line(state):
            continue
        if i % 2:
            before = log.dump()
            log = log.crash("lose_all").restart().checked()  # what a start served is durable
            assert log.dump() == before, state
        for key in log.groups:
            log.send(1, key=key)
        log.crash("lose_all").restart().checked()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_crash_in_the_start_after_a_crash_breaks_no_promise_either(name: str) -> None:
    work, shards = WORKLOADS[name]
    rng = Random(name)
    for state in rng.sample(crash_states(work, shards, rng), 20):
        log = after_crash(state, shards)
        points = CrashPoints(log.disk)
        log.faults.hook = points.before
        log.start()
        points.end()
        found = {key: log.found(key) for key in log.scans}
        for second in points.states(rng=rng, patterns=("lose_all", "random")):
            again = Log(second.disk, model_at(state.note), shards=shards)
            again.killed = state.how == second.how == "kill"
            again.start().checked()
            if state.how != "kill":  # nothing was pending, so nothing could be lost on the way
                assert {key: again.found(key) for key in found} == found, (state, second)


class Run:
    """A long run of random operations, faults and crashes on one log, with snapshots as positions."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.log = new_log(file_bytes=2048)
        self.positions = [LogPosition(1, 0), LogPosition(1, 0)]

    def step(self) -> None:
        steps = [self.durable, self.durable, self.weak, self.weak, self.sync, self.prepare]
        steps += [self.rotate, self.snapshot, self.fault, self.probe, self.crash]
        self.rng.choice(steps)()

    def durable(self) -> None:
        self._try(lambda: self.log.send(*self._counts()))

    def weak(self) -> None:
        self._try(lambda: self.log.send(*self._counts(), durable=False))

    def sync(self) -> None:
        self._try(self.log.sync)

    def prepare(self) -> None:
        self.log.group.prepare_next()

    def rotate(self) -> None:
        if self.log.group.read_only is None:
            self._try(self.log.group.rotate)

    def probe(self) -> None:
        self.log.faults.clear()
        self.log.group.probe_space()

    def fault(self) -> None:
        kind = self.rng.choice(["pwrite", "datasync", "fsync", "rename", "sync_dir", "allocate", "create"])
        code = self.rng.choice([errno.ENOSPC, errno.ENOSPC, errno.EIO])
        self.log.faults.fail(kind, "data/wal*", code=code, at=self.rng.randrange(1, 4))  # type: ignore[arg-type]

    def snapshot(self) -> None:
        """Record a position as a snapshot would, and remove what both recorded ones have passed."""
        if self.log.group.read_only is not None or not self._try(self.log.sync):
            return
        self.positions = [self.log.group.position, self.positions[0]]
        remove_absorbed(
            self.log.fs, self.log.files, key=FLAT, dir="data/wal", snapshots=[{FLAT: p} for p in self.positions],
            referenced=lambda _: False, active=self.log.group.position.file,
        )  # fmt: skip
        self.log.model.sent[FLAT] = [
            s for s in self.log.model.sent.get(FLAT, []) if s.state not in ("synced", "absent")
        ]

    def crash(self) -> None:
        self.log.faults.clear()
        self.log.starts = {FLAT: self.positions[0]}
        if self.rng.random() < 0.3:
            self.log.kill()
        else:
            self.log.crash(self.rng.choice(POWER_PATTERNS), self.rng.randrange(1 << 30))
        self.log = self.log.restart().checked()
        assert self.log.scans[FLAT].end.kind != "damage"

    def _counts(self) -> list[int]:
        return [self.rng.randrange(1, 5) for _ in range(self.rng.randrange(1, 4))]

    def _try(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except CommitFailed:
            return False
        return True


@pytest.mark.parametrize("seed", range(40))
def test_random_operations_faults_and_crashes_never_break_a_promise(seed: int) -> None:  # row 143 for the log
    run = Run(seed)
    for _ in range(120):
        run.step()
    run.crash()
    run.log.crash().twice()
