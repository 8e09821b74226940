#!/usr/bin/env bash
# Builds the library and its C ABI with the oldest toolchain that the manifest allows, with all
# features and with none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 900 "$@"

oldest="$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"
[[ -n "$oldest" ]] || {
    echo 'Cargo.toml names no rust-version' >&2
    exit 1
}
needs "the build with Rust $oldest" "rustup toolchain install $oldest --profile minimal" rustc "+$oldest" --version || exit 0
for features in --all-features --no-default-features; do
    cargo "+$oldest" check --quiet --workspace --lib "$features" --target-dir "$target/msrv"
done
echo "built with $(rustc "+$oldest" --version)"
