#!/usr/bin/env bash
# Builds a free-threaded CPython at -O3, and prints the path of its interpreter:
#
#     benches/cpython.sh Python-3.15.0.tar.xz
#
# The archive is a release of https://www.python.org/downloads/source/. The build takes minutes, and
# lies in a cache outside of the checkout: another call with the same archive only prints the path.
set -euo pipefail
archive="${1:?the archive of a CPython release}"
name="cpython-$(sha256sum "$archive" | cut -c 1-16)"
place="${XDG_CACHE_HOME:-$HOME/.cache}/standstill/$name"
mkdir -p "$place"
exec 9>"$place.lock"
flock 9
if [[ ! -e "$place/built" ]]; then
    echo "building CPython in $place: minutes" >&2
    {
        tar -xf "$archive" -C "$place" --strip-components=1
        cd "$place"
        CFLAGS=-O3 ./configure --disable-gil
        make -j "$(nproc)"
        ./python -I -S -c 'import array, json, sys; assert not sys._is_gil_enabled()'
        touch built
    } >"$place.log" 2>&1 || {
        tail -n 20 "$place.log" >&2
        exit 1
    }
fi
echo "$place/python"
