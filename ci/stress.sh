#!/usr/bin/env bash
# The test binaries that start threads, optimised. Tests that run against a clock run for longer:
# STANDSTILL_STRESS_SECS (default 6) each, instead of a second or two; the oracle's soak,
# STANDSTILL_ORACLE_SECS (default 15). Then some tests run once more under the stress modes of
# docs/stress.md, set from outside.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited "$((4500 + 20 * ${STANDSTILL_STRESS_SECS:-6} + 4 * ${STANDSTILL_ORACLE_SECS:-15}))" "$@"
export STANDSTILL_STRESS_SECS="${STANDSTILL_STRESS_SECS:-6}"
soak="${STANDSTILL_ORACLE_SECS:-15}"
unset STANDSTILL_ORACLE_SECS

# Not `alloc_failure`: it identifies refusals by function names, and optimised some are inlined. Nor
# `handle_places`, whose feature would slow all others down.
mapfile -t names < <(grep -rlE 'thread::(spawn|scope)|Clock::start' tests --include='*.rs' |
    sed -E 's#^tests/([^/.]+).*#\1#' | grep -vxE 'common|alloc_failure|handle_places' | sort -u)
((${#names[@]} > 0)) || {
    echo 'no test starts a thread: has tests/ moved?' >&2
    exit 1
}
echo "for $STANDSTILL_STRESS_SECS s a clock: ${names[*]}"
cargo test --quiet --release --features stacks "${names[@]/#/--test=}" --no-run
for name in "${names[@]}"; do
    begun=$SECONDS
    timeout --kill-after=30 "$((300 + 10 * STANDSTILL_STRESS_SECS))" cargo test --quiet --release --features stacks --test "$name"
    echo "$name: $((SECONDS - begun)) s"
done
STANDSTILL_ORACLE_SECS="$soak" timeout --kill-after=30 "$((300 + 2 * soak))" \
    cargo test --quiet --release --features stacks --test oracle soak -- --nocapture

# Test, modes, and skipped tests. The oracle predicts every collection, so none may start by itself.
# Hostile handlers report wrong counts. A traversal that panics the first time panics in the
# verifier.
modes=(
    'threads all:1'
    'regressions all:2 thrown_inside_a_collection'
    'hostile all:3,no-counts'
    'oracle all:4,no-collect'
    'oracle_threads yield:5'
)
cargo test --quiet --release --features stacks --test oracle --no-run
while read -r name stress skip; do
    begun=$SECONDS
    STANDSTILL_STRESS="$stress" STANDSTILL_STRESS_SECS=2 timeout --kill-after=30 600 \
        cargo test --quiet --release --features stacks --test "$name" -- ${skip:+--skip "$skip"} </dev/null
    echo "$name under $stress: $((SECONDS - begun)) s"
done < <(printf '%s\n' "${modes[@]}")
