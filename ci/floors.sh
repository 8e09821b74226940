#!/usr/bin/env bash
# The floors of src/ (ci/floors.py has the table): a folder imports from its own floor or a lower
# one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 120 "$@"

python3 ci/floors.py
