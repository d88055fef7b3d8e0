#!/usr/bin/env bash
# spark-cluster.sh FOLDER [WORKERS]: a standalone Spark cluster on this machine, a master and WORKERS (2) workers, until it is
# told to stop (Ctrl-C or TERM). All of it listens on loopback. In FOLDER: `url`, the master's address, once all workers are
# up; `pids`, a process id for the master and each worker; logs and the workers' folders.
#
#   deploy/spark-cluster.sh /tmp/cluster 3 &
#   topics stats --url http://localhost:4000 --master "$(cat /tmp/cluster/url)"
#
# On several machines start Spark's own sbin/start-master.sh and sbin/start-worker.sh; docs/spark.md says what executors need.
# CORES (1) and MEMORY (600m) are of one worker; PYTHON is the interpreter that has PySpark.
set -euo pipefail
folder=$1
workers=${2:-2}
python=${PYTHON:-python3}
home=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
mkdir -p "$folder"
rm -f "$folder/url" "$folder/pids"
export SPARK_HOME=$home SPARK_LOCAL_IP=127.0.0.1 SPARK_MASTER_HOST=127.0.0.1 SPARK_DAEMON_MEMORY=${SPARK_DAEMON_MEMORY:-256m}

pids=()
stop() {
  trap - TERM INT EXIT
  kill "${pids[@]}" 2>/dev/null || true
  wait
}
trap 'stop; exit 0' TERM INT
trap stop EXIT

begin() { # begin LOG CLASS ARGUMENTS...
  local log=$1
  shift
  "$home/bin/spark-class" "$@" >"$folder/$log.log" 2>&1 &
  pids+=($!)
  echo $! >>"$folder/pids"
}

await() { # await PATTERN LOG: until the log has it
  for _ in $(seq 600); do
    grep -qE "$1" "$folder/$2.log" 2>/dev/null && return
    kill -0 "${pids[-1]}" 2>/dev/null || break
    sleep 0.2
  done
  echo "$2 did not start; see $folder/$2.log" >&2
  exit 1
}

begin master org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 0 --webui-port 0
await "Starting Spark master at spark://" master
url=$(grep -oE "spark://[0-9.]+:[0-9]+" "$folder/master.log" | head -n 1)
# Each worker has a loopback address of its own where the system has many: Spark runs a second attempt of a slow task only on
# another host.
[ "$(uname)" = Linux ] && each=1 || each=0
for number in $(seq "$workers"); do
  host=127.0.0.$((1 + each * (number - 1)))
  export SPARK_LOCAL_IP=$host
  begin "worker-$number" org.apache.spark.deploy.worker.Worker --host "$host" -c "${CORES:-1}" -m "${MEMORY:-600m}" \
    --webui-port 0 -d "$folder/worker-$number" "$url"
done
for number in $(seq "$workers"); do
  await "Successfully registered with master" "worker-$number"
done
echo "$url" >"$folder/url.new" && mv "$folder/url.new" "$folder/url"
echo "a cluster with $workers workers is at $url; Ctrl-C ends it" >&2
wait
