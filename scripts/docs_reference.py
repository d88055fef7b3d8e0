"""Makes the reference pages of the documentation site, as a hook of mkdocs: nothing in them is written by hand twice.

The command line describes itself, the settings are a table in the source, and the examples of HTTP calls and the
metrics are what a real server answers while the site is built.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from topics.cli import cli
from topics.config import Settings

# Method, path and body of each example, in the order in which the server is asked.
EXAMPLES: tuple[tuple[str, str, str, Any], ...] = (
    ("Create a topic with its config", "PUT", "/v0/topics/orders", {"durability": "fsync"}),
    (
        "Append",
        "POST",
        "/v0/topics/orders",
        {"records": [{"data": {"id": 1, "total": 12.5}, "tag": "customer:7"}, {"data": {"id": 2, "total": 3}}]},
    ),
    ("Read what comes after a position", "POST", "/v0/topics/orders/diff", {"from_seq": 0, "limit": 10}),
    ("Read the records of one tag", "POST", "/v0/topics/orders/diff", {"from_seq": 0, "tag": "customer:7"}),
    ("Append only if nobody was faster", "POST", "/v0/topics/orders", {"records": [{"data": {}}], "if_head": 0}),
    ("The state of a topic", "GET", "/v0/topics/orders", None),
    ("Commit a named cursor", "POST", "/v0/topics/orders/cursors/billing", {"position": 1}),
    ("All readers and their lag", "GET", "/v0/cursors", None),
    ("Create a queue", "PUT", "/v0/topics/mails", {"type": "queue", "max_deliveries": 5, "dead_letter": "mails.dead"}),
    ("Add a job", "POST", "/v0/topics/mails", {"records": [{"data": {"to": "ada@example.org"}}]}),
    ("Claim jobs", "POST", "/v0/topics/mails/claim", {"node": "worker-1", "max": 10, "lease_ms": 30000}),
    ("Ack them", "POST", "/v0/topics/mails/ack", {"node": "worker-1", "seqs": [1]}),
    ("Open a watch session", "POST", "/v0/watch", {"topics": {"orders": {"from_seq": 0}}}),
    ("Delete by tag", "POST", "/v0/topics/orders/delete", {"match": "customer:7"}),
    ("A mistake is named", "POST", "/v0/topics/orders", {"records": "none"}),
    ("Drop a topic", "DELETE", "/v0/topics/orders", None),
)

HTTP_INTRODUCTION = """\
Each answer below was given by a server while this page was built. The whole contract is the
[HTTP API](../spec/http-api.md); `GET /openapi.json` gives it to machines."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    with server() as url:
        pages = {
            "reference/cli.md": cli_page(),
            "reference/settings.md": settings_page(),
            "reference/http.md": http_page(url),
            "reference/metrics.md": metrics_page(url),
        }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


# --- from the source ------------------------------------------------------------------------------------------------


def cli_page() -> str:
    parts = ["# Command line\n\nThis is what `--help` prints; each command's help opens with examples.\n"]
    parts += [
        f"{'#' * min(depth + 1, 4)} {name}\n\n```text\n{text}\n```\n" for depth, name, text in commands(cli, None)
    ]
    return "\n".join(parts)


def commands(
    command: click.Command, above: click.Context | None, name: str = "topics"
) -> Iterator[tuple[int, str, str]]:
    context = click.Context(command, info_name=name, parent=above, max_content_width=100)
    yield context.command_path.count(" ") + 1, context.command_path, command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from commands(found, context, below)


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "The server and the embedded library read environment variables; `topics config show` prints them with their",
        "values. `topics.open(path, wal_shards=1)` takes the same names in lower case, without `TOPICS_`.",
        "",
        "| variable | default | meaning |",
        "| --- | --- | --- |",
    ]
    for name, annotation in inspect.get_annotations(Settings, eval_str=True).items():
        about = annotation.__metadata__[0]
        default = getattr(Settings(), name)
        unit = getattr(about, "unit", None)
        shown = "" if default is None else f"`{default}`" + (f" {unit}" if unit else "")
        lines.append(f"| `TOPICS_{name.upper()}` | {shown} | {about.help.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


# --- from a real server ---------------------------------------------------------------------------------------------


@contextmanager
def server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as place:
        where = Path(place) / "address"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        source = str(Path(__file__).parents[1] / "src")
        environ |= {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(where), "TOPICS_LOG": "error", "PYTHONPATH": source}
        process = subprocess.Popen([sys.executable, "-m", "topics.cli", "serve"], cwd=place, env=environ)
        try:
            while not where.exists() or not where.read_text():
                if process.poll() is not None:
                    raise RuntimeError("the server that answers the examples did not start")
                time.sleep(0.05)
            yield f"http://{where.read_text().strip()}"
        finally:
            process.terminate()
            process.wait(30)


def ask(url: str, method: str, path: str, body: Any) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def http_page(url: str) -> str:
    parts = ["# HTTP by example", HTTP_INTRODUCTION]
    for title, method, path, body in EXAMPLES:
        status, answer = ask(url, method, path, body)
        words = [f"curl -X {method} http://127.0.0.1:4000{path}"]
        if body is not None:
            words += ["-H 'content-type: application/json'", f"-d '{json.dumps(body)}'"]
        asked, shown = " \\\n  ".join(words), msgspec.json.format(answer, indent=2)
        parts.append(f"## {title}\n\n```sh\n{asked}\n```\n\n`{status}`\n\n```json\n{shown}\n```")
    described = json.loads(ask(url, "GET", "/openapi.json", None)[1])
    parts.append("## All calls\n\n| call | what it does |\n| --- | --- |")
    parts[-1] += "".join(
        f"\n| `{method.upper()} {path}` | {call.get('summary', '').replace('|', ' ')} |"
        for path, calls in described["paths"].items()
        for method, call in calls.items()
        if isinstance(call, dict)
    )
    return "\n\n".join(parts) + "\n"


def metrics_page(url: str) -> str:
    text = ask(url, "GET", "/v0/metrics", None)[1]
    kinds = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    told = (line.split(maxsplit=3)[2:] for line in text.splitlines() if line.startswith("# HELP"))
    rows = [f"| `{name}` | {kinds.get(name, '')} | {meaning.replace('|', ' ')} |" for name, meaning in told]
    return "\n".join(
        [
            "# Metrics\n",
            "What `GET /metrics` gives, in Prometheus' text format.\n",
            "| metric | type | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )
