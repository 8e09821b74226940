#!/usr/bin/env bash
# Unsafe code: each place says which rule it relies on, each rule has tests that exist, and the page is what the code says.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 60 "$@"

ci/unsafe.py --check
