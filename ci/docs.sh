#!/usr/bin/env bash
# The documentation: rustdoc without a warning, and every relative link in a Markdown file leads to a file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

RUSTDOCFLAGS='-D warnings' cargo doc --quiet --no-deps --workspace

# Inline links outside code, without those that lead out of the repository: "file:line target".
links() {
    awk '
        FNR == 1 { fenced = 0 }
        /^ *```/ { fenced = !fenced }
        fenced { next }
        {
            gsub(/`[^`]*`/, "")
            while (match($0, /\]\([^()]+\)/)) {
                target = substr($0, RSTART + 2, RLENGTH - 3)
                $0 = substr($0, RSTART + RLENGTH)
                sub(/[ \t].*/, "", target)
                if (target !~ /^[a-z]+:/) printf "%s:%d %s\n", FILENAME, FNR, target
            }
        }' "$@"
}

# The headings of a page, as anchors.
anchors() {
    sed -n 's/^##* *//p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

mapfile -t pages < <(git ls-files --cached --others --exclude-standard -- '*.md')
((${#pages[@]} > 0)) || {
    echo 'no Markdown file: is this a git checkout?' >&2
    exit 1
}
broken=0
complain() {
    echo "$*" >&2
    broken=1
}
while read -r where target; do
    page="${where%:*}"
    to="$(dirname "$page")/${target%%#*}"
    [[ "$target" != '#'* ]] || to="$page"
    if [[ ! -e "$to" ]]; then
        complain "$where: no such file: $target"
    elif [[ "$target" == *'#'* ]] && ! anchors "$to" | grep -qxF -- "${target#*#}"; then
        complain "$where: no such heading: $target"
    fi
done < <(links "${pages[@]}")

((broken == 0))
echo "${#pages[@]} pages, all links lead somewhere"
