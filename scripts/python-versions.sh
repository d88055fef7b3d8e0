#!/usr/bin/env bash
# python-versions.sh [PYTHON...]: build the wheel with each Python, install it into an empty environment and run the tests of
# formats, core, engine, storage and the embedded library on it. Without arguments: every python3.11 and newer that the
# path or pyenv has. Environments lie below PYTHON_VERSIONS (default: build/pythons). Ends with one line for each Python.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${PYTHON_VERSIONS:-build/pythons}")
pythons=("$@")
if [ $# -eq 0 ]; then
  for name in python3.11 python3.12 python3.13 python3.14; do
    found=$(command -v "$name" || ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"${name#python}".*/bin/"$name" 2>/dev/null | tail -n 1)
    [ -z "$found" ] || pythons+=("$found")
  done
fi
tests=(tests/formats tests/core tests/model tests/engine tests/storage tests/embedded tests/runtime/test_recovery.py
  tests/runtime/test_old_directories.py tests/client/test_doors.py)
status=0
summary=()
for python in "${pythons[@]}"; do
  version=$("$python" -c 'import platform; print(platform.python_version())')
  home=$folder/$version
  rm -rf "$home" && mkdir -p "$home"
  "$python" -m venv "$home/env" &&
    "$home/env/bin/python" -m pip --quiet --disable-pip-version-check install --upgrade pip &&
    "$home/env/bin/python" -m pip --quiet wheel --no-deps --wheel-dir "$home" . &&
    "$home/env/bin/python" -m pip --quiet install "$home"/topicsdb-*.whl pyarrow httpx hypothesis pytest pytest-timeout pytest-xdist
  kernel=$(cd "$home" && "$home/env/bin/topics" --version)
  # The wheel is tested, not the clone: only the tests themselves come from here.
  if "$home/env/bin/python" -m pytest -q -n 2 -p no:cacheprovider -o pythonpath=. -m "not slow and not spark" \
    -W ignore::pytest.PytestUnraisableExceptionWarning "${tests[@]}"; then
    summary+=("Python $version, $kernel: passed")
  else
    summary+=("Python $version, $kernel: FAILED")
    status=1
  fi
done
printf '%s\n' "${summary[@]}"
exit $status
