# Drawings of pages of lockstep-explain, one below the other. Input: lines "drawing CAPTION", with an <svg> after each.
/^drawing / {
  caption = substr($0, 9)
  next
}
/<svg / {
  match($0, /viewBox='[^']*'/)
  split(substr($0, RSTART + 9, RLENGTH - 10), size, " ")
  if (size[3] > width) width = size[3]
  if (caption != "") body = body "<text x='4' y='" height + 16 "' class='b'>" escaped(caption) "</text>\n"
  if (caption != "") height += 26
  body = body "<g transform='translate(0 " height ")'>\n"
  height += size[4] + 8
  next
}
{
  sub(/<\/figure>/, "")
  sub(/<\/svg>/, "</g>")
  gsub(/var\(--blue\)/, "#0072b2")
  gsub(/var\(--red\)/, "#d55e00")
  gsub(/var\(--ink\)/, "#111")
  gsub(/var\(--line\)/, "#999")
  if ($0 != "") body = body $0 "\n"
}
END {
  if (!width) fail(title ": no drawing")
  begin_svg(width, height, title, description)
  printf "%s", body
  end_svg()
}
