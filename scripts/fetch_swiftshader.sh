#!/bin/sh
# Takes SwiftShader, a driver of Vulkan for processors, out of Debian's Chromium, which need not be
# installed: 6 MB. WEBGPU is tested on it.
#
#   scripts/fetch_swiftshader.sh DIRECTORY
set -eu

directory=$1
from=/usr/lib/chromium
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/download" "$work/taken"
if [ ! -e "$from/libvk_swiftshader.so" ]; then
    chmod 755 "$work" && chmod 777 "$work/download" # apt downloads as a user of its own
    if ! (cd "$work/download" && apt-get -qq -o Acquire::Retries=3 download chromium-common >../log 2>&1); then
        tail -n 20 "$work/log" >&2
        echo "Could not download Debian's package chromium-common; try apt-get update first." >&2
        exit 1
    fi
    dpkg-deb --extract "$work"/download/*.deb "$work/package"
    from=$work/package$from
fi
cp "$from/libvk_swiftshader.so" "$from/vk_swiftshader_icd.json" "$from/libvulkan.so.1" "$work/taken"
mkdir -p "$(dirname "$directory")"
rm -rf "$directory"
cp -r "$work/taken" "$directory.part"
mv "$directory.part" "$directory"
