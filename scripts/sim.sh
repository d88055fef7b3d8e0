#!/usr/bin/env bash
# sim.sh SECONDS [pytest arguments]: the simulations of tests/sim, clients of a server that is killed every second, and
# workers that are killed all the time, each for about that long; then long runs of the queue and router models.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift
SIM_SECONDS=$seconds exec .venv/bin/python -m pytest tests/sim tests/client/test_restarts.py tests/queues/test_killed_workers.py tests/queues/test_queue_machine.py tests/routers/test_router_machine.py --timeout=$((seconds * 2 + 300)) -s "$@"
