# The tiles of causal attention, and what a step keeps. Input: attention_memory; tokens and side (of a tile) are set.
{
  kept[/by tiles/ ? "tiles" : "composed", /recomputed/ ? "recomputed" : "kept"] = $0
}

function megabytes(line) {
  sub(/.*: */, "", line)
  sub(/ .*/, "", line)
  return line
}

function bar(y, text, line,    size) {
  size = megabytes(line)
  label(8, y, text)
  box(190, y - 13, size * 220 / megabytes(kept["composed", "kept"]), 17, "#8ccbf0", text)
  label(196 + size * 220 / megabytes(kept["composed", "kept"]), y, size " MB")
}

END {
  if (NR != 4 || !side || tokens % side) fail("tiles: expected four lines of attention_memory")
  count = tokens / side
  cell = 208 / count
  begin_svg(490, 340, "Attention by tiles: which tiles are computed, and what forward keeps",
    "The tiles whose keys all come after their queries are skipped. Composed attention keeps the softmax of all " \
    "scores, attention by tiles keeps none of it.")
  label(150, 16, tokens " keys", "c")
  label(8, 124, tokens)
  label(8, 140, "queries")
  for (query = 0; query < count; ++query)
    for (key = 0; key < count; ++key) {
      computed += key <= query
      box(62 + key * cell, 24 + query * cell, cell, cell, key < query ? "#8ccbf0" : key == query ? "#f2b950" : "#fff",
        "queries " query * side " to " (query + 1) * side - 1 ", keys " key * side " to " (key + 1) * side - 1)
    }
  label(290, 44, "a tile: " side " x " side " scores", "b")
  legend(290, 74, "#8ccbf0", "computed")
  legend(290, 98, "#f2b950", "computed, with mask")
  legend(290, 122, "#fff", "skipped")
  label(290, 152, computed " of " count * count " are computed")
  label(8, 264, "After forward of four blocks", "b")
  bar(288, "composed", kept["composed", "kept"])
  bar(310, "by tiles", kept["tiles", "kept"])
  bar(332, "by tiles, recomputed", kept["tiles", "recomputed"])
  end_svg()
}
