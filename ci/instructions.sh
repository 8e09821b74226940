#!/usr/bin/env bash
# The instructions that the hot paths take, counted under valgrind, against those in benches/instructions/counts.tsv: worse by more than
# the tolerance fails. --update stores what was counted; other words select rows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v valgrind >/dev/null; then
    echo '!!!! SKIPPED: no valgrind to count instructions with !!!!' >&2
    exit 0
fi

cargo bench --quiet --bench instructions --no-run
timeout --kill-after=30 300 cargo bench --quiet --bench instructions -- "$@"
