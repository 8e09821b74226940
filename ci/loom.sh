#!/usr/bin/env bash
# Runs the models of the protocols (loom_tests/), the mutations that they must catch
# (loom_tests/mutations.toml), the models of a runtime (examples/loom_runtime), on the library and
# on its double, and those that compare the two (model/tests/refinement.rs).
#
# Every interleaving with up to 2 preemptions, or as many as a model needs, and the check that the
# table of mutations fits the code. With STANDSTILL_FULL=1: each model without a bound for some
# seconds, and then with one preemption more as long as it has time (LOOM_SECONDS, 30 unless given);
# and all mutations.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash

limit=600
! is_full || limit=7200
limited "$((2 * limit + 600))" "$@"
! is_full || export LOOM_SECONDS="${LOOM_SECONDS:-30}"

models() {
    RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" \
        cargo test --quiet --release -p standstill --lib --target-dir "${CARGO_TARGET_DIR:-target/loom}" "$@"
}

# What a runtime's own models use: the library under its public flag.
users() {
    RUSTFLAGS="${RUSTFLAGS:-} --cfg standstill_loom" \
        cargo test --quiet --release --target-dir "${CARGO_TARGET_DIR:-target/loom}" "$@"
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
explorations="$(grep -c '^explored: ' <<<"$result" || true)"
whole="$(grep -c '^explored: .* all there are' <<<"$result" || true)"
depth="at least with the preemptions that each needs"
! is_full || depth="$whole of $explorations explorations without a bound"
echo "$found models, $executions executions, $depth, in $((SECONDS - begun)) s"

users -p loom-runtime -p standstill-model
users -p loom-runtime --features double

# The mutations need no depth: a model catches its mutations within its bound.
unset LOOM_SECONDS
if is_full; then
    ci/mutations.py --all
else
    ci/mutations.py --check
fi
