#!/usr/bin/env bash
# Each public function has a row for each wrong state, and no row has an outcome that must not
# happen.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 60 "$@"

ci/states.py
