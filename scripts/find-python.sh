#!/usr/bin/env bash
# find-python.sh: prints the Python to make the environment from.
# The system's own comes before others of the same version: distributions build theirs with profile-guided optimisation,
# what version managers compile at home is not unless asked, and the server is a tenth slower there (docs/decisions/0009).
for python in /usr/bin/python3.11 "$(command -v python3.11)" /usr/bin/python3 "$(command -v python3)"; do
    if "${python:-false}" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "$python"
        exit
    fi
done
command -v python3.11 || command -v python3 || true # make-venv.sh says what is missing
