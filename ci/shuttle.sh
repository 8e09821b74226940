#!/usr/bin/env bash
# Whole programs under random schedules (shuttle_tests/), against the oracle: SHUTTLE_SCHEDULES
# schedules of each kind for a test, 700, or 5,000 with STANDSTILL_FULL=1. A word selects tests.
# SHUTTLE_REPLAY=FILE replays the schedule that a failure has written. Then the conformance kit runs
# under random schedules, as its users run it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash

limit=900 schedules=700
if is_full; then
    limit=7200 schedules=5000
fi
limited "$limit" "$@"
export SHUTTLE_SCHEDULES="${SHUTTLE_SCHEDULES:-$schedules}"
export RUSTFLAGS="${RUSTFLAGS:-} --cfg shuttle"
# The library's own assertions are on: they are steps too.
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true

args=(--quiet --release --package standstill --lib --target-dir "$target/shuttle")
cargo test "${args[@]}" --no-run
begun=$SECONDS
result="$(cargo test "${args[@]}" "${1:-shuttle_}" -- --nocapture 2>&1)" || {
    echo "$result" >&2
    exit 1
}
echo "$result"
[[ "$result" =~ running\ [1-9] ]] || {
    echo 'no test was found: have those whose names begin with shuttle_ moved?' >&2
    exit 1
}
RUSTFLAGS="${RUSTFLAGS/--cfg shuttle/--cfg standstill_shuttle}" cargo test --release \
    --package standstill-model-check --features shuttle --test schedules --target-dir "$target/shuttle" |
    tee "$target/shuttle/kit"
grep -q 'running [1-9]' "$target/shuttle/kit"
echo "programs run under random schedules in $((SECONDS - begun)) s"
