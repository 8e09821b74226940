#!/usr/bin/env bash
# The documentation: rustdoc prints no warning, and every link in a Markdown file to a file of this
# repository leads to one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source ci/common.bash
limited 600 "$@"

RUSTDOCFLAGS='-D warnings' cargo doc --quiet --no-deps --workspace

repository="$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)/blob/main/"

# Links outside code, without those that lead out of the repository: "file:line target". A target
# that starts with / is a path from the root.
links() {
    awk -v repository="$repository" '
        function link(target) {
            sub(/[ \t].*/, "", target)
            if (index(target, repository) == 1) target = "/" substr(target, length(repository) + 1)
            if (target !~ /^[a-z]+:/) printf "%s:%d %s\n", FILENAME, FNR, target
        }
        FNR == 1 { fenced = 0 }
        /^ *```/ { fenced = !fenced }
        fenced { next }
        {
            if (match($0, /^\[[^]]+\]: /)) link(substr($0, RLENGTH + 1))
            gsub(/`[^`]*`/, "")
            while (match($0, /\]\([^()]+\)/)) {
                target = substr($0, RSTART + 2, RLENGTH - 3)
                $0 = substr($0, RSTART + RLENGTH)
                link(target)
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
    case "$target" in
        '#'*) to="$page" ;;
        /*) to=".${target%%#*}" ;;
    esac
    if [[ ! -e "$to" ]]; then
        complain "$where: no such file: $target"
    elif [[ "$target" == *'#'* ]] && ! anchors "$to" | grep -qxF -- "${target#*#}"; then
        complain "$where: no such heading: $target"
    fi
done < <(links "${pages[@]}")

# The phases in docs/tracing.md are the variants of `Phase`, with the words of their documentation.
phases="$(awk '
    /enum Phase \{/ { inside = 1; next }
    inside && /^\}/ { exit }
    inside && /\/\/\// { sub(/^ *\/\/\/ /, ""); text = text (text == "" ? "" : " ") $0; next }
    inside {
        gsub(/[ ,]/, "")
        world = tolower(substr(text, 1, index(text, ":") - 1))
        words = substr(text, index(text, ":") + 2)
        sub(/\.$/, "", words)
        printf "| `%s` | %s | %s |\n", $0, world, words
        text = ""
    }' src/report/facts.rs)"
listed="$(sed -n '/^| `name` | world |/,/^$/p' docs/tracing.md | tail -n +3)"
if [[ "$phases" != "$listed" ]]; then
    diff <(echo "$listed") <(echo "$phases") >&2 || true
    complain 'docs/tracing.md: the table of phases differs from `Phase` in src/report/facts.rs'
fi

# The table of methods in docs/model.md has a row for each documented method of `ObjectModel` and
# its parts.
methods="$(awk '
    /^pub (unsafe )?trait / { inside = 1; next }
    inside && /^\}/ { inside = 0 }
    inside && /#\[doc\(hidden\)\]/ { hidden = 1 }
    inside && /^    const / { hidden = 0 }
    inside && /^    fn / { if (!hidden) { sub(/^    fn /, ""); sub(/[^a-z_].*/, ""); print } hidden = 0 }
    ' src/heap/model.rs src/heap/parts/*.rs | sort)"
listed="$(sed -n '/^| method | called |/,/^$/p' docs/model.md | tail -n +3 | cut -d'|' -f2 |
    grep -o '`[a-z_]*`' | tr -d '\`' | sort)"
if [[ -z "$methods" || "$methods" != "$listed" ]]; then
    diff <(echo "$listed") <(echo "$methods") >&2 || true
    complain 'docs/model.md: the table of methods differs from `ObjectModel` and its parts'
fi

# docs/fork.md has a row for each lock.
python3 ci/fork_locks.py || broken=1

((broken == 0))
echo "${#pages[@]} pages, all links lead somewhere"
