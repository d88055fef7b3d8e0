#!/usr/bin/env bash
# Starts what exists so far. There is no server yet, so this shows the version and the settings it will start with.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/topics --version
.venv/bin/topics config show --origin
