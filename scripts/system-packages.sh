#!/usr/bin/env bash
# system-packages.sh [headers] [java] [chromium] [redis] [nats] [prometheus]: look for what is not Python, install it where that is
# possible, else say in one sentence what to install. Never fails: what needs something that is missing is skipped.
set -uo pipefail

found_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/java}
    local version
    version=$("${java:-java}" -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ]
}
# The environment's Python, unless there is none yet. The compiler is asked too: headers alone build nothing.
python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
found_headers() {
    command -v cc >/dev/null && "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}
found_chromium() {
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}
found_redis() { command -v redis-server >/dev/null; }
found_nats() { command -v nats-server >/dev/null; }
found_prometheus() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }
package_headers="gcc libc6-dev python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev"
package_java=openjdk-17-jre-headless
package_chromium=chromium
package_redis=redis-server
package_nats=nats-server
package_prometheus=prometheus
reason_headers="A C compiler or Python's headers are missing, so frames are encoded and checked in plain Python; install $package_headers to build the native codecs."
reason_java="Java 17 or newer is not installed, so what needs Spark is left out; install $package_java to have it."
reason_chromium="Chromium is not installed, so the browser tests are skipped; install $package_chromium to run them."
reason_redis="redis-server is not installed, so the comparison leaves Redis out; install $package_redis to see it."
reason_nats="nats-server is not installed, so the comparison leaves NATS out; install $package_nats to see it."
reason_prometheus="Prometheus is not installed, so dashboard and alert rules are not tried; install $package_prometheus to try them."

install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    apt-get update -qq >/dev/null 2>&1
    # RUNLEVEL=1: a server that comes with a package is not started.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq --no-install-recommends $1 >/dev/null 2>&1
}

for need in "$@"; do
    package=package_$need reason=reason_$need
    "found_$need" && continue
    echo "installing ${!package} ..." >&2
    install "${!package}" && "found_$need" || echo "${!reason}" >&2
done
exit 0
