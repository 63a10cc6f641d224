#!/bin/sh
# Shows what other versions of the backends change, before the range in pyproject.toml is widened.
#
#   scripts/backend_versions.sh onnxruntime==1.32.0 openvino==2026.4.1
#
# An environment of its own gets these versions. Then ONNX's cases run on the devices, the list of
# what OPENVINO claims is made anew, and real networks run. All three are written into the working
# tree: the difference that is shown at the end is for you to read, and to commit or to restore.
set -eu

[ $# -gt 0 ] || { echo "name at least one version, as onnxruntime==1.32.0" >&2; exit 2; }
python=.venv-backends/bin/python
devices='--device CPU --device OPENVINO --device TEMPLATE'
written='tests/conformance/backend_cases docs/results/conformance.md docs/results/zoo.md
    plugins/headrace/plugins/openvino/claims'

scripts/venv.sh .venv-backends --editable '.[dev]'
# The range in pyproject.toml may not have them yet.
$python -m pip install --quiet --disable-pip-version-check --no-deps "$@"

failed=
echo "ONNX's cases"
$python -m headrace.testing.backend_cases $devices \
    --expectations tests/conformance/backend_cases --update --table docs/results/conformance.md || failed=yes
echo "what OPENVINO claims"
$python -m tools.claims --report .cache/claims.txt || failed=yes
echo "real networks"
$python -m tools.claims.zoo || failed=yes
$python -m tools.zoo --results .cache/backend-versions-zoo.json --table docs/results/zoo.md || failed=yes
# shellcheck disable=SC2086 # a list of paths
git --no-pager diff $written
# shellcheck disable=SC2086
git --no-pager diff --stat $written
[ -z "$failed" ]
