#!/bin/sh
# Merges a reported learning into the node that covers its paths. Exit code 0 is success, 1 an error, 2 that the node
# says likely the same: nothing was changed then, unless forced.
# Usage: integrate_pitfall.sh FILE [--dry-run] [--force] [--check-only] [--section NAME] [--threshold N]
#        [--reviewer NAME] [--reason TEXT]
usage() {
    sed -n '2,5s/^# //p' "$0"
}
case ${1-} in
-h | --help)
    usage
    exit 0
    ;;
'')
    usage >&2
    exit 1
    ;;
esac
exec "$(dirname -- "$(readlink -f -- "$0")")/cstp.sh" learn review --accept "$@"
