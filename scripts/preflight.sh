#!/bin/sh
# Says plainly what is missing on this machine, and how to get it. Usage: preflight.sh PYTHON
python=${1:-python3}

fail() {
    echo "CSTP cannot be installed: $1" >&2
    echo "  $2" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    fail "there is no $python." "Install Python 3.11 or newer: 'apt-get install python3 python3-venv' or 'brew install python'."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version 2>&1) is too old; 3.11 or newer is needed." \
        "Install a newer one and name it: 'make PYTHON=python3.12 run'."
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module." "On Debian and Ubuntu: 'apt-get install python3-venv'."
case $(uname -s) in
Linux | Darwin) ;;
*) fail "$(uname -s) is not supported." "Use Linux or macOS; on Windows, WSL." ;;
esac
if [ "$(uname -s)" = Darwin ]; then
    [ "$("$python" -c 'import platform; print(platform.machine())')" = arm64 ] ||
        fail "ONNX Runtime has no package for Intel Macs any more." \
            "Use a Mac with Apple silicon and a Python made for it, or Linux."
    [ "$(sw_vers -productVersion | cut -d. -f1)" -ge 14 ] ||
        fail "macOS $(sw_vers -productVersion) is too old for ONNX Runtime." "Update to macOS 14 or newer, or use Linux."
elif ldd --version 2>&1 | grep -qi musl; then
    fail "this system uses musl libc, for which the CEL engine has no package." "Use a glibc system such as Debian."
fi
