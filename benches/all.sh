#!/usr/bin/env bash
# Measures all figures of docs/performance.md, one tool after the other, into one folder, and makes
# the page. Half an hour on a quiet machine. --quick only tests whether all tools work.
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
