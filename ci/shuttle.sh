#!/usr/bin/env bash
# Whole programs under random schedules (shuttle_tests/), against the oracle: SHUTTLE_SCHEDULES
# schedules of each kind for a test, 700, or 20,000 with --full. A further word selects tests.
# SHUTTLE_REPLAY=FILE replays the schedule that a failure has written.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash

limit=900
[[ "${1:-}" != --full ]] || limit=7200
limited "$limit" "$@"

schedules=700
if [[ "${1:-}" == --full ]]; then
    schedules=20000
    shift
fi
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
echo "programs run under random schedules in $((SECONDS - begun)) s"
