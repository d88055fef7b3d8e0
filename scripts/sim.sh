#!/usr/bin/env bash
# sim.sh SECONDS [pytest arguments]: the simulations of tests/sim, each for about that long.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
if [ ! -d tests/sim ]; then
    echo "there are no simulations yet (tests/sim does not exist)"
    exit 0
fi
SIM_SECONDS=$seconds exec .venv/bin/python -m pytest tests/sim --timeout=$((seconds * 2 + 300)) -s "$@"
