#!/usr/bin/env bash
# The library without its features: hand-written `Trace` only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

RUSTFLAGS="${RUSTFLAGS:-} -D warnings" cargo check --quiet --lib --no-default-features --target-dir target/features
