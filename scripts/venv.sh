#!/bin/sh
# Makes a virtual environment and installs into it; says little unless something goes wrong.
#
#   scripts/venv.sh DIRECTORY PIP-INSTALL-ARGUMENTS...
#
# PYTHON=... chooses the interpreter; otherwise the first one on PATH that is new enough.
set -eu

directory=$1
shift

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

candidates=${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}

find_python() {
    for candidate in $candidates; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "headrace needs Python 3.11 or newer, and found none among: $candidates." \
        "On Debian 12 or Ubuntu 24.04: sudo apt-get install python3 python3-venv" \
        "Elsewhere say which one to take: make PYTHON=/path/to/python3.11 ..."
}

# Debian ships Python without what venv needs; as root this is put right, else explained.
require_venv() {
    if "$1" -c 'import ensurepip, venv' 2>/dev/null; then
        return
    fi
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "$1 cannot make virtual environments: its package $package is missing." \
            "Install it and try again: sudo apt-get install $package"
    fi
    echo "installing $package" >&2
    if ! { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends "$package"; } >/tmp/venv-apt.$$ 2>&1; then
        tail -n 20 /tmp/venv-apt.$$ >&2
        rm -f /tmp/venv-apt.$$
        fail "apt-get could not install $package, which $1 needs to make virtual environments."
    fi
    rm -f /tmp/venv-apt.$$
}

if ! "$directory/bin/python" -c 'import pip' 2>/dev/null; then
    python=$(find_python)
    require_venv "$python"
    "$python" -m venv --clear "$directory" ||
        fail "could not make the virtual environment $directory; the reason stands above."
fi

# What pip does goes into the log. Of it, the reader sees where pip is: it takes minutes.
progress() {
    count=0 shown=
    [ -t 2 ] && shown=yes
    while read -r word rest; do
        echo "$word $rest" >>"$log"
        case $word in
        Collecting)
            count=$((count + 1))
            if [ "$shown" ]; then
                printf '\r\033[K  %d: %s' "$count" "${rest%% *}" >&2
            elif [ $((count % 20)) = 0 ]; then
                echo "  looked up and downloaded $count packages" >&2
            fi
            ;;
        Installing)
            case $rest in collected*) ;; *) continue ;; esac
            [ "$shown" ] && printf '\r\033[K' >&2
            echo "  unpacking, which takes about as long again" >&2
            ;;
        esac
    done
    [ -z "$shown" ] || printf '\r\033[K' >&2
}

echo "installing into $directory" >&2
log=$directory/install.log
: >"$log"
if ! { "$directory/bin/python" -m pip install --progress-bar off --disable-pip-version-check "$@" \
    2>&1 && echo succeeded; } | { progress && [ "$(tail -n 1 "$log")" = "succeeded " ]; }; then
    tail -n 20 "$log" >&2
    fail "" "Could not install: $*" \
        "The reason stands above; often it is that the package index cannot be reached." \
        "The whole log is in $log."
fi
echo "  $directory takes $(du -sm "$directory" | cut -f 1) MB on disk" >&2
