#!/bin/sh
# Draws the picture of the README from a kept result file:
#
#     docs/gain.sh results/FILE.tsv > docs/gain.svg
#
# The file has a line for each measurement: case, program, seconds, separated by tabs. The first
# line that starts with "# " becomes the caption; other lines that start with # are left out.
# Nothing in the picture comes from anywhere else.
set -eu
[ $# -eq 1 ] || { echo "usage: docs/gain.sh RESULTS.tsv > docs/gain.svg" >&2; exit 2; }
awk -F'\t' '
function text(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); return s }
/^# / && caption == "" { caption = substr($0, 3); next }
/^#/ || NF == 0 { next }
NF != 3 || $3 !~ /^[0-9.]+$/ || $3 <= 0 {
    print FILENAME ":" FNR ": not case, program, seconds: " $0 > "/dev/stderr"
    bad = 1
    exit 1
}
{
    n++
    group[n] = $1; program[n] = $2; seconds[n] = $3
    if ($3 > most[$1]) most[$1] = $3
}
END {
    if (bad || n == 0) exit 1
    left = 130; width = 420; bar = 18; y = 26
    for (i = 1; i <= n; i++) {
        if (group[i] != group[i - 1]) {
            if (i > 1) y += 14
            body = body sprintf("<text x=\"8\" y=\"%d\" class=\"case\">%s</text>\n", y, text(group[i]))
            y += 10
        }
        # Each case has its own scale: the longest time in it fills the width.
        w = width * seconds[i] / most[group[i]]
        class = program[i] ~ /^longhaul/ ? "ours" : "other"
        body = body sprintf("<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>", left - 8, y + 13, text(program[i]))
        body = body sprintf("<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" class=\"%s\"/>", left, y, w, bar - 4, class)
        body = body sprintf("<text x=\"%.1f\" y=\"%d\">%s s</text>\n", left + w + 6, y + 13, seconds[i])
        y += bar
    }
    height = y + 34
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"%d\" viewBox=\"0 0 640 %d\" role=\"img\">\n", height, height
    print "<title>Time to copy, less is better</title>"
    print "<style>text{font:13px sans-serif;fill:#444}.case{font-weight:bold}.small{font-size:11px}.ours{fill:#2a7f62}.other{fill:#b8b8b8}@media (prefers-color-scheme:dark){text{fill:#ccc}.other{fill:#777}}</style>"
    printf "%s", body
    printf "<text x=\"8\" y=\"%d\" class=\"small\">%s</text>\n", height - 12, text(caption)
    print "</svg>"
}' "$1"
