# An MLP of two matrices in tensor slices. Input: lockstep-explain tensor.
/^tensor parallelism/ {
  slices = $3
  ranks = $6
  width = $(NF - 3)
}
/^rank .*up: columns of/ {
  match($0, /up: columns of [0-9]+/)
  columns = substr($0, RSTART + 15, RLENGTH - 15)
}
$1 ~ /^[0-9]+$/ && columns && !done {
  up[$1] = $(NF - 1)
  down[$1] = $NF
}
/^A rank has/ { done = 1 }
/^Each all-reduce is of/ {
  match($0, /[0-9]+ numbers/)
  numbers = substr($0, RSTART) + 0
  match($0, /[0-9]+ of them/)
  sent = substr($0, RSTART) + 0
}

# The part of a matrix that a rank has is coloured; boundaries of slices are drawn.
function matrix(x, y, is_column, range, colour,    ends, i, size) {
  split(range, ends, "-")
  size = 128 / slices
  for (i = 0; i < slices; ++i) {
    is_own = i * columns / slices >= ends[1] && i * columns / slices <= ends[2]
    box(x + (is_column ? i * size : 0), y + (is_column ? 0 : i * size), is_column ? size : 32, is_column ? 32 : size,
      is_own ? colour : "#fff", "slice " i)
  }
}

END {
  if (ranks != 2 || !columns || !numbers || !sent) fail("tensor: two ranks are drawn")
  split("#8ccbf0,#f2b950", colours, ",")
  begin_svg(486, 382, "Tensor parallelism: an MLP in " slices " tensor slices on " ranks " ranks",
    "Each rank has some columns of the first matrix and the same rows of the second one, and computes a term of the " \
    "output; an all-reduce adds the terms.")
  label(124, 16, "up: columns", "c b")
  label(272, 16, "down: rows", "c b")
  for (rank = 0; rank < ranks; ++rank) {
    y = 108 + rank * 182
    label(4, y - 8, "rank " rank)
    label(4, y + 18, "whole x")
    arrow(8, y, 58, y, "#666")
    matrix(60, y - 16, 1, up[rank], colours[rank + 1])
    label(124, y - 24, up[rank], "c")
    label(124, y + 34, width " x " columns, "c")
    arrow(190, y, 254, y, "#666")
    label(220, y - 8, "gelu", "c")
    matrix(256, y - 64, 0, down[rank], colours[rank + 1])
    label(272, y - 72, down[rank], "c")
    label(272, y + 80, columns " x " width, "c")
    arrow(290, y, 350, y, "#666")
    label(320, y - 8, "term", "c")
  }
  box(352, 44, 92, 310, "#fff", "all-reduce")
  split("all-reduce|adds the|terms, each|of " numbers "|numbers;|a rank sends|" sent, words, "|")
  for (i = 1; i <= 7; ++i) label(398, 126 + 20 * i, words[i], i == 1 ? "c b" : "c")
  arrow(446, 199, 478, 199, "#666")
  label(459, 190, "y", "c")
  end_svg()
}
