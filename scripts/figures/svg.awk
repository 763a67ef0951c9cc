# Functions that the drawings of scripts/guide_figures.sh share. Colours are those of Okabe and Ito.
function escaped(text) {
  gsub(/&/, "\\&amp;", text)
  gsub(/</, "\\&lt;", text)
  return text
}

function begin_svg(width, height, title, description) {
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" role=\"img\">\n",
    width, height, width
  printf "<title>%s</title>\n<desc>%s</desc>\n", escaped(title), escaped(description)
  print "<style>svg{background:#fff}text{font:13px sans-serif;fill:#111}.c{text-anchor:middle}.r{text-anchor:end}" \
    ".b{font-weight:bold}rect.cell,path.out{stroke:#999}path.out{fill:none}path.in{fill:#111;stroke:#111}" \
    ".line,path.adds,path.copies{fill:none;stroke-width:2}path.adds,path.copies{stroke:#d55e00}" \
    "path.copies{stroke-dasharray:5 3}polyline{stroke-width:2}.dp{stroke:#d55e00;fill:#d55e00}" \
    ".ddp{stroke:#0072b2;fill:#0072b2}polyline.dp,polyline.ddp{fill:none}polyline.dp{stroke-dasharray:6 3}" \
    "text.dp,text.ddp{stroke:none}.ideal{stroke:#111;stroke-dasharray:2 4}.grid{stroke:#999;stroke-width:.5}</style>"
}

function end_svg() { print "</svg>" }

function label(x, y, text, class) {
  printf "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, y, class, escaped(text)
}

function box(x, y, width, height, fill, title) {
  printf "<rect class=\"cell\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\">",
    x, y, width, height, fill
  printf "<title>%s</title></rect>\n", escaped(title)
}

function segment(x1, y1, x2, y2, colour) {
  printf "<path class=\"line\" d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2, colour
}

# A line with a head, in horizontal or vertical direction.
function arrow(x1, y1, x2, y2, colour,    x, y) {
  x = x2 > x1 ? 1 : x2 < x1 ? -1 : 0
  y = y2 > y1 ? 1 : y2 < y1 ? -1 : 0
  segment(x1, y1, x2 - 6 * x, y2 - 6 * y, colour)
  printf "<path d=\"M%.1f %.1fL%.1f %.1fL%.1f %.1fz\" fill=\"%s\"/>\n", x2, y2, x2 - 8 * x - 4 * y, y2 - 8 * y - 4 * x,
    x2 - 8 * x + 4 * y, y2 - 8 * y + 4 * x, colour
}

# A coloured square and its meaning. Returns the place after it.
function legend(x, y, colour, text) {
  box(x, y - 11, 12, 12, colour, text)
  label(x + 17, y, text)
  return x + 30 + 7 * length(text)
}

function fail(message) {
  print message | "cat >&2"
  exit 1
}
