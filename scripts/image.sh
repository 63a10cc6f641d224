#!/bin/sh
# Builds the container image of a variant, and puts its bill of materials and licences into dist/.
#
#   scripts/image.sh VARIANT
#
# ENGINE=docker, podman or buildah chooses what builds, otherwise the first that works. BASE=... names
# the image to start from. Without it that is Debian's, from a registry, or if none can be reached
# from Debian's packages.
set -eu
cd "$(dirname "$0")/.."

variant=${1:-cpu}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
image=headrace:$version
[ "$variant" = cpu ] || image=$image-$variant
made=localhost/headrace-base:bookworm

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

find_engine() {
    for each in ${ENGINE:-docker podman buildah}; do
        if "$each" info >/dev/null 2>&1; then
            echo "$each"
            return
        fi
    done
    fail "No engine that builds images works here: tried ${ENGINE:-docker, podman and buildah}." \
        "On Debian or Ubuntu: sudo apt-get install podman mmdebstrap" \
        "Run the target as root, or allow your user to use the engine."
}

# Makes an image of a root file system, a tar file. Buildah has no command for that.
import() {
    if [ "$engine" != buildah ]; then
        "$engine" import "$1" "$made"
        return
    fi
    container=$(buildah from scratch)
    tar -xpf "$1" -C "$(buildah mount "$container")"
    buildah umount "$container"
    buildah commit --rm "$container" "$made"
}

# Leaves out the files that Debian's slim images leave out.
make_base() {
    command -v mmdebstrap >/dev/null ||
        fail "No registry can be reached, and mmdebstrap, which makes a base without one, is missing." \
            "On Debian or Ubuntu: sudo apt-get install mmdebstrap debian-archive-keyring" \
            "Or name a base that you have: make image BASE=..."
    echo "making $made from Debian's packages" >&2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Debian's tool that merges /usr into one tree brings all of Perl; the hook does without it.
    mmdebstrap --quiet --variant=apt --include=usr-is-merged \
        --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        bookworm "$work/base.tar" ${MIRROR:-} >&2
    import "$work/base.tar" >&2
}

find_base() {
    default=$(sed -n 's/^ARG BASE=//p' deploy/Dockerfile)
    if [ -n "$("$engine" images --quiet "$made" 2>/dev/null)" ]; then
        echo "$made"
    elif timeout 60 "$engine" pull --quiet "$default" >/dev/null 2>&1; then
        echo "$default"
    else
        make_base
        echo "$made"
    fi
}

copy_out() {
    if [ "$engine" = buildah ]; then
        container=$(buildah from "$image")
        cp "$(buildah mount "$container")$1" "$2"
        buildah rm "$container" >/dev/null
    else
        container=$("$engine" create "$image")
        "$engine" cp "$container:$1" "$2"
        "$engine" rm "$container" >/dev/null
    fi
}

engine=$(find_engine)
base=${BASE:-$(find_base)}
set -- --file deploy/Dockerfile --tag "$image" --label "org.opencontainers.image.version=$version" \
    --build-arg "BASE=$base" --build-arg "VARIANT=$variant" --build-arg "PACKAGES=${PACKAGES:-}" \
    --build-arg "EXTRAS=${EXTRAS:-}"
# chroot needs no rights beyond a user's, and works within a container.
[ "$engine" = docker ] || set -- "$@" --isolation chroot --layers
for each in "pip ${PIP_CONFIG_FILE:-/etc/pip.conf}" "authorities /etc/ssl/certs/ca-certificates.crt"; do
    if [ -f "${each#* }" ]; then set -- "$@" --secret "id=${each%% *},src=${each#* }"; fi
done
echo "building $image with $engine from $base" >&2
"$engine" build "$@" .

mkdir -p dist
for each in sbom.cdx.json licenses.txt; do
    copy_out "/usr/share/doc/headrace/$each" "dist/headrace-$version-$variant.$each"
done
echo "built $image; dist/headrace-$version-$variant.{sbom.cdx.json,licenses.txt} say what it holds"
