#!/bin/sh
# Runs the tests that need an NVIDIA GPU, or says that there is none.
#
#   scripts/test_cuda.sh PYTEST-ARGUMENTS...
#
# CUDA_PYTHON=... names an interpreter that has all that they need, onnxruntime-gpu among it;
# otherwise .venv-cuda is made, which takes some gigabytes.
set -eu
cd "$(dirname "$0")/.."

if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "No NVIDIA GPU on this machine (no /dev/nvidiactl): the tests of CUDA were not run."
    exit 0
fi

python=${CUDA_PYTHON:-.venv-cuda/bin/python}
if [ -z "${CUDA_PYTHON:-}" ] && [ ! pyproject.toml -ot .venv-cuda/.installed ]; then
    scripts/venv.sh .venv-cuda --editable '.[dev,cuda]'
    # Both packages own the same files: that of the processors goes, and the other is laid anew.
    .venv-cuda/bin/python -m pip uninstall --quiet --yes onnxruntime onnxruntime-gpu
    scripts/venv.sh .venv-cuda 'onnxruntime-gpu[cuda,cudnn]>=1.24,<1.33'
    touch .venv-cuda/.installed
fi
exec "$python" -m pytest tests/gpu "$@"
