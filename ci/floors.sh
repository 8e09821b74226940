#!/usr/bin/env bash
# The floors of src/, lowest first: a file imports from its own floor or a lower one, and on floor 2 from
# lower ones only (siblings that do not know each other). Packages are named where docs/architecture.md
# says. Comments, documentation and test modules do not count. An exception that nobody needs is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 120 "$@"

floors='
0 sync system event error fallible notices steps stress environment
1 header object shape freed
2 space arena tracked roots weak safepoint current
3 mutator slow pacing model turn collect::crew collect::workers
4 collect managed discard
5 heap blocking gc cell slot slice trace inspect dynamic services
'
siblings=2

# from to: why
exceptions='
arena space: an arena is an allocator over the pages of a space
safepoint current: its own child module, in a file of its own
model heap: re-exports ModelHeap, so that a model has one module to look at; uses nothing of it
managed trace: a value that waits to be dropped says what it leads to
discard trace: the same
managed heap: type tables are given the mutator as an opaque pointer, cast back to Mutator here
'

# package: files
packages='
crossbeam_utils: collect/crew collect/mark safepoint
libc: system
loom: sync
parking_lot: sync trace
rayon: collect/workers
rustix: fallible space system
shuttle: sync
tracing: event
'

declare -A floor_of module_of excused used
while read -r floor modules; do
    for module in $modules; do floor_of[$module]=$floor; done
done < <(grep . <<<"$floors")
while IFS=: read -r pair _; do
    excused[$pair]=1
done < <(grep . <<<"$exceptions")

# What a file says outside comments, and before its tests.
code() {
    sed -n '/^#\[cfg(all(test, not(any(loom, shuttle))))\]$/,$d; s#^ *//.*##; p' "$1" | tr '\n' ' '
}

# The names that lib.rs exports, with their modules: `pub use gc::{AnyGc, Gc}`.
while read -r module names; do
    for name in $names; do module_of[$name]=$module; done
done < <(code src/lib.rs | grep -oE 'pub use [a-z]+::(\{[^}]*\}|[A-Za-z]+)' |
    sed -E 's/pub use ([a-z]+)::/\1 /; s/[{},]/ /g')

# The modules that a file imports from, one a line.
imports() {
    code "$1" | grep -oE 'crate::(\{[^}]*\}|[A-Za-z_]+(::[A-Za-z_]+)?)' | sed -E 's/^crate:://; s/[{},]/ /g' |
        tr ' ' '\n' | grep . | sort -u | while read -r path; do
        case "$path" in
            collect::workers | collect::crew) echo "$path" ;;
            [A-Z]*) echo "${module_of[${path%%::*}]:-unknown:$path}" ;;
            *) echo "${path%%::*}" ;;
        esac
    done | sort -u
}

failed=0
complain() {
    echo "$*" >&2
    failed=1
}

for file in src/*.rs src/collect/*.rs src/dynamic/*.rs; do
    name="${file#src/}"
    name="${name%.rs}"
    case "$name" in
        lib) continue ;;
        collect/workers | collect/crew) from="${name/\//::}" ;;
        collect/*) from=collect ;;
        dynamic/*) from=dynamic ;;
        *) from="$name" ;;
    esac
    if [[ -z "${floor_of[$from]:-}" ]]; then
        complain "$file: which floor? It is not in the table of ci/floors.sh"
        continue
    fi
    while read -r to; do
        [[ -n "$to" && "$to" != "$from" ]] || continue
        if [[ -z "${floor_of[$to]:-}" ]]; then
            complain "$file: imports from $to, which is not in the table of ci/floors.sh"
        elif ((floor_of[$to] > floor_of[$from] ||
            (floor_of[$to] == siblings && floor_of[$from] == siblings))); then
            used["$from $to"]=1
            [[ -n "${excused["$from $to"]:-}" ]] ||
                complain "$file: floor ${floor_of[$from]} imports from $to on floor ${floor_of[$to]}"
        fi
    done < <(imports "$file" || true)
    while IFS=: read -r package files; do
        if code "$file" | grep -qE "(^|[^A-Za-z_])$package::" && [[ " $files " != *" $name "* ]]; then
            complain "$file: names the package $package, which lives in:$files"
        fi
    done < <(grep . <<<"$packages")
done

# Named by `mod` and not by path.
grep -q '^mod current;' src/safepoint.rs && used['safepoint current']=1
for pair in "${!excused[@]}"; do
    [[ -n "${used[$pair]:-}" ]] || complain "the exception '$pair' in ci/floors.sh is not needed any more"
done

((failed == 0))
echo "no file of src/ imports upwards, but for ${#excused[@]} exceptions with their reasons"
