#!/usr/bin/env bash
# The loader of Chrome's DevTools reads what standstill-heap writes, and agrees with its dominators:
# of both recorded heaps, as they are and folded, and of one that the library has written.
# `ci/devtools.sh FILE...` loads files instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

name='the loader of DevTools'
needs "$name" 'apt-get install -y nodejs npm' bash -c 'command -v node && command -v npm' || exit 0
frontend=1.0.1705227
esbuild=0.28.2
place="$target/devtools"
packages="$place/$frontend-$esbuild"
mkdir -p "$place"
if [[ ! -d "$packages" ]]; then
    # What an npm that was ended has left lacks files.
    rm -rf "$place/part"
    timeout --kill-after=10 240 npm install --silent --no-audit --no-fund --fetch-retries 0 \
        --fetch-timeout 60000 --prefix "$place/part" \
        "chrome-devtools-frontend@$frontend" "esbuild@$esbuild" >"$place/npm.log" 2>&1 || {
        absent "$name" 'npm cannot install chrome-devtools-frontend and esbuild'
        exit 0
    }
    mv "$place/part" "$packages"
fi
cargo build --quiet -p standstill-heap
command="$target/debug/standstill-heap"
files=("$@")
if ((${#files[@]} == 0)); then
    for heap in sympy django; do
        original="tools/heaps/$heap.heapsnapshot.zst"
        # With more nodes than there are, all stay as they are.
        for nodes in 1000000 5000; do
            file="$place/$heap-$nodes.heapsnapshot"
            "$command" fold "$original" --nodes "$nodes" -o "$file" >/dev/null
            files+=("$original=$file")
        done
    done
    files+=("$file")
    # What the library itself writes.
    cargo run --quiet -p standstill-heap --example service -- registry 1 "$place/service.heapsnapshot"
    files+=("$place/service.heapsnapshot")
fi
node heap/tests/devtools.mjs "$packages" "$command" "${files[@]}"
