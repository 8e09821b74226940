#!/usr/bin/env bash
# Prints a table of processor times in seconds, the least of three runs: of this Scheme and of each
# other one that is installed. Build it first: cargo build --release
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
own="${CARGO_TARGET_DIR:-../target}/release/scheme"
[[ -x "$own" ]] || { echo "$own is missing" >&2; exit 1; }

names=(scheme) commands=("$own")
# add NAME PROGRAM ARGUMENTS: where the program is installed
add() {
    ! command -v "$2" >/dev/null || { names+=("$1"); commands+=("${*:2}"); }
}
add 'Guile, compiled' guile
add 'Guile, evaluator' guile --no-auto-compile
add SCM scm -f

printf '| program |%s\n' "$(printf ' %s |' "${names[@]}")"
printf '|---|%s\n' "$(printf -- '---:|%.0s' "${names[@]}")"
TIMEFORMAT=%U
for program in *.scm; do
    [[ "$program" != web.scm ]] || continue # its threads are no common Scheme
    row="| $program |"
    for command in "${commands[@]}"; do
        best=''
        # The evaluator would use what the compiler has left.
        [[ "$command" != *--no-auto* ]] || export XDG_CACHE_HOME=/dev/null
        for _ in 1 2 3; do
            # The words of the command are divided. A compiler writes its code in the first run.
            seconds="$( { time timeout 120 $command "$program" </dev/null >/dev/null 2>&1 || echo fails; } 2>&1)"
            [[ "$seconds" != *fails* ]] || { best='–'; break; }
            [[ -n "$best" && ! "$seconds" < "$best" ]] || best="$seconds"
        done
        row+=" $best |"
        unset XDG_CACHE_HOME
    done
    echo "$row"
done
