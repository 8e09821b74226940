#!/usr/bin/env bash
# The tools of benches/pauses build, and their checks pass: each runs once, small. Their times are
# not checked. The page of all figures can be made from them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 1200 "$@"

# Their times are not checked: so the tools are built without the optimisation across crates that
# their manifest asks for, which takes longer than all the rest.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
out=$target/benches
manifest=benches/pauses/Cargo.toml
rm -rf "$out"
cargo clippy --quiet --release --manifest-path "$manifest" --all-targets --target-dir "$target/pauses" -- -D warnings
cargo fmt --manifest-path "$manifest" --check
timeout --kill-after=10 300 cargo test --quiet --release --manifest-path "$manifest" --target-dir "$target/pauses"

quickly() {
    echo "-- $*"
    timeout --kill-after=10 300 cargo run --quiet --release --manifest-path "$manifest" --target-dir "$target/pauses" \
        --bin "$@" --quick --out "$out" >"$out.log" 2>&1 || {
        status=$?
        cat "$out.log" >&2
        echo "the tool failed, or took too long (status 124)" >&2
        exit "$status"
    }
}

quickly limit -- shapes --n 20000
quickly limit -- growth --max 100000
quickly heaps -- --python none
quickly stops --
quickly load -- --threads 2 --live 50000 --seconds 2
quickly diagnose --
quickly child --
for page in shapes growth heaps stops load; do
    [[ -s "$out/$page.md" ]] || { echo "$page.md was not written" >&2 && exit 1; }
done
python3 benches/performance.py "$out" "$out/page/performance.md"
