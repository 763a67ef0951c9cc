# A mesh of three axes of size 2, as a cube. Input: lockstep-explain mesh.
$1 == "rank" { for (i = 2; i <= NF; ++i) axis[i - 1] = $i }
NF == 4 && $1 ~ /^[0-9]+$/ {
  for (i = 1; i <= 3; ++i) at[$1, i] = $(i + 1)
  ranks = ranks < $1 + 1 ? $1 + 1 : ranks
}
/\|/ {
  name = $1
  sub(/^[^ ]+ +/, "")
  groups[name] = $0
}

function x_of(rank) { return 60 + 230 * at[rank, 1] + 110 * at[rank, 3] }
function y_of(rank) { return 90 + 120 * at[rank, 2] - 56 * at[rank, 3] }

END {
  if (ranks != 8) fail("mesh: eight ranks are drawn")
  split("#d55e00,#0072b2,#009e73", colours, ",")
  begin_svg(480, 330, "A mesh of " ranks " ranks with axes " axis[1] ", " axis[2] " and " axis[3],
    "A cube with a rank at each corner. The edges of one direction connect the ranks of the groups of one axis.")
  for (rank = 0; rank < ranks; ++rank)
    for (other = rank + 1; other < ranks; ++other) {
      differing = 0
      for (i = 1; i <= 3; ++i) if (at[rank, i] != at[other, i]) differing = differing ? 4 : i
      if (differing < 4) segment(x_of(rank), y_of(rank), x_of(other), y_of(other), colours[differing])
    }
  for (rank = 0; rank < ranks; ++rank) {
    printf "<circle cx=\"%d\" cy=\"%d\" r=\"17\" fill=\"#fff\" stroke=\"#111\"/>\n", x_of(rank), y_of(rank)
    label(x_of(rank), y_of(rank) + 5, rank, "c b")
  }
  for (i = 1; i <= 3; ++i) {
    segment(40, 246 + 24 * i, 72, 246 + 24 * i, colours[i])
    label(84, 251 + 24 * i, axis[i], "b")
    label(120, 251 + 24 * i, "groups " groups[axis[i]])
  }
  end_svg()
}
