#!/bin/sh
# Runs the cstp command of this repository's .venv, or else the installed one. Usage: cstp.sh ARGUMENT...
here=$(dirname -- "$(readlink -f -- "$0")")
for cstp in "$here/../.venv/bin/cstp" "$(command -v cstp)"; do
    [ -x "$cstp" ] && exec "$cstp" "$@"
done
echo "There is no cstp: run 'make run' or 'make test' in $(dirname -- "$here"), or put cstp on PATH." >&2
exit 1
