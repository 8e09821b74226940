#!/usr/bin/env bash
# Small changes of the code (ci/mutants), and whether a test notices each. Without arguments: a sample of them, drawn by the
# commit. `ci/mutants.sh --all` tries every one; other options are in ci/mutants/src/main.rs.
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
