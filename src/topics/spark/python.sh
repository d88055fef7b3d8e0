#!/bin/sh
# The interpreter of a session, without the archives that Spark puts before everything else on its path: what is in an
# archive is compiled at every start, which takes a second, and the same modules lie installed beside it.
# `topics.spark.start` names it as PYSPARK_PYTHON and sets what it reads.
set -f
IFS=:
kept=
for part in $PYTHONPATH; do
    case $part in
        "$_TOPICS_SPARK_HOME"/*) ;;
        *) kept="$kept${kept:+:}$part" ;;
    esac
done
PYTHONPATH="$kept${kept:+:}${_TOPICS_SPARK_HOME%/*}"
export PYTHONPATH
exec "$_TOPICS_SPARK_PYTHON" "$@"
