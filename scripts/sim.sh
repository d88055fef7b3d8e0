#!/usr/bin/env bash
# sim.sh SECONDS [pytest arguments]: the simulations of tests/sim, and clients of a server that is killed every second,
# each for about that long.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
SIM_SECONDS=$seconds exec .venv/bin/python -m pytest tests/sim tests/client/test_restarts.py --timeout=$((seconds * 2 + 300)) -s "$@"
