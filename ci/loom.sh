#!/usr/bin/env bash
# Runs the models of the protocols (loom_tests/), and the mutations that they must catch
# (loom_tests/mutations.toml).
#
# Every interleaving with up to 2 preemptions (LOOM_MAX_PREEMPTIONS sets another bound), and the
# check that the table of mutations fits the code. With STANDSTILL_FULL=1: every interleaving,
# except where a model states a bound, and all mutations.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash

limit=600
! is_full || limit=7200
limited "$((2 * limit + 600))" "$@"
if is_full; then
    export LOOM_FULL=1
else
    export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}"
fi

models() {
    RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" \
        cargo test --quiet --release -p standstill --lib --target-dir "${CARGO_TARGET_DIR:-target/loom}" "$@"
}

models --no-run
begun=$SECONDS
result="$(timeout --kill-after=30 "$limit" bash -c "$(declare -f models); models -- loom_ --show-output" 2>&1)" || {
    status=$?
    echo "$result" >&2
    echo "the models failed, or took too long (status 124)" >&2
    exit "$status"
}
[[ "$result" =~ running\ ([1-9][0-9]*) ]] || {
    echo 'no model was found: have the tests whose names begin with loom_ moved?' >&2
    exit 1
}
found="${BASH_REMATCH[1]}"
executions="$(awk '/^explored: / { sum += $2 } END { print sum }' <<<"$result")"
depth="${LOOM_FULL:+all there are, or as deep as the models say}"
depth="${depth:-with up to $LOOM_MAX_PREEMPTIONS preemptions, or what the models need}"
echo "$found models, $executions executions, $depth, in $((SECONDS - begun)) s"

# The mutations need no depth: a model catches its mutations within its bound.
unset LOOM_FULL
if is_full; then
    ci/mutations.py --all
else
    ci/mutations.py --check
fi
