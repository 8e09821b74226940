#!/usr/bin/env bash
# A short soak: memory stays flat, and nothing is left at the end. Arguments go to tools/soak.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited "$((600 + ${SOAK_LIMIT:-300}))" "$@"

cargo build --quiet --release --bin soak
timeout --kill-after=30 "${SOAK_LIMIT:-300}" \
    "$target/release/soak" "${@:---minutes=0.5}"
