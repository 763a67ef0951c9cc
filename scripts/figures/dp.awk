# The copies of a DataParallel step. Input: the events of the step, as --explain prints them.
match($0, /cpu:[0-9]+ sends cpu:[0-9]+ .*: [0-9]+ B/) {
  split(substr($0, RSTART, RLENGTH), words, " ")
  from = substr(words[1], 5)
  to = substr(words[3], 5)
  what = /parameters/ ? 1 : /micro-batch/ ? 2 : /outputs/ ? 3 : /gradient of the loss/ ? 4 : 5
  device = from + to  # one of them is 0
  bytes[device, what] = substr($0, RSTART, RLENGTH)
  sub(/.*: /, "", bytes[device, what])
  if (device > devices) devices = device
  if (what == 1 || what == 5) through += bytes[device, what]
}
END {
  split("parameters,micro-batch,outputs,gradient of the loss,gradients", names, ",")
  if (!devices) fail("dp: no copies")
  row = 122
  begin_svg(480, 10 + row * devices + 28, "DataParallel: all copies of a step begin or end at cpu:0",
    "cpu:0 sends each other device parameters and a micro-batch, receives outputs, sends the gradient of the loss, " \
    "and receives gradients.")
  box(8, 8, 130, row * devices - 10, "#8ccbf0", "cpu:0")
  label(73, 34, "cpu:0", "c b")
  label(73, row * devices / 2 - 8, "computes the loss,", "c")
  label(73, row * devices / 2 + 10, "adds gradients,", "c")
  label(73, row * devices / 2 + 28, "updates", "c")
  label(73, row * devices / 2 + 46, "parameters", "c")
  for (device = 1; device <= devices; ++device) {
    top = 8 + row * (device - 1)
    box(376, top, 96, row - 10, "#c8c8c8", "cpu:" device)
    label(424, top + 26, "cpu:" device, "c b")
    label(424, top + 58, "forward,", "c")
    label(424, top + 76, "backward", "c")
    for (what = 1; what <= 5; ++what) {
      if (!((device, what) in bytes)) fail("dp: cpu:" device " has no copy of " names[what])
      colour = what == 1 ? "#0072b2" : what == 5 ? "#d55e00" : "#666"
      y = top - 2 + 22 * what
      if (what == 3 || what == 5) arrow(374, y, 140, y, colour)
      else arrow(140, y, 374, y, colour)
      label(257, y - 5, names[what] ", " bytes[device, what], "c")
    }
  }
  label(240, 10 + row * devices + 16, "Parameters and gradients together: " through " B, all through cpu:0", "c b")
  end_svg()
}
