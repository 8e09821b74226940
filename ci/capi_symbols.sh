#!/usr/bin/env bash
# The symbols of the C ABI are those of capi/symbols.txt. A removed symbol would break programs that
# are built already. A new one is listed with its promise, which the header's tag must match.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

if [[ $# -gt 0 ]]; then
    library=$1
else
    cargo build --release --quiet -p standstill-capi --features standstill/default
    library=$target/release/libstandstill_capi.so
fi
list=capi/symbols.txt

# Symbols and tags as the header declares them, by way of the compiler's own preprocessor.
declared() {
    cc -E -P -DSTANDSTILL_STABLE='@stable ' -DSTANDSTILL_UNSTABLE='@unstable ' -I capi/include \
        -include standstill.h -x c /dev/null |
        tr '\n' ' ' | sed 's/@/\n@/g' |
        sed -nE 's/^@(stable|unstable) +[^;(]*[ *](standstill_[A-Za-z0-9_]+) *[(;].*/\2 \1/p' | LC_ALL=C sort
}

exported() {
    nm -D --defined-only "$library" | sed -nE 's/.* (standstill_[A-Za-z0-9_]+)$/\1/p' | LC_ALL=C sort
}

status=0
if ! difference=$(diff <(cut -d' ' -f1 "$list") <(exported)); then
    echo "the library's symbols are not those of $list (<: listed, >: exported):" >&2
    grep '^[<>]' <<<"$difference" >&2
    status=1
fi
if ! difference=$(diff "$list" <(declared)); then
    echo "the header does not declare what $list says (<: listed, >: declared):" >&2
    grep '^[<>]' <<<"$difference" >&2
    status=1
fi
[[ $status == 0 ]] && echo "$(wc -l <"$list") symbols, as listed"
exit "$status"
