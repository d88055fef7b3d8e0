#!/usr/bin/env bash
# fuzz-codecs.sh SECONDS: builds the native codecs with AddressSanitizer, apart from the ones that run, and asks them the
# questions of tests/formats/codec_questions.py for so long. Ends with status 1 at the first bad access.
set -euo pipefail
cd "$(dirname "$0")/.."
asan=$(cc -print-file-name=libasan.so 2>/dev/null || true)
if [ ! -e "${asan:-missing}" ]; then
    echo "no C compiler with AddressSanitizer: the native codecs are not fuzzed" >&2
    exit 0
fi
TOPICS_SANITIZE=address .venv/bin/python setup.py -q build_ext --build-lib build/asan --build-temp build/asan-temp --parallel 2
# Python does not free everything at its end, and its own allocator would hide what is read behind a buffer.
LD_PRELOAD=$asan ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONMALLOC=malloc PYTHONPATH=src:. \
    .venv/bin/python -m tests.formats.fuzz build/asan/topics/formats/codec "$1"
