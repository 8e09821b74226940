#!/usr/bin/env bash
# Replays both recorded heaps, with one thread and with two: nothing may be lost, freed too early,
# or freed twice. The program checks that itself (exit status); this script checks its result again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 900 "$@"

cargo build --quiet --release --bin replay
for heap in sympy django; do
    for threads in 1 2; do
        result="$(timeout --kill-after=30 180 cargo run --quiet --release --bin replay -- \
            "tools/heaps/$heap.heapsnapshot.zst" --threads "$threads" --json)"
        echo "$result"
        for fact in '"leaked":0' '"destroyed_twice":0' '"weak_alive":0' '"failed_checks":[]'; do
            [[ "$result" == *"$fact"[,\}]* ]] || {
                echo "$heap with $threads threads: $fact does not hold" >&2
                exit 1
            }
        done
    done
done
