#!/usr/bin/env bash
# Makes the pages of docs/generated/ anew, and the layout in docs/architecture.md, from the code and
# the tables beside it: seconds. With CI=true it fails if a page changes: the page was stale.
#
# With --run it first runs the programs that write the tables: minutes for the tests of states and
# pointers, an hour for the mutations. Read each line that changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
case "${1:-}" in
    '') limit=120 ;;
    --run) limit=86400 ;;
    *) echo 'usage: ci/regenerate.sh [--run]' >&2 && exit 2 ;;
esac
limited "$limit" "$@"

if [[ "${1:-}" == --run ]]; then
    STATES_BLESS=1 cargo test --quiet --test states
    POINTERS_BLESS=1 cargo test --quiet -p standstill-capi --test pointers
fi

pages() {
    sha256sum docs/generated/* docs/architecture.md
}
before="$(pages)"
ci/conformance.py
ci/states.py --write
python3 ci/floors.py --write
changed="$(diff <(echo "$before") <(pages) | sed -n 's/^> [0-9a-f]* *//p')"
[[ -z "$changed" ]] || printf 'changed: %s\n' $changed
if [[ -n "$changed" && "${CI:-}" == true ]]; then
    echo 'pages were stale: run ci/regenerate.sh, and commit them' >&2
    exit 1
fi
