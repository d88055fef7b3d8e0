"""Planted bugs: each a small edit of the product that breaks one promise, and a test that must turn red by it.

Kept as text to be found and text to put there, so that an edit that no longer fits says so at once. `make planted`
plants them one by one in a copy of the tree; `docs/planted-bugs.md` has what came of it."""

from __future__ import annotations

from dataclasses import dataclass

LOG = "tests/crash/test_crash_log.py"
SEGMENTS = "tests/crash/test_crash_segments.py"
QUEUES = "tests/crash/test_crash_queues.py"
ROUTERS = "tests/crash/test_crash_routers.py"
FLOORS = "tests/crash/test_crash_floors.py"


@dataclass(frozen=True)
class Planted:
    """`test` is what pytest is given; `what` ends the sentence "the engine ..."."""

    name: str
    what: str
    file: str
    old: str
    new: str
    test: str


def _test(file: str, workload: str) -> str:
    return f"{file} -k [{workload}]"


BUGS = [
    Planted(
        "sync-removed",
        "acks fsync writes without a datasync",
        "src/topics/storage/wal/group.py",
        "            try:\n                file.writer.datasync()\n            except OSError as error:\n",
        "            try:\n                pass\n            except OSError as error:\n",
        _test(LOG, "append"),
    ),
    Planted(
        "ack-one-batch-early",
        "applies and acks a durable submission as soon as it is written",
        "src/topics/engine/writing/commit.py",
        "        if submission.durable or submission.topic_id in state.waiting:\n            return True\n",
        "        if submission.topic_id in state.waiting:\n            return True\n",
        _test(LOG, "append"),
    ),
    Planted(
        "no-directory-sync-after-rename",
        "renames a snapshot or CURRENT into place and does not sync the directory",
        "src/topics/storage/fs.py",
        "    fs.rename(temp, path)\n    fs.sync_dir(parent(path))\n",
        "    fs.rename(temp, path)\n",
        "tests/storage/test_snapshots.py",
    ),
    Planted(
        "torn-tail-not-cut",
        "appends behind a torn tail instead of cutting it off first",
        "src/topics/storage/wal/log_repair.py",
        "    if file.size() > scan.tail:\n        file.truncate(scan.tail)\n    file.fsync()\n",
        "    file.fsync()\n",
        "tests/storage/wal/test_append_and_sync.py",
    ),
    Planted(
        "hot-copy-removed-early",
        "removes the hot copy before the move to cold is logged",
        "src/topics/storage/tiers/relocate.py",
        "    _put_verified(segment, store, data, idx)\n    died = segment.flips.freeze()\n",
        "    delete_hot(segment)\n    _put_verified(segment, store, data, idx)\n    died = segment.flips.freeze()\n",
        "tests/storage/segments/test_tiers.py",
    ),
    Planted(
        "ceiling-not-written",
        "hands out seqs of a disk topic without logging that they are taken",
        "src/topics/engine/writing/writes.py",
        "            mark = ctx.ceilings.raise_over(topic, last_seq, reservation.ts)\n        if config",
        "            topic.ceiling = last_seq + topic.block\n        if config",
        _test(LOG, "append"),
    ),
    Planted(
        "delete-without-its-bound",
        "replays a delete over records that were written after it",
        "src/topics/core/delete.py",
        "    return op.bound_head if op.before_seq is None else min(op.before_seq, op.bound_head)\n",
        "    return 1 << 62 if op.before_seq is None else op.before_seq\n",
        _test(SEGMENTS, "delete"),
    ),
    Planted(
        "mark-before-segment-sync",
        "logs a checkpoint mark although the segment's bytes are not synced",
        "src/topics/storage/checkpoint/absorb.py",
        "        self._side_by_side(writer.sync_data for writer in self._open)\n",
        "",
        _test(SEGMENTS, "prune"),
    ),
    Planted(
        "stale-current-trusted",
        "takes CURRENT for the newest file although a newer one is there",
        "src/topics/storage/wal/file_scan.py",
        "        for number, name in self.listing.names.items():\n            path = ",
        "        for number, name in self.listing.names.items():\n"
        "            if self.listing.current is not None and number > self.listing.current:\n"
        "                continue\n            path = ",
        "tests/storage/wal/test_rotation.py -k current_is_a_cross_check",
    ),
    Planted(
        "batch-split-by-a-crash",
        "keeps the first records of a write whose last frame is missing",
        "src/topics/formats/wal/scan.py",
        "    lasts = np.flatnonzero((columns.flags & MORE) == 0)\n    return int(lasts[-1]) + 1 if len(lasts) else 0\n",
        "    return len(columns.flags)\n",
        _test(LOG, "batch"),
    ),
    Planted(
        "failed-sync-tried-again",
        "acks by a later sync what an earlier one failed to write",
        "src/topics/storage/wal/group.py",
        "            if self._sync_broken:\n                return OSError(errno.EIO,",
        "            if False:\n                return OSError(errno.EIO,",
        "tests/storage/wal/test_append_and_sync.py -k failed_sync_is_final",
    ),
    Planted(
        "log-removed-behind-one-snapshot",
        "removes log files that the older snapshot still needs",
        "src/topics/storage/wal/file_removal.py",
        "    reached = min(positions[key] for positions in snapshots)\n",
        "    reached = max(positions[key] for positions in snapshots)\n",
        "tests/storage/wal/test_removal.py",
    ),
    Planted(
        "flags-of-frames-not-believed",
        "counts a record as live whose frame is flagged deleted, after a power cut lost the rest of the delete",
        "src/topics/storage/segments/open_segment.py",
        "        pair = found_flags(segment.place, segment.first_seq, pair, again=condition.checked)\n",
        "",
        _test(QUEUES, "leases-forgotten"),
    ),
    Planted(
        "job-twice-in-line",
        "hands out a job twice whose lease ran out after a restart",
        "src/topics/core/queue/lines.py",
        "        while line and line[0] == first:"
        "  # released, leased and over again: one job still\n            heappop(line)\n",
        "",
        _test(QUEUES, "leases-kept"),
    ),
    Planted(
        "copies-without-their-bytes",
        "makes lost copies again below its head and forgets their bytes",
        "src/topics/core/append.py",
        "    if op.file == RESIDENT and op.frames is not None and stop > at:\n",
        "    if False:\n",
        "tests/core/test_appends.py -k lies_in_no_file",
    ),
    Planted(
        "claim-answered-before-its-sync",
        "answers a claim of a queue that keeps leases before the lease is synced",
        "src/topics/engine/queues/queues.py",
        "                durable=must,\n                client_frames=len(events),",
        "                durable=False,\n                client_frames=len(events),",
        "tests/engine/queues/test_queue_crash_points.py -k claims_acks_nacks",
    ),
    Planted(
        "lease-ids-from-memory",
        "counts lease ids from what it remembers after a restart, and hands them out again",
        "src/topics/core/queue/leases.py",
        "    queue.next_lease_id = max(queue.next_lease_id, queue.lease_ceiling + 1)\n",
        "",
        "tests/engine/queues/test_queue_crash_points.py -k claims_acks_nacks",
    ),
    Planted(
        "late-ack-counts",
        "takes an ack whose token is that of an earlier lease",
        "src/topics/core/queue/operations.py",
        "            or (fence is not None and fence != job.lease_id)\n",
        "",
        "tests/engine/queues/test_killed_workers.py",
    ),
    Planted(
        "lease-ends-early",
        "hands out a job a moment before its lease is over",
        "src/topics/core/queue/queue.py",
        "        self._due(job, deadline + 1)\n\n    def promise",
        "        self._due(job, deadline - 100)\n\n    def promise",
        "tests/engine/queues/test_killed_workers.py",
    ),
    Planted(
        "copied-place-not-told",
        "deletes records of a router's source without logging how far the router had come",
        "src/topics/engine/routers/evidence.py",
        "        routed = self._routed(topic)\n        if topic.id in self._state.fed and",
        "        routed = ()\n        if topic.id in self._state.fed and",
        "tests/engine/recovery/test_router_crash_points.py -k delete_the_source_meanwhile",
    ),
    Planted(
        "loss-not-passed-on",
        "does not tell a destination what its source lost before it was copied",
        "src/topics/engine/routers/step.py",
        "        count = loss.last - first + 1 if loss.hops < limits.ROUTER_HOPS_MAX else 0\n",
        "        count = 0\n",
        "tests/engine/routers/test_router_machine.py",
    ),
    Planted(
        "totals-of-another-boot",
        "believes the totals of a snapshot although the power was cut since",
        "src/topics/runtime/recovery/look.py",
        "or (self._same_boot and snapshot is not None and snapshot.boot == self._boot),",
        "or (self._same_boot and snapshot is not None),",
        "tests/engine/queues/test_queue_restarts.py -k outlived",
    ),
    Planted(
        "unsynced-bytes-not-told",
        "does not tell a sleeping group's thread of unsynced bytes",
        "src/topics/runtime/log_writers.py",
        "                if not self._looks_soon:\n                    self._cond.notify()\n",
        "                if not self._looks_soon:\n                    pass\n",
        "tests/runtime/test_group_thread.py -k sleeps_and_is_told",
    ),
    Planted(
        "holds-in-vain",
        "holds every push under pressure, although nothing ever comes meanwhile",
        "src/topics/engine/delivery/pressure.py",
        "            self._left = self._at_once\n",
        "            self._left = 0\n",
        "tests/engine/delivery/test_under_pressure.py -k gathers_nothing",
    ),
    Planted(
        "stale-header-block",
        "takes an HTTP/2 header block for what it meant before the table changed",
        "src/topics/net/h2_session.py",
        "            self._known.clear()\n            return self._decode(data, raw)\n",
        "            return self._decode(data, raw)\n",
        "tests/net/test_h2_repeats.py",
    ),
    Planted(
        "ahead-of-another-life",
        "serves what it fetched ahead of a topic that was deleted from one that has its name now",
        "src/topics/core/reading/request.py",
        "        if topic_id != self._topic_id or seq >= self.next_seq",
        "        if seq >= self.next_seq",
        "tests/core/test_read_ahead.py",
    ),
    Planted(
        "removed-log-not-noticed",
        "acks fsync writes into a log file that was deleted under it",
        "src/topics/storage/wal/group.py",
        "        if found or file is not self._active:",
        "        if found or file is not None:",
        "tests/runtime/test_removed_files.py",
    ),
    Planted(
        "directory-not-locked",
        "lets a second process in when the lock file was deleted",
        "src/topics/storage/osfs.py",
        "            _flock_directory(directory_fd, path)\n",
        "            pass\n",
        "tests/runtime/test_removed_files.py",
    ),
    Planted(
        "tail-behind-all-segments",
        "takes the tail for the last block of a topic although a crash brought back what lies below its segments",
        "src/topics/core/manifest.py",
        "groupby(blocks_from(topic, earliest), ",
        "groupby([*topic.sealed, *topic.tail.runs], ",
        _test(SEGMENTS, "drop-segments"),
    ),
    Planted(
        "reserve-for-records-too",
        "lets records use up the room that deletes need on a full disk",
        "src/topics/storage/wal/group.py",
        "        kept_free = 0 if self._reserve_open else self._reserve\n",
        "        kept_free = 0\n",
        "tests/runtime/test_full_disk.py",
    ),
    Planted(
        "floor-taken-for-logged",
        "takes the floor of a count cap for logged, so that a checkpoint writes no record and no floor",
        "src/topics/core/retention/rules.py",
        "    absorb_lost(topic)\n    removal = Removal()\n",
        "    absorb_lost(topic)\n    topic.logged_lost = topic.floors.lost\n    removal = Removal()\n",
        _test(FLOORS, "count-unseen-fsync"),
    ),
    Planted(
        "floor-shown-early",
        "shows the floor of a count cap before it is logged",
        "src/topics/engine/floor_log.py",
        "        if topic.floors.lost <= topic.logged_lost or topic.config.is_ephemeral:\n            return True\n",
        "        return True\n",
        _test(FLOORS, "count-checkpoint-disk"),
    ),
    Planted(
        "any-wall-clock-believed",
        "expires records by a wall clock that is a year ahead for a moment",
        "src/topics/clock.py",
        "        return at_ms - self._jumped_at_ms >= BELIEVE_MS\n",
        "        return True\n",
        "tests/test_clock.py",
    ),
    Planted(
        "names-in-bodies-unchecked",
        "checks a bound key against the name in the path only, so that dead letters leave its prefixes",
        "src/topics/wire/access/auth.py",
        "        for name in names_in(request):\n",
        "        for name in ():\n",
        "tests/api/test_foreign_names.py",
    ),
    Planted(
        "answers-not-cut",
        "shows a bound key the names that a config holds, whatever its prefixes",
        "src/topics/api/app.py",
        "            result, more = cut(result, self.key.permits_name)\n",
        "            _, more = cut(result, self.key.permits_name)\n",
        "tests/api/test_foreign_names.py",
    ),
    Planted(
        "any-host",
        "answers to any name without keys, also to one that was rebound to it",
        "src/topics/wire/access/auth.py",
        "        if not self.permits_host(host, is_browser=_is_browser(headers)):\n",
        "        if False:\n",
        "tests/api/test_pages.py",
    ),
    Planted(
        "sessions-not-shared",
        "lets one key hold every watch session",
        "src/topics/api/live/sessions.py",
        "mine is not None and mine.count >= self._cap_each:\n",
        "mine is not None and mine.count > self._cap:\n",
        "tests/api/live/test_shares.py",
    ),
    Planted(
        "unknown-fields-in-silence",
        "ignores a field that it does not know without a word",
        "src/topics/api/app.py",
        "        if unknown:\n            self.warnings = warnings_of(unknown)\n",
        "",
        "tests/api/test_warnings.py",
    ),
    Planted(
        "position-without-its-epoch",
        "takes a position of another life of a topic for one of this life, if it is not above the head",
        "src/topics/core/lineage.py",
        "    if epoch is None or epoch == topic.epoch:\n        return seq > topic.head\n",
        "    if True:\n        return seq > topic.head\n",
        "tests/client/test_positions.py -k recreated_longer-Embedded",
    ),
    Planted(
        "copy-without-a-fork",
        "goes on under the old epochs in a copy of a data directory",
        "src/topics/runtime/recovery/recover.py",
        "        if not self._identity.is_copy:\n            return []\n",
        "        if True:\n            return []\n",
        "tests/client/test_positions.py -k restored_from_an_older_copy-Embedded",
    ),
    Planted(
        "epochs-by-number",
        "gives topics epochs that every directory gives",
        "src/topics/core/lineage.py",
        "    state.last_epoch = max(drawn, state.last_epoch + 1)\n",
        "    state.last_epoch += 1\n",
        "tests/client/test_positions.py -k directory_replaced-Embedded",
    ),
]
