# A step of DDP, with and without overlap. Input: a profile, then lockstep-explain scaling without and with overlap.
FNR == 1 { ++file }
function number(key) {
  match($0, "\"" key "\": [0-9]+")
  return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) / 1000
}
file == 1 && /forward_us/ {
  forward = number("forward_us")
  optimizer = number("optimizer_us")
}
file == 1 && /backward_us/ {
  backward[buckets + 0] = number("backward_us")
  bytes[buckets++] = number("bytes")
}
file > 1 && $2 == "|" {
  step[file] = $8
  exposed[file] = $9
}

function row(top, title, overlap,    i, x, at, reduced) {
  label(8, top, title, "b")
  label(8, top + 24, "computes")
  label(8, top + 52, "all-reduce")
  at = forward
  box(left, top + 8, forward * scale, 24, "#8ccbf0", "forward")
  for (i = 0; i < buckets; ++i) {
    box(left + at * scale, top + 8, backward[i] * scale, 24, "#f2b950", "backward, bucket " i)
    label(left + (at + backward[i] / 2) * scale, top + 25, i, "c")
    ready[i] = at += backward[i]
  }
  reduced = overlap ? 0 : at
  for (i = 0; i < buckets; ++i) {
    if (reduced < ready[i]) reduced = ready[i]
    x = left + reduced * scale
    box(x, top + 36, each * scale, 24, "#7accac", "all-reduce of bucket " i)
    label(x + each * scale / 2, top + 53, i, "c")
    reduced += each
  }
  box(left + reduced * scale, top + 8, optimizer * scale, 24, "#c8c8c8", "optimizer")
  at = reduced + optimizer - step[2 + overlap]
  if (at > 0.001 || at < -0.001) fail("buckets: the drawing does not end with the step of " step[2 + overlap] " ms")
}

END {
  for (i = 1; i < buckets; ++i) if (bytes[i] != bytes[0]) fail("buckets: not all have the same size")
  if (!(3 in step)) fail("buckets: no steps")
  left = 84
  scale = 380 / step[2]
  each = exposed[2] / buckets
  begin_svg(480, 232, "Buckets of DDP: the all-reduce during backward and after it",
    "Without overlap the all-reduces of the buckets begin after backward; with overlap each begins when its bucket " \
    "is complete.")
  for (at = 0; at <= step[2]; at += 4) {
    printf "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"22\" y2=\"176\"/>\n", left + at * scale, left + at * scale
    label(left + at * scale, 192, at " ms", "c")
  }
  row(18, "without overlap: " step[2] " ms, of which " exposed[2] " are exposed", 0)
  row(108, "with overlap: " step[3] " ms, of which " exposed[3] " are exposed", 1)
  x = legend(8, 220, "#8ccbf0", "forward")
  x = legend(x, 220, "#f2b950", "backward")
  x = legend(x, 220, "#7accac", "all-reduce")
  legend(x, 220, "#c8c8c8", "optimizer")
  end_svg()
}
