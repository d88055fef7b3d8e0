"""Jobs with our client and with six job queues for Python, each with its own server on this machine.

    python bench/bench_jobs.py [--jobs 3000] [--only topics,celery] [--unsaved]

Four figures for each system: jobs enqueued per second one call at a time and with the system's own call for many; jobs
per second by 8 workers over a queue that was filled before; and, with one idle worker, the time from the call that
enqueues a job to the first line of its function. What a job does is the same for all (`jobs/marks.py`): it writes eight
bytes to a file. Workers are what each system starts by default, eight of them: the header says which.

Two settings. `default`: everything as it comes, ours with class `disk` (the kernel has the bytes when the answer comes,
synced within 50 ms) against Redis as it comes (a snapshot now and then; a crash loses minutes). `safest`: what each
system's documentation names against loss, ours with class `fsync`, Redis with `appendonly yes, appendfsync always`,
Celery with late acks. PostgreSQL syncs every commit by default, so its figures stand in both.

The systems are installed, pinned, into `build/bench-jobs`. One that cannot be had is left out with a sentence."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench_compare import free_port, our_server, running
from report import Report

HERE = Path(__file__).resolve().parent
PLACE = HERE / "jobs"
ENVIRONMENTS = HERE.parent / "build" / "bench-jobs"
PINS = {  # an environment for each module: arq and Celery want different releases of redis-py
    "celery_jobs": ("celery==5.7.0", "packaging==26.3", "redis==6.4.0", "hiredis==3.5.0"),
    "dramatiq_jobs": ("dramatiq==2.2.1", "redis==6.4.0", "hiredis==3.5.0"),
    "rq_jobs": ("rq==2.12.0", "redis==6.4.0", "hiredis==3.5.0"),
    "arq_jobs": ("arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0"),
    "huey_jobs": ("huey==3.5.4", "redis==6.4.0", "hiredis==3.5.0"),
    "procrastinate_jobs": ("procrastinate==3.10.0", "psycopg[binary]==3.3.9"),
}
WORKERS = 8
GATES = 64  # more than the eight workers of any system hold
WAKES = 200
WAKE_S = 8.0  # a system that polls gets fewer samples
PATIENCE_S = 20.0


class System(NamedTuple):
    name: str
    module: str
    server: str  # topics, redis or postgres
    kind: str  # of worker
    command: str  # {n}: how many workers
    job_share: float = 1.0  # of --jobs: fewer where a job takes long
    pause_s: float = 0.03  # at most, between wake-ups: a whole period for a worker that polls


SYSTEMS = (
    System("topics", "topics_jobs", "topics", "threads", "topics worker topics_jobs:app -c {n}"),
    System(
        "topics, processes",
        "topics_jobs",
        "topics",
        "processes",
        "topics worker topics_jobs:app -c {n} --executor processes",
    ),
    System("Celery", "celery_jobs", "redis", "processes", "celery -A celery_jobs worker -c {n} -l error"),
    System("Dramatiq", "dramatiq_jobs", "redis", "threads", "dramatiq dramatiq_jobs -p 1 -t {n}"),
    System("RQ", "rq_jobs", "redis", "processes", "rq worker-pool bench -n {n} -q --url {url}", 0.2),
    System("arq", "arq_jobs", "redis", "tasks", "arq arq_jobs.WorkerSettings", 0.2, 0.5),
    System("Huey", "huey_jobs", "redis", "threads", "huey_consumer huey_jobs.huey -w {n} -q"),
    System(
        "Procrastinate",
        "procrastinate_jobs",
        "postgres",
        "tasks",
        "procrastinate --log-level error -a procrastinate_jobs.app worker -c {n}",
    ),
)


class Outcome(NamedTuple):
    one_per_s: float
    many_per_s: float
    jobs_per_s: float
    p50_ms: float
    p99_ms: float


# --- servers ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def redis_server(room: Path, *, safe: bool) -> Iterator[str]:
    port = free_port()
    command = ["redis-server", "--port", str(port), "--dir", str(room), "--loglevel", "warning"]
    if safe:
        command += ["--appendonly", "yes", "--appendfsync", "always"]
    with running(command, port):
        yield f"redis://127.0.0.1:{port}/0"


def postgres_programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1] if found else None


@contextlib.contextmanager
def postgres_server(room: Path) -> Iterator[str]:
    """A cluster of its own. PostgreSQL refuses to run as root, so root runs it as user postgres."""
    programs = postgres_programs()
    assert programs is not None
    port, data = free_port(), room / "cluster"
    prefix: list[str] = []
    if os.getuid() == 0:
        room.parent.chmod(0o755)
        shutil.chown(room, "postgres")
        prefix = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    made = [*prefix, str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, cwd=room)
    command = [*prefix, str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(room)]
    with running(command, port):
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"


def server_for(system: System, room: Path, *, safe: bool) -> contextlib.AbstractContextManager[str]:
    if system.server == "topics":
        return our_server(room)
    return redis_server(room, safe=safe) if system.server == "redis" else postgres_server(room)


# --- one run ---------------------------------------------------------------------------------------------------------


class Run:
    """One system on its own fresh server: a sender, and workers when asked for."""

    def __init__(self, system: System, url: str, room: Path, *, safe: bool) -> None:
        self.system = system
        self._url = url
        self.room = room
        ours = system.server == "topics"
        self._programs = Path(sys.executable).parent if ours else ENVIRONMENTS / system.module / "bin"
        self._environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
        source = [str(HERE.parent / "src")] if ours else []
        self._environ["PYTHONPATH"] = os.pathsep.join([str(PLACE), *source])
        self._environ |= {"BENCH_JOBS_ROOM": str(room), "BENCH_JOBS_URL": url, "BENCH_JOBS_SAFE": "1" if safe else ""}
        self._sender = subprocess.Popen(
            [str(self._programs / "python"), str(PLACE / "sender.py"), system.module],
            env=self._environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._sender.stdout is not None
        self._sender.stdout.readline()

    def close(self) -> None:
        assert self._sender.stdin is not None
        self._sender.stdin.close()
        self._sender.wait(30)

    def ask(self, *command: object) -> Any:
        assert self._sender.stdin is not None
        assert self._sender.stdout is not None
        print(json.dumps(command), file=self._sender.stdin, flush=True)
        return json.loads(self._sender.stdout.readline())

    @contextlib.contextmanager
    def workers(self, count: int) -> Iterator[None]:
        program, *arguments = self.system.command.format(n=count, url=self._url).split()
        command = [str(self._programs / program), *arguments]
        if program == "topics":
            command[:1] = [sys.executable, "-m", "topics.cli"]
        environ = self._environ | {"BENCH_JOBS_WORKERS": str(count)}
        with (self.room / "workers.log").open("ab") as told:
            process = subprocess.Popen(command, env=environ, cwd=PLACE, stdout=told, stderr=told)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)

    def wait_for_marks(self, count: int) -> None:
        """Until so many jobs were begun since the run started."""
        marks = self.room / "marks"
        moved, seen = time.monotonic(), 0
        while (now := marks.stat().st_size // 8) < count:
            if now != seen:
                moved, seen = time.monotonic(), now
            if time.monotonic() > moved + PATIENCE_S:
                log = (self.room / "workers.log").read_text(errors="replace")[-500:]
                raise TimeoutError(f"{self.system.name}: {now} of {count} jobs were begun\n{log}")
            time.sleep(0.002)


def measured(run: Run, count: int) -> Outcome:
    run.ask("one", 20)  # connections are made, queues exist
    begun = 20
    with run.workers(WORKERS):
        run.wait_for_marks(begun)
        run.ask("many", GATES, True)
        run.wait_for_marks(begun + WORKERS)
        time.sleep(0.5)  # those that hold more than they work on have taken them
        half = count // 2
        one_per_s = half / run.ask("one", half)["seconds"]
        many_per_s = (count - half) / run.ask("many", count - half)["seconds"]
        began = time.perf_counter()
        (run.room / "gate").touch()
        begun += GATES + count
        run.wait_for_marks(begun)
        jobs_per_s = count / (time.perf_counter() - began)
    with run.workers(1):
        run.ask("one", 5)
        run.wait_for_marks(begun + 5)
        spans = sorted(run.ask("wake", WAKES, WAKE_S, run.system.pause_s)["spans"])
    p50, p99 = (spans[len(spans) * part // 100] * 1e3 for part in (50, 99))
    return Outcome(one_per_s, many_per_s, jobs_per_s, p50, p99)


def outcome_of(system: System, jobs: int, *, safe: bool) -> Outcome:
    with tempfile.TemporaryDirectory(dir=ENVIRONMENTS.parent) as home:
        room, data = Path(home), Path(home) / "server"
        data.mkdir()
        with server_for(system, data, safe=safe) as url:
            run = Run(system, url, room, safe=safe)
            try:
                return measured(run, int(jobs * system.job_share))
            finally:
                run.close()


# --- the table -------------------------------------------------------------------------------------------------------


def missing_part(system: System) -> str:
    """What this machine lacks for a system, after its packages were installed; empty if nothing."""
    if system.server == "topics":
        return ""
    if system.server == "redis" and not shutil.which("redis-server"):
        return "redis-server is not installed"
    if system.server == "postgres" and postgres_programs() is None:
        return "PostgreSQL is not installed"
    home, pins = ENVIRONMENTS / system.module, PINS[system.module]
    stamp = home / "pins"
    if stamp.exists() and stamp.read_text() == "\n".join(pins):
        return ""
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    if subprocess.run([str(home / "bin" / "python"), "-m", "pip", "install", "-q", *pins]).returncode:
        return "its packages could not be installed"
    stamp.write_text("\n".join(pins))
    return ""


def prepared(systems: list[System], report: Report) -> list[System]:
    """Those that can run here. One sentence about each that cannot."""
    ready = []
    for system in systems:
        if why := missing_part(system):
            report.line(f"{system.name} is left out: {why}.")
        else:
            ready.append(system)
    return ready


def show(report: Report, title: str, results: dict[str, Outcome]) -> None:
    if not results:
        return
    ours = next(iter(results.values()))
    report.line()
    report.line(
        f"{title:20} {'one/s':>9} {'many/s':>9} {'jobs/s':>9} {'wake p50':>9} {'p99 ms':>9}   times better than they"
    )
    for name, they in results.items():
        figures = f"{they.one_per_s:>9,.0f} {they.many_per_s:>9,.0f} {they.jobs_per_s:>9,.0f}"
        figures += f" {they.p50_ms:>9.2f} {they.p99_ms:>9.2f}"
        better = [mine / other for mine, other in zip(ours[:3], they[:3], strict=True)]
        better += [other / mine for mine, other in zip(ours[3:], they[3:], strict=True)]
        ratios = "  ".join(f"{ratio:>6.2f}" for ratio in better) if they is not ours else ""
        report.line(f"{name:20} {figures}   {ratios}")


def versions() -> str:
    told = sorted({pin for pins in PINS.values() for pin in pins})
    for program in (shutil.which("redis-server"), str((postgres_programs() or Path()) / "postgres")):
        if program and Path(program).exists():
            words = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()
            told.append(" ".join(words[:3]))
    return ", ".join(told)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=3000, help="per figure of throughput")
    parser.add_argument("--only", default="", help="names of systems, with commas")
    parser.add_argument("--unsaved", action="store_true", help="leave bench/results as it is")
    options = parser.parse_args()
    report = Report("jobs", "Jobs: our client and server against other job queues for Python")
    only = options.only.lower().split(",")
    wanted = [system for system in SYSTEMS if not options.only or system.module.removesuffix("_jobs") in only]
    systems = prepared(wanted, report)
    report.line(versions())
    report.line(f"{WORKERS} workers: " + ", ".join(f"{system.name} {system.kind}" for system in systems))
    fewer = ", ".join(f"{int(options.jobs * s.job_share)} with {s.name}" for s in systems if s.job_share != 1)
    load = os.getloadavg()[0]
    report.line(f"{options.jobs} jobs ({fewer or 'all alike'}), at most {WAKES} wake-ups in {WAKE_S:g} s")
    report.line(f"load before the run {load:.1f}: the machine was {'busy' if load > 0.7 else 'quiet'}")
    results: dict[bool, dict[str, Outcome]] = {False: {}, True: {}}
    for system in systems:
        for safe in (False, True):
            try:
                same = system.server == "postgres" and safe
                done = results[False][system.name] if same else outcome_of(system, options.jobs, safe=safe)
            except (OSError, KeyError, subprocess.SubprocessError, json.JSONDecodeError) as error:
                report.line(f"{system.name} is left out: {error}.")
                break
            results[safe][system.name] = done
    show(report, "default", results[False])
    show(report, "safest", results[True])
    if not options.unsaved:
        report.save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
