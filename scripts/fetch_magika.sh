#!/bin/sh
# Takes magika's network (Apache-2.0) out of its wheel: model.onnx and config.json.
#
#   scripts/fetch_magika.sh PYTHON VERSION DIRECTORY
set -eu

python=$1 version=$2 directory=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --dest "$work" "magika==$version" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    echo "Could not download magika $version, whose network the demo and the tests use." >&2
    echo "The reason stands above; often it is that the package index cannot be reached." >&2
    exit 1
fi
"$python" -m zipfile --extract "$work"/magika-*.whl "$work/wheel"
mkdir -p "$directory"
cp "$work"/wheel/magika/models/standard_v3_3/config.min.json "$directory/config.json"
# Last, and in one step: this file says that all is there.
cp "$work"/wheel/magika/models/standard_v3_3/model.onnx "$directory/model.onnx.part"
mv "$directory/model.onnx.part" "$directory/model.onnx"
