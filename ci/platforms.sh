#!/usr/bin/env bash
# Compiles the library for the systems that CI does not test on, with all features and with none.
# A target that cannot be installed is named loudly, and is no failure. Targets with 32-bit
# addresses must be refused with the library's own message.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

# Whether the target is installed, or can be.
has() {
    rustup target list --installed 2>/dev/null | grep -qx "$1" && return
    timeout --kill-after=10 120 rustup target add "$1" >/dev/null 2>&1 </dev/null && return
    printf '!!!! NOT CHECKED: %s cannot be installed: rustup target add %s !!!!\n' "$1" "$1" >&2
    return 1
}

windows=(x86_64-pc-windows-gnu x86_64-pc-windows-msvc)
apple=(x86_64-apple-darwin aarch64-apple-darwin)
for triple in "${windows[@]}" "${apple[@]}"; do
    has "$triple" || continue
    for features in --all-features --no-default-features; do
        cargo check --quiet -p standstill --lib "$features" --target "$triple"
    done
    echo "compiled for $triple"
done
for triple in i686-unknown-linux-gnu wasm32-unknown-unknown; do
    has "$triple" || continue
    refused=(cargo check --quiet -p standstill --lib --no-default-features --target "$triple")
    said="$("${refused[@]}" 2>&1)" && {
        echo "$triple was not refused" >&2
        exit 1
    }
    grep -q 'standstill needs 64-bit addresses' <<<"$said" || {
        echo "$said" >&2
        echo "$triple was refused without the reason" >&2
        exit 1
    }
    echo "refused: $triple"
done
