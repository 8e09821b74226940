#!/usr/bin/env bash
# Unsafe code: each place names its rule, each rule has existing tests, and the `mod` lines are a
# true map of unsafe code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 60 "$@"

ci/unsafe.py
