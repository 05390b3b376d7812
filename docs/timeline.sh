#!/bin/sh
# Draws the first seconds of a copy, from what the copy itself recorded:
#
#     longhaul cp --explain=timeline --json FILE HOST:DIR > run.json
#     docs/timeline.sh run.json 'CAPTION' > docs/timeline.svg
#
# A row is a connection: its login in steps, then its congestion window as a curve. The last row has
# the states of the files.
set -eu
[ $# -eq 2 ] || { echo "usage: docs/timeline.sh RUN.json CAPTION > PICTURE.svg" >&2; exit 2; }
grep '"event":"timeline"' "$1" | awk -v caption="$2" '
function text(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); return s }
function value(key,    at, rest) {
    at = index($0, "\"" key "\":")
    if (!at) return ""
    rest = substr($0, at + length(key) + 3)
    sub(/[,}].*/, "", rest)
    gsub(/"/, "", rest)
    return rest
}
{
    at = value("at") + 0; step = value("step"); c = value("connection")
    if (step != "closed" && at > end) end = at
    if (c == "") { files++; when[files] = at; state[files] = value("state"); next }
    if (c > most) most = c + 0
    if (step == "state") {
        n[c]++; t[c, n[c]] = at; w[c, n[c]] = value("cwnd") + 0
        if (w[c, n[c]] > widest) widest = w[c, n[c]]
    } else { k[c]++; kt[c, k[c]] = at; kind[c, k[c]] = step }
}
END {
    if (!most) { print "no timeline in the file" > "/dev/stderr"; exit 1 }
    left = 30; width = 640; row = 46; end *= 1.02
    height = (most + 1) * row + 60
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"700\" height=\"%d\" viewBox=\"0 0 700 %d\" role=\"img\">\n", height, height
    print "<title>The first seconds of a copy</title>"
    print "<style>text{font:11px sans-serif;fill:#444}.login{fill:#b8b8b8}.held{fill:#e0c080}.window{fill:#2a7f62}.line{stroke:#888;stroke-width:.5}@media (prefers-color-scheme:dark){text{fill:#ccc}.login{fill:#777}}</style>"
    for (c = 1; c <= most; c++) {
        base = c * row
        printf "<text x=\"8\" y=\"%d\">%d</text>\n", base, c
        for (i = 1; i < k[c]; i++) {
            if (kind[c, i + 1] == "closed") break
            x = left + width * kt[c, i] / end; to = left + width * kt[c, i + 1] / end
            wide = to - x - 1
            if (wide < 0.5) wide = 0.5
            class = kind[c, i] == "held" ? "held" : "login"
            printf "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"8\" class=\"%s\"><title>%s to %s</title></rect>\n", x, base - 8, wide, class, kind[c, i], kind[c, i + 1]
        }
        if (n[c]) {
            path = sprintf("M%.1f %d", left + width * t[c, 1] / end, base)
            for (i = 1; i <= n[c]; i++) {
                y = base - (row - 8) * (w[c, i] > 0 ? log(1 + w[c, i] / 14480) / log(1 + widest / 14480) : 0)
                x = left + width * t[c, i] / end
                path = path sprintf("L%.1f %.1f", x, y)
            }
            path = path sprintf("L%.1f %dZ", left + width * t[c, n[c]] / end, base)
            printf "<path d=\"%s\" class=\"window\"/>\n", path
        }
    }
    base = (most + 1) * row
    for (i = 1; i <= files && i <= 8; i++) {
        x = left + width * when[i] / end
        printf "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"20\" y2=\"%d\" class=\"line\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"end\">%s</text>\n", x, x, base, x, base + 12 * (i % 2), state[i]
    }
    for (s = 0; s <= end; s += 0.25)
        printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.2f s</text>\n", left + width * s / end, base + 34, s
    printf "<text x=\"8\" y=\"%d\">%s</text>\n</svg>\n", base + 52, text(caption)
}'
