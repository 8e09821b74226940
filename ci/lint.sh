#!/usr/bin/env bash
# Formatting and lints, everywhere. A warning is an error here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 900 "$@"

cargo fmt --all --check
cargo clippy --quiet --workspace --all-targets -- -D warnings

# Names; columns.
ci/names.py
ci/width.py

# Each lock file fits its manifest; otherwise a build would change it.
git ls-files '*Cargo.toml' | while read -r manifest; do
    folder=$(dirname "$manifest")
    [[ ! -f "$folder/Cargo.lock" ]] || cargo update --quiet --workspace --locked --manifest-path "$manifest"
done
