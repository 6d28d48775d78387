#!/bin/sh
# Files what was learned for review, and prints where. Exit code 0 is success, 1 an error.
# Usage: report_learning.sh --project DIR --path PATH --type pitfall|check|pattern|insight --title TEXT --detail TEXT
#        [--agent-id NAME] [--operation TEXT] [--evidence TEXT]
usage() {
    sed -n '2,4s/^# //p' "$0"
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
exec "$(dirname -- "$(readlink -f -- "$0")")/cstp.sh" learn report "$@"
