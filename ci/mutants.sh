#!/usr/bin/env bash
# Makes small changes of the code (ci/mutants), and checks that a test notices each. Without
# arguments: a sample of them, drawn by the commit. `ci/mutants.sh --all` tries all;
# ci/mutants/src/main.rs lists the other options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limit=1500
[[ $# == 0 ]] || limit=43200
limited "$limit" "$@"

runner="$target/mutants-runner"
cargo fmt --manifest-path ci/mutants/Cargo.toml --check
cargo clippy --quiet --release --manifest-path ci/mutants/Cargo.toml --target-dir "$runner" -- -D warnings
cargo build --quiet --release --manifest-path ci/mutants/Cargo.toml --target-dir "$runner"
"$runner/release/mutants" "$@"
