#!/usr/bin/env bash
# Hostile users: every public function from every wrong state, every exported C function with wrong
# pointers. No function is without a row, and the generated pages equal the results of the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 1200 "$@"

ci/states.py
cargo test --quiet --test states
cargo test --quiet -p standstill-capi --test pointers
