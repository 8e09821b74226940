#!/usr/bin/env bash
# Everything that docs/performance.md shows, one tool after the other, into one folder; then the page anew.
# Half an hour on a quiet machine. Arguments go to the tools that compare: --quick tries whether all of it works.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${OUT:-target/performance}"
mkdir -p "$out"

pauses() {
    cargo run --release --manifest-path benches/pauses/Cargo.toml --bin "$@" --out "$out"
}
quick=()
[[ " $* " != *' --quick '* ]] || quick=(--quick)

cargo run --release --manifest-path benches/versus/Cargo.toml -- --out "$out" --rounds "${ROUNDS:-5}" "${quick[@]}"
pauses limit -- shapes "${quick[@]}"
pauses limit -- growth "${quick[@]}"
pauses heaps -- --python "${PYTHON:-auto}" "${quick[@]}"
pauses stops -- "${quick[@]}"
pauses load -- --threads 1,2,4 "${quick[@]}"
[[ -n "${quick[*]}" ]] || python3 benches/performance.py "$out"
