#!/usr/bin/env bash
# Measures all figures of docs/performance.md, one tool after the other, into one folder, and makes
# the page. An hour on a quiet machine. With --quick: minutes, and a page in that folder alone; this
# only tests whether all tools work.
#
#     OUT=FOLDER               where the figures go (target/performance)
#     ROUNDS=N                 rounds of benches/versus (5)
#     PYTHON=PATH              a CPython beside the real heaps (all that are on the path)
#     CPYTHON_SOURCE=ARCHIVE   another one: built free-threaded from it (benches/cpython.sh)
#     HEAPS='FILE FILE'        the real heaps (those in tools/heaps)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="${OUT:-target/performance}"
mkdir -p "$out"
quick=()
page=()
if [[ " $* " == *' --quick '* ]]; then
    quick=(--quick)
    page=("$out/page/performance.md")
fi
python=(--python "${PYTHON:-auto}")
if [[ -n "${CPYTHON_SOURCE:-}" ]]; then
    python+=(--python "$(benches/cpython.sh "$CPYTHON_SOURCE")")
fi
read -ra heaps <<<"${HEAPS:-}"

pauses() {
    cargo run --release --manifest-path benches/pauses/Cargo.toml --bin "$@" "${quick[@]}" --out "$out"
}
echo "$(git describe --always --dirty) of $(git log -1 --format=%cs)" >"$out/version"
cargo run --release --manifest-path benches/versus/Cargo.toml -- --out "$out" ${ROUNDS:+--rounds "$ROUNDS"} "${quick[@]}"
pauses limit -- growth
pauses heaps -- "${python[@]}" "${heaps[@]}"
pauses stops --
pauses load -- --threads 1,2,4,16,64
python3 benches/performance.py "$out" "${page[@]}"
