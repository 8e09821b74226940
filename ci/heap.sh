#!/usr/bin/env bash
# The command standstill-heap before programs of others: a browser shows its report, and the loader
# of Chrome's DevTools reads what it writes and agrees with its dominators.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

if needs 'the report in a browser' 'apt-get install -y chromium' command -v chromium; then
    cargo test --quiet -p standstill-heap --test page -- --ignored
fi
