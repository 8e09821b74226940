#!/usr/bin/env bash
# The protocols' models (loom_tests/), every interleaving up to a bound of preemptions: 2, or 3 with --full.
# LOOM_MAX_PREEMPTIONS overrides both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bound=2
case "${1:-}" in
    '') ;;
    --full) bound=3 ;;
    *) echo "usage: ci/loom.sh [--full]" >&2 && exit 2 ;;
esac
export LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-$bound}"
export RUSTFLAGS="${RUSTFLAGS:-} --cfg loom"

cargo test --quiet --release --lib --target-dir target/loom --no-run
begun=$SECONDS
result="$(timeout --kill-after=30 600 cargo test --quiet --release --lib --target-dir target/loom loom_ 2>&1)" || {
    status=$?
    echo "$result" >&2
    echo "the models failed, or took too long (status 124)" >&2
    exit "$status"
}
echo "$result"
[[ "$result" =~ running\ [1-9] ]] || {
    echo 'no model was found: have the tests whose names begin with loom_ moved?' >&2
    exit 1
}
echo "models explored with up to $LOOM_MAX_PREEMPTIONS preemptions in $((SECONDS - begun)) s"
