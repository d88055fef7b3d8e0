#!/usr/bin/env bash
# spark-versions.sh [SERIES...]: the behaviour of the Spark source with PySpark 4.0, 4.1, 4.2 and 4.3, each in an environment
# of its own below SPARK_VERSIONS (default: .spark-versions), which is made once for each requirements.txt. Ends with one line for each series.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${SPARK_VERSIONS:-.spark-versions}
series=("$@")
[ $# -gt 0 ] || series=(4.0 4.1 4.2 4.3)
tests=(tests/spark/test_spark_reads.py tests/spark/test_spark_plans.py tests/spark/test_spark_positions.py
  tests/spark/test_spark_writes.py tests/spark/test_kafka_habits.py tests/spark/test_query_cursor.py
  tests/spark/test_sql_doors.py)
# Older versions leave sockets to the garbage collector.
quiet=(-W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning -W ignore::DeprecationWarning)
status=0
summary=()
made=made-$(cksum <requirements.txt | cut -d' ' -f1)
for each in "${series[@]}"; do
  home=$folder/$each
  if [ ! -f "$home/$made" ]; then
    # The generated code of older versions does not load with the newest protobuf.
    case $each in 4.0 | 4.1) protobuf="protobuf<7" ;; *) protobuf="protobuf" ;; esac
    mkdir -p "$folder"
    python3 -m venv "$home" &&
      "$home/bin/python" -m pip --quiet --disable-pip-version-check install -r requirements.txt "pyspark[connect,sql]~=$each.0" \
        "$protobuf" "pandas<3" deltalake hypothesis PyYAML pytest pytest-timeout && touch "$home/$made"
  fi
  version=$("$home/bin/python" -c 'import pyspark; print(pyspark.__version__)' 2>&1 | tail -n 1)
  if PYTHONPATH=src "$home/bin/python" -m pytest -q -p no:cacheprovider "${quiet[@]}" "${tests[@]}"; then
    summary+=("PySpark $version: passed")
  else
    summary+=("PySpark $version: FAILED")
    status=1
  fi
done
printf '%s\n' "${summary[@]}"
exit $status
