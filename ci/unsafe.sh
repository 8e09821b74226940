#!/usr/bin/env bash
# Unsafe code: each place names its rule, each rule has existing tests, the `mod` lines are a true
# map of unsafe code, and the generated page is up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 60 "$@"

ci/unsafe.py --check
