#!/bin/sh
# Builds all that a release consists of, into dist/, and tries the upload on an index of its own, which
# listens on 127.0.0.1. Uploads nothing anywhere else.
#
#   scripts/release.sh PYTHON TOOLS
#
# PYTHON is one with the server installed, TOOLS an environment with build, twine and pypiserver.
# REHEARSAL=yes also takes a version that cannot be released yet.
set -eu
cd "$(dirname "$0")/.."

python=$1 tools=$2
[ "${REHEARSAL:-no}" = yes ] && rehearsal=--rehearsal || rehearsal=
version=$("$python" scripts/check_release.py $rehearsal)
work=$(mktemp -d)
index=
trap 'if [ -n "$index" ]; then kill "$index"; fi; rm -rf "$work"' EXIT

step() {
    printf '== %s\n' "$1"
}

quietly() {
    "$@" >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        exit 1
    }
}

step "sdist and wheel of $version"
# The same commit gives the same bytes.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf dist/pypi
# The wheel is built from the sdist.
quietly "$tools/bin/python" -m build --outdir dist/pypi .
"$python" .ci/check_wheel.py dist/pypi/*.whl
"$tools/bin/twine" check --strict dist/pypi/*

step "manual"
quietly make docs
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
    --exclude=.doctrees --exclude=.buildinfo --transform "s,^\.,headrace-$version-manual," \
    -C .cache/docs -cf - . | gzip -n >"dist/headrace-$version-manual.tar.gz"

step "image"
engine=
for each in docker podman buildah; do
    if "$each" info >/dev/null 2>&1; then
        engine=$each
        break
    fi
done
if [ -n "$engine" ]; then
    make image
else
    echo "left out: no engine that builds images works here (docker, podman, buildah)"
fi

step "upload to an index on 127.0.0.1, and install from it"
mkdir "$work/index"
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
"$tools/bin/pypi-server" run --interface 127.0.0.1 --port "$port" --disable-fallback \
    --authenticate . --passwords . "$work/index" >"$work/index.log" 2>&1 &
index=$!
for _ in $(seq 120); do
    "$python" -c "import urllib.request as r; r.urlopen('$url/health', timeout=5)" 2>/dev/null && break
    sleep 0.5
done
quietly env no_proxy=127.0.0.1 "$tools/bin/twine" upload --non-interactive --disable-progress-bar \
    --repository-url "$url/" --username nobody --password nothing dist/pypi/*
# From the index alone first, so that no other index can give its own; what it needs comes from elsewhere.
scripts/venv.sh "$work/fresh" --no-deps --index-url "$url/simple/" "headrace==$version"
scripts/venv.sh "$work/fresh" "headrace[cli]==$version"
quietly "$work/fresh/bin/pip" check
said=$(cd "$work" && "$work/fresh/bin/headrace" --version)
[ "$said" = "headrace $version" ] || {
    echo "the program that was installed says: $said" >&2
    exit 1
}
echo "$said"

step "what there is"
(cd dist && sha256sum pypi/* "headrace-$version-manual.tar.gz" | tee "headrace-$version.sha256")
if [ -n "$rehearsal" ]; then
    echo "A rehearsal. CONTRIBUTING.md says how to release."
else
    echo "Next: git tag v$version, and $tools/bin/twine upload dist/pypi/*"
fi
