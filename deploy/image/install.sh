#!/bin/sh
# Installs headrace for a variant of the image into /opt/headrace, without what no server reads: pip,
# tests, sources of native code and debug information.
#
#   deploy/image/install.sh VARIANT [EXTRAS]
set -eu

variant=$1
case $variant in
cpu) extras=server,otel ;;
*) extras=server,otel,$variant ;;
esac
extras=$extras${2:+,$2}

pip() {
    /tools/bin/python -m pip --python /opt/headrace/bin/python "$@"
}

/tools/bin/python -m build --quiet --wheel --no-isolation --outdir /wheels .
wheel=$(echo /wheels/*.whl)
python3 -m venv --without-pip /opt/headrace
pip install --no-compile "$wheel[$extras]"
if [ "$variant" = cuda ]; then
    # onnxruntime and onnxruntime-gpu own the same files: both go, and the second is laid anew.
    pip uninstall --yes onnxruntime onnxruntime-gpu
    pip install --no-compile "$wheel[cuda]" 'onnxruntime-gpu[cuda,cudnn]'
fi

cd /opt/headrace/lib/python3.*/site-packages
find . -depth -type d \( -name test -o -name tests \) -exec rm -r {} +
find . -type f -name 'conftest.*' -exec rm {} +
# The conformance suite, which needs pytest.
rm -r headrace/testing
# NVIDIA's libraries compile kernels while they run, so theirs stay.
find . -path ./nvidia -prune -o -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' \
    -o -name '*.c' -o -name '*.cc' -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' \
    -o -name '*.a' -o -name '*.cmake' \) -exec rm {} +
find . -path ./nvidia -prune -o -type f -name '*.so' -print | while read -r library; do
    if readelf --section-headers --wide "$library" | grep -q ' \.debug_info '; then
        strip --strip-debug "$library"
    fi
done
# Nobody can write into the image, so every start would compile anew what is not compiled here.
/opt/headrace/bin/python -m compileall -q .
