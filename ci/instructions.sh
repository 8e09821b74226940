#!/usr/bin/env bash
# Compares the instruction counts of the hot paths, under valgrind, with
# benches/instructions/counts.tsv. A count that is worse by more than the tolerance fails. --update
# stores the new counts; other words select rows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 900 "$@"

needs 'the instruction counts' 'apt-get install -y valgrind' command -v valgrind || exit 0

cargo bench --quiet --bench instructions --no-run
timeout --kill-after=30 300 cargo bench --quiet --bench instructions -- "$@"
# What a heap pays that samples.
! is_full || cargo bench --quiet --bench instructions --features stacks -- sample "$@"
