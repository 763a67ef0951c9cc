# The memory of each rank in the stages of ZeRO. Input: lockstep-explain memory.
/^memory of one of/ { ranks = $5 }
/^stage/ { stage = $2 + 0 }
/^  [PGOU] / {
  for (i = 2; $i != "B"; ++i) bytes[stage, $1] = $i
}
/^  total/ { total[stage] = $4 " " $5 }

function band(x, y, height, stage, letter, colour, rank,    whole, share, width) {
  whole = bytes[0, letter == "U" ? "P" : letter]
  share = bytes[stage, letter] / whole
  width = share > 0.9 ? cell : cell * share  # padding is too small to be seen
  if (letter != "U") box(x, y, cell, height, "#fff", "")
  if (width > 0) box(x + (share < 0.9 && letter != "U" ? rank * cell / ranks : 0), y, width, height, colour,
    "stage " stage ", rank " rank ": " bytes[stage, letter] " B")
}

END {
  if (ranks != 4 || !(3 in total)) fail("zero: four ranks and four stages are drawn")
  cell = 94
  split("DDP|ZeRO 1|ZeRO 2|ZeRO 3, FSDP", names, "|")
  begin_svg(486, 414, "ZeRO: what each of four ranks holds in stages 0 to 3",
    "Stage 0 repeats everything on each rank, stage 1 divides the optimizer's state, stage 2 also gradients, stage 3 " \
    "also parameters; stages 2 and 3 need buffers for units.")
  for (stage = 0; stage < 4; ++stage) {
    x = 56 + stage * 108
    label(x + cell / 2, 16, "stage " stage, "c b")
    label(x + cell / 2, 34, names[stage + 1], "c")
    for (rank = 0; rank < ranks; ++rank) {
      y = 44 + rank * 78
      if (stage == 0) label(4, y + 34, "rank " rank)
      band(x, y, 13, stage, "P", "#8ccbf0", rank)
      band(x, y + 15, 13, stage, "G", "#f2b950", rank)
      band(x, y + 30, 26, stage, "O", "#7accac", rank)
      band(x, y + 58, 13, stage, "U", "#c8c8c8", rank)
    }
    label(x + cell / 2, 370, total[stage], "c b")
  }
  label(4, 370, "total")
  x = legend(4, 402, "#8ccbf0", "parameters")
  x = legend(x, 402, "#f2b950", "gradients")
  x = legend(x, 402, "#7accac", "Adam's state")
  legend(x, 402, "#c8c8c8", "unit buffers")
  end_svg()
}
