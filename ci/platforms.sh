#!/usr/bin/env bash
# The library compiles for macOS and Windows, with all features and with none. Nothing runs there. A
# target whose standard library cannot be installed is named, and is no failure: the compiler alone
# cannot replace that system.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

checked=0
for triple in x86_64-pc-windows-gnu x86_64-pc-windows-msvc aarch64-apple-darwin x86_64-apple-darwin; do
    if ! rustup target list --installed | grep -qx "$triple"; then
        timeout --kill-after=10 120 rustup target add "$triple" >/dev/null 2>&1 </dev/null || true
    fi
    if ! rustup target list --installed | grep -qx "$triple"; then
        printf '!!!! NOT CHECKED: %s. rustup target add %s fails on this machine !!!!\n' "$triple" "$triple" >&2
        continue
    fi
    for set in '' derive,cpython,parallel,tracing,model-check; do
        cargo check --quiet -p standstill --lib --target "$triple" --no-default-features --features "$set"
    done
    checked=$((checked + 1))
done
echo "$checked of 4 targets checked"

# Systems that the library refuses: the message says why.
for triple in i686-unknown-linux-gnu wasm32-unknown-unknown; do
    if rustup target list --installed | grep -qx "$triple" ||
        timeout --kill-after=10 120 rustup target add "$triple" >/dev/null 2>&1 </dev/null; then
        if message="$(cargo check --quiet -p standstill --lib --no-default-features --target "$triple" 2>&1)"; then
            echo "the library compiles for $triple, and ADR 41 says that it does not" >&2
            exit 1
        fi
        grep -q 'standstill needs' <<<"$message" || {
            printf '%s\nno clear message for %s\n' "$message" "$triple" >&2
            exit 1
        }
    else
        printf '!!!! NOT CHECKED: %s. rustup target add %s fails on this machine !!!!\n' "$triple" "$triple" >&2
    fi
done
