#!/usr/bin/env bash
# Every row of the conformance table has a test or a reason, and the generated page is up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 60 "$@"

python3 ci/conformance.py --check
