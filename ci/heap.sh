#!/usr/bin/env bash
# Headless Chromium shows the reports of standstill-heap without an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

name='the report in a browser'
if [[ "${CI:-}" == true ]] && ! command -v chromium >/dev/null; then
    # Without a network this fails soon, and no other check needs a browser.
    quick=(-o Acquire::Retries=0 -o Acquire::http::Timeout=20)
    timeout --kill-after=10 240 apt-get install -y "${quick[@]}" chromium >/dev/null 2>&1 || {
        absent "$name" 'apt cannot install chromium'
        exit 0
    }
fi
if needs "$name" 'apt-get install -y chromium' command -v chromium; then
    cargo test --quiet -p standstill-heap --test page -- --ignored
fi
