#!/usr/bin/env bash
# The library without its features. Without any: hand-written `Trace` only. Clippy, and not check:
# it shares what ci/lint.sh has built. Without `cpython`: the laws, the traps and the threads of
# typed objects hold.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

cargo clippy --quiet -p standstill --lib --no-default-features -- -D warnings
derive=(-p standstill --no-default-features --features derive)
cargo clippy --quiet "${derive[@]}" --lib --tests -- -D warnings
cargo test --quiet "${derive[@]}" --test laws --test traps --test threads
