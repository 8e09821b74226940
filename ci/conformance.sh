#!/usr/bin/env bash
# Every row of the conformance table has a test or a reason, and the page that says so is fresh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 60 "$@"

python3 ci/conformance.py --check
