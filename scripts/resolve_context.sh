#!/bin/sh
# Prints what governs a path of a project, as Markdown. Exit code 0 is success, 1 an error, 2 that nothing covers it.
# Usage: resolve_context.sh PROJECT_ROOT TARGET_PATH [--sections "A,B"] [--compact] [--with-pending] [--max-tokens N]
usage() {
    sed -n '2,3s/^# //p' "$0"
}
case ${1-} in
-h | --help)
    usage
    exit 0
    ;;
esac
if [ $# -lt 2 ]; then
    usage >&2
    exit 1
fi
project=$1
shift
exec "$(dirname -- "$(readlink -f -- "$0")")/cstp.sh" context resolve --project="$project" "$@"
