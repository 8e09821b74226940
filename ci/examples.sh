#!/usr/bin/env bash
# The small programs in examples/ run. Each checks its own claims, and is short. Building one builds
# the library and its dependencies, and no test tools. The Scheme runs its programs, also with a
# collection at each 50th safepoint.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 1200 "$@"

cargo build --quiet --examples
for file in examples/*.rs; do
    name="$(basename "$file" .rs)"
    lines="$(sed '/^#\[cfg(test)\]/,$d' "$file" | wc -l)"
    if ((lines > 300)); then
        echo "$file has $lines lines without its tests: an example has 300 at most" >&2
        exit 1
    fi
    echo "-- $name"
    timeout --kill-after=5 60 cargo run --quiet --example "$name"
done

tools="$(sed -n '/^\[.*dev-dependencies\]/,/^\[/s/^\([a-z-]*\) = .*/\1/p' Cargo.toml |
    grep -vxE 'libc|tracing|standstill-model-check')"
built="$(cargo tree --quiet --edges normal,build,dev --prefix none -p standstill-examples | sed 's/ .*//' | sort -u)"
if grep -xF "$tools" <<<"$built"; then
    echo 'the examples build what only tests need' >&2
    exit 1
fi

scheme=(--quiet --manifest-path examples/scheme/Cargo.toml)
cargo fmt --check --manifest-path examples/scheme/Cargo.toml
cargo clippy "${scheme[@]}" --target-dir "$target" --all-targets -- -D warnings
cargo test "${scheme[@]}" --target-dir "$target"
