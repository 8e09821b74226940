#!/usr/bin/env bash
# Each public function has a row for each wrong state. The tests `states` and `pointers` compare the
# results with the generated pages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 60 "$@"

ci/states.py
