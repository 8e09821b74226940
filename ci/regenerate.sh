#!/usr/bin/env bash
# Makes the pages of docs/generated/ anew from the code and the tables beside it: seconds. With
# CI=true it fails if a page changes: the page was stale.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 120 "$@"

pages() {
    sha256sum docs/generated/*
}
before="$(pages)"
ci/conformance.py
changed="$(diff <(echo "$before") <(pages) | sed -n 's/^> [0-9a-f]* *//p')"
[[ -z "$changed" ]] || printf 'changed: %s\n' $changed
if [[ -n "$changed" && "${CI:-}" == true ]]; then
    echo 'pages were stale: run ci/regenerate.sh, and commit them' >&2
    exit 1
fi
