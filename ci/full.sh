#!/usr/bin/env bash
# All checks: .ci/run with STANDSTILL_FULL=1. It runs all models, all programs under sanitizers and
# stress, the fuzzer, both versions of CPython and all wheels, for some hours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 21600 "$@"

STANDSTILL_FULL=1 bash .ci/run
echo "at commit $(git rev-parse --short HEAD)"
