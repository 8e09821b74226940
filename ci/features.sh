#!/usr/bin/env bash
# The library without its features: hand-written `Trace` only. Clippy, and not check: it shares what ci/lint.sh
# has built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

cargo clippy --quiet --lib --no-default-features -- -D warnings
