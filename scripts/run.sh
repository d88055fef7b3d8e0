#!/usr/bin/env bash
# The main job, end to end: the server on loopback, a shop that writes to it, the Spark pipeline over what was written,
# its gold tables, and then the server goes on until Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
home=${RUN_DIR:-$PWD/.run}
mkdir -p "$home"
rm -f "$home/address"

TOPICS_DATA_DIR=$home/data TOPICS_PORT_FILE=$home/address TOPICS_LOG=warn "$bin/topics" serve &
server=$!
children=($server)
trap 'kill "${children[@]}" 2>/dev/null || true; wait "${children[@]}" 2>/dev/null || true' EXIT
alive() { kill -0 $server 2>/dev/null || { echo "the server did not start; the line above says why (TOPICS_PORT=0 takes a free port)" >&2; exit 1; }; }
# Its own file says where it listens: whoever else sits on that port must not get the shop's events.
until [ -s "$home/address" ]; do alive; sleep 0.1; done
url=http://$(cat "$home/address")
until "$bin/python" -c "import urllib.request as u; u.urlopen('$url/readyz', timeout=1)" 2>/dev/null; do alive; sleep 0.2; done

# Runs a command with its output in a file, and says every few seconds that it still runs.
patiently() {
  local log=$1 job seconds=0; shift
  "$@" > "$log" 2>&1 & job=$!
  while kill -0 $job 2>/dev/null; do
    sleep 1; seconds=$((seconds + 1))
    if [ $((seconds % 4)) -eq 0 ]; then echo "   $seconds s; $log says what it does"; fi
  done
  wait $job || { tail -20 "$log" >&2; exit 1; }
}

echo "== a shop writes events for ${SHOP_SECONDS:-4} s"
"$bin/python" examples/shop.py "$url" --seconds "${SHOP_SECONDS:-4}"
"$bin/topics" topic ls --url "$url" --prefix shop.

echo "== its staff does the jobs, each a mail: some come again, some fail for good; a schedule adds a report every 20 s"
"$bin/topics" schedule put shop.report shop.jobs '{"type": "report", "user": "staff"}' --every 20000 --tag mail:report --url "$url"
"$bin/python" examples/shop_staff.py "$url" --seconds "${SHOP_SECONDS:-4}"
"$bin/topics" queue stats shop.jobs --url "$url"

if "$bin/python" -c 'from topics.spark.start import check_ready; check_ready()' 2>/dev/null; then
  echo "== the pipeline: bronze, silver, gold; Spark takes about a minute"
  project=$home/pipeline/spark-pipeline.yml
  if [ -f "$project" ]; then sed -i.old "s|http://[0-9.]*:[0-9]*|$url|" "$project" # an earlier run had another port
  else "$bin/topics" pipeline init "$home/pipeline" --url "$url" --topic 'shop.*'; fi
  patiently "$home/pipeline.log" "$bin/topics" pipeline run "$home/pipeline"
  "$bin/python" examples/gold.py "$home/pipeline" "$url"
else
  echo "== no pipeline: $("$bin/python" -c 'from topics.spark.start import check_ready; check_ready()' 2>&1 | tail -1)"
fi

cat <<END

The server goes on at $url until Ctrl-C, and so does the shop, more slowly; its console is $url/console
Query further:  $bin/topics read shop.orders --url $url --from -5
                $bin/python -c "import topics.spark; spark = topics.spark.session(); spark.read.format('topics').option('url', '$url').option('subscribe', 'shop.orders').load().show()"
END
if [ -n "${RUN_ONCE:-}" ]; then exit 0; fi
"$bin/python" examples/shop.py "$url" --seconds inf --pause 2 --seed 2 > "$home/shop.log" 2>&1 & children+=($!)
"$bin/python" examples/shop_staff.py "$url" --seconds inf > "$home/staff.log" 2>&1 & children+=($!)
wait $server
