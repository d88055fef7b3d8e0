"""Power cuts on real file systems: `make powercut` (root and loop devices).

A server works on an ext4 or xfs file system of its own, clients write, delete, read and work on it, and the file system
is shut down under it: with everything written back, with the journal written back, with nothing written back. The
server is killed, the file system mounted again, the server started, everything read and judged (`oracle.py`). Between
them are plain kills, after which nothing may be missing and no gap may open, and kills with a clean unmount. After
half of the shutdowns the server finds another boot id, after the other half the same one."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from tests.loopdev import FLUSH, LOG_FLUSH, MAKE, NO_LOG_FLUSH, LoopDisk, why_no_loop
from tests.powercut.client import Caller, Refused
from tests.powercut.oracle import Oracle, Shown, Violation
from tests.powercut.topics_under_load import ROUTERS, THREADS, TOPICS

BOOT_ID = "/proc/sys/kernel/random/boot_id"
CUTS_PER_DISK = 20
PATIENCE_S = 300.0
SHUTDOWNS = {"flush": FLUSH, "journal": LOG_FLUSH, "nothing": NO_LOG_FLUSH}
ENDS = ("nothing", "nothing", "journal", "journal", "flush", "kill", "unmount")
SETTINGS = {
    "TOPICS_PORT": "0",
    "TOPICS_LOG": "warning",
    "TOPICS_WAL_FILE_BYTES": "1048576",
    "TOPICS_SEGMENT_MAX_EVENTS": "60",
    "TOPICS_CHECKPOINT_INTERVAL_MS": "100",
    "TOPICS_SNAPSHOT_INTERVAL_MS": "300",
}


class Server:
    """`topics serve` on a directory; with `boot_id`, in a mount namespace where the kernel shows that one."""

    def __init__(self, folder: Path, data: Path, *, boot_id: str, **settings: str) -> None:
        self.port_file = folder / "port"
        self.port_file.unlink(missing_ok=True)
        fake = folder / "boot_id"
        fake.write_text(boot_id + "\n")
        root = Path(__file__).parents[2]
        given = {"TOPICS_DATA_DIR": str(data), "TOPICS_PORT_FILE": str(self.port_file)}
        environment = {**os.environ, **SETTINGS, **given, **settings, "PYTHONPATH": str(root / "src")}
        script = f'mount --bind "{fake}" {BOOT_ID} && exec "$0" -m topics serve'
        with (folder / "server.log").open("ab") as log:
            command = ["unshare", "--mount", "sh", "-c", script, sys.executable]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            self.port = self._wait()
        except BaseException:
            self.kill()
            raise

    def _wait(self) -> int:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise Violation(f"the server did not start: status {self.process.returncode}")
            try:
                port = int(self.port_file.read_text().rpartition(":")[2])
                with closing(Caller(port)) as call:
                    call("GET", "/v0/ready")
                return port
            except (OSError, ValueError, Refused):
                pass
            time.sleep(0.02)
        raise Violation("the server was not ready in time")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Clients:
    """The client process, and everything it says handed to the oracle."""

    def __init__(self, seed: int, oracle: Oracle) -> None:
        self.oracle = oracle
        self.cut_at = math.inf
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
        command = [sys.executable, "-m", "tests.powercut.client", str(seed)]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def begin(self, port: int) -> None:
        assert self.process.stdin is not None
        self.cut_at = math.inf
        self.process.stdin.write(b"%d\n" % port)
        self.process.stdin.flush()

    def hear_until(self, *, acks: int) -> None:
        """Listen until so many answers came."""
        while acks > 0:
            acks -= self._next()[0] == "ack"

    def hear_out(self) -> None:
        """Listen until every thread has noticed that the server is gone."""
        down = 0
        while down < THREADS + 1:
            down += self._next()[0] == "down"

    def _next(self) -> list[Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the client process ended")
        at, *event = list[Any](json.loads(line))
        if event[0] != "down":
            self.oracle.hear(event, late=at >= self.cut_at)
        return event

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


def set_up(port: int) -> None:
    with closing(Caller(port)) as call:
        for name, kind in TOPICS.items():
            call("PUT", f"/v0/topics/{name}", kind.config)
        for name, router in ROUTERS.items():
            call("PUT", f"/v0/routers/{name}", router)


def look(port: int) -> dict[str, Shown]:
    """Everything, once the routers are through with their sources."""
    until = time.monotonic() + PATIENCE_S
    while True:
        with closing(Caller(port)) as call:
            shown = {name: look_at(call, name) for name in TOPICS}
        behind = [
            name
            for name, kind in TOPICS.items()
            if kind.fed_by and not set(shown[kind.fed_by].records.values()) <= set(shown[name].records.values())
        ]
        if not behind or time.monotonic() > until:
            return shown
        time.sleep(0.05)
        until = min(until, time.monotonic() + 10)


def look_at(call: Caller, name: str) -> Shown:
    records: dict[int, str] = {}
    gaps: list[tuple[int, int, str]] = []
    cursor, through = 0, False
    while not through:
        page = call("POST", f"/v0/topics/{name}/diff", {"from_seq": cursor, "limit": 1000})
        if page["tombstone"] is not None:
            gap = page["tombstone"]
            gaps.append((gap["gap_from"], gap["gap_to"], gap["reason"]))
        records |= {record["$seq"]: record["data"] for record in page["records"]}
        cursor, through = page["next_from_seq"], page["caught_up"]
    state = call("GET", f"/v0/topics/{name}")
    return Shown(records, gaps, state["head_seq"], state["earliest_seq"], state["count"])


def end(how: str, disk: LoopDisk, server: Server, clients: Clients, rng: Random) -> None:
    if how in SHUTDOWNS:
        clients.cut_at = time.monotonic()
        disk.shutdown(SHUTDOWNS[how])
        time.sleep(rng.choice((0, 0, 0.002, 0.03)))
    server.kill()
    clients.hear_out()
    if how != "kill":
        disk.remount()


def run_disk(folder: Path, kind: str, *, cuts: int, seed: int, tally: Counter[str]) -> Oracle:
    """One file system and its life of so many cuts."""
    rng = Random(seed)
    oracle = Oracle()
    clients = Clients(seed, oracle)
    settings = {
        "TOPICS_SYNC_INTERVAL_MS": rng.choice(("50", "1000", "5000")),
        "TOPICS_WAL_SHARDS": rng.choice(("1", "2", "3")),
    }
    server: Server | None = None
    try:
        with LoopDisk(folder, kind) as disk:
            try:
                boot = "boot-0"
                server = Server(folder, disk.path / "data", boot_id=boot, **settings)
                set_up(server.port)
                for cut in range(1, cuts + 1):
                    clients.begin(server.port)
                    clients.hear_until(acks=rng.choice((1, 10, 40, 120)))
                    how = rng.choice(ENDS)
                    end(how, disk, server, clients, rng)
                    if how != "kill" and rng.random() < 0.5:
                        boot = f"boot-{cut}"
                    server = Server(folder, disk.path / "data", boot_id=boot, **settings)
                    oracle.judge(look(server.port), killed_only=how == "kill")
                    tally[f"{kind} {how}"] += 1
            finally:
                if server is not None:
                    server.kill()
    finally:
        clients.stop()
    return oracle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    kinds = [kind for kind in MAKE if not why_no_loop(kind)]
    if not kinds:
        print(f"powercut: skipped, {why_no_loop()}")
        return 0
    tally: Counter[str] = Counter()
    heard = lost = 0
    began = time.monotonic()
    for disk in range(-(-given.cuts // CUTS_PER_DISK)):
        kind, seed = kinds[disk % len(kinds)], given.seed + disk
        with tempfile.TemporaryDirectory(prefix="powercut-") as folder:
            try:
                oracle = run_disk(
                    Path(folder),
                    kind,
                    cuts=min(CUTS_PER_DISK, given.cuts - sum(tally.values())),
                    seed=seed,
                    tally=tally,
                )
            except Violation as error:
                log = (Path(folder) / "server.log").read_text(errors="replace")[-3000:]
                print(f"{log}\npowercut: VIOLATION on {kind}, --seed {seed}, cut {sum(tally.values()) + 1}: {error}")
                return 1
        heard, lost = heard + oracle.heard, lost + oracle.lost
        took = time.monotonic() - began
        print(f"powercut: {sum(tally.values())} cuts in {took:.0f} s, {heard} answers, {dict(tally)}", flush=True)
    print(f"powercut: {sum(tally.values())} cuts without a violation, {lost} seqs announced as lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
