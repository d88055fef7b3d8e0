#!/usr/bin/env bash
# make-venv.sh PYTHON DIR: an empty environment with pip. Debian ships Python without the part that makes one.
set -euo pipefail
python=$1 dir=$2

if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "topics needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python3.11" >&2
    exit 1
fi
if [ -x "$dir/bin/python" ] && "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "python$version-venv" >/dev/null
    else
        echo "this Python cannot make environments: install python$version-venv" >&2
        exit 1
    fi
fi
echo "environment in $dir from $python ($("$python" -V)); make clean and PYTHON=... for another" >&2
"$python" -m venv "$dir"
