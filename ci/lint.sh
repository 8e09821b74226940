#!/usr/bin/env bash
# Formatting and lints, everywhere. A warning is an error here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 900 "$@"

cargo fmt --all --check
cargo clippy --quiet --workspace --all-targets -- -D warnings
