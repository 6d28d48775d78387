#!/usr/bin/env bash
# Puts the command on the PATH of the steps that follow, with the extras that are named, unless the runner has one.
# Usage: install.sh [EXTRA[,EXTRA]]
set -euo pipefail

own=$RUNNER_TEMP/cstp/bin
if found=$(command -v cstp) && [ "$found" != "$own/cstp" ]; then exit 0; fi
repository=$(cd "$(dirname "$0")/.." && pwd)
# Another action of the job may have made it, with other extras.
[ -x "$own/pip" ] || python3 -m venv "$RUNNER_TEMP/cstp"
"$own/pip" install --quiet --constraint "$repository/constraints.txt" "$repository${1:+[$1]}"
echo "$own" >> "$GITHUB_PATH"
