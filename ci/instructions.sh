#!/usr/bin/env bash
# The instructions that the hot paths take, counted under valgrind, against those in benches/instructions/counts.tsv: worse by more than
# the tolerance fails. --update stores what was counted; other words select rows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 900 "$@"

needs 'the instruction counts' 'apt-get install -y valgrind' command -v valgrind || exit 0

cargo bench --quiet --bench instructions --no-run
timeout --kill-after=30 300 cargo bench --quiet --bench instructions -- "$@"
