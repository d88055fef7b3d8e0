#!/usr/bin/env bash
# sim.sh SECONDS STATES [pytest arguments]: the native codecs under AddressSanitizer; the simulations of tests/sim, clients
# of a server that is killed every second, workers that are killed all the time, alone and with their server, each for about that long; long runs of
# the queue and router models; the Spark source with every PySpark that it supports; the wheel with every Python; then crash states for that long, going
# on where the last run stopped, or as long as it takes if STATES says how many.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
states=$2
shift 2
scripts/fuzz-codecs.sh "$seconds"
SIM_SECONDS=$seconds .venv/bin/python -m pytest tests/sim tests/client/test_restarts.py tests/engine/queues/test_killed_workers.py tests/engine/queues/test_killed_servers.py tests/engine/queues/test_queue_machine.py tests/engine/routers/test_router_machine.py --timeout=$((seconds * 2 + 300)) -s "$@"
scripts/spark-versions.sh
scripts/python-versions.sh
if [ -n "$states" ]; then
  exec .venv/bin/python scripts/crash_states.py --states "$states"
fi
exec .venv/bin/python scripts/crash_states.py --seconds "$seconds"
