# Applies a page of docs/adding: awk -v tree=FOLDER -v programs=FOLDER -f apply_page.awk PAGE. The comment above a code
# block names its destination:
#   <!-- file: PATH -->                 a new file of the tree
#   <!-- append: PATH -->               at the end of a file
#   <!-- before: PATH "TEXT" -->        above the only line that contains TEXT; `after` below it
#   <!-- header: NAME -->, <!-- program: NAME -->   files of a user
function fail(message) {
  print FILENAME ":" FNR ": " message
  failed = 1
  exit 1
}

function put(    line, path, count, i, lines, found, at) {
  path = (kind == "header" || kind == "program" ? programs : tree) "/" target
  for (count = 0; (getline line < path) > 0;) lines[++count] = line
  close(path)
  if (kind == "append" || kind == "before" || kind == "after") {
    if (!count) fail("there is no " target)
  } else {
    if (count) fail(target " is there already")
    printf "%s", block > path
    close(path)
    return
  }
  for (i = 1; i <= count; ++i) {
    if (kind != "append" && index(lines[i], text)) {
      ++found
      at = i
    }
  }
  if (kind != "append" && found != 1) fail(target " has " found + 0 " lines with: " text)
  printf "" > path
  for (i = 1; i <= count; ++i) {
    if (kind == "before" && i == at) printf "%s", block > path
    print lines[i] > path
    if (kind == "after" && i == at) printf "%s", block > path
  }
  if (kind == "append") printf "%s", block > path
  close(path)
}

/^<!-- (file|append|before|after|header|program): / {
  kind = substr($2, 1, length($2) - 1)
  target = $3
  text = $0
  sub(/^[^"]*"/, "", text)
  sub(/" -->$/, "", text)
  next
}
/^```/ && inside {
  inside = 0
  put()
  ++blocks
  kind = ""
  next
}
/^```/ && kind != "" {
  inside = 1
  block = ""
  next
}
inside { block = block $0 "\n" }
END {
  if (!failed && !blocks) {
    print FILENAME ": no code block says where it belongs"
    exit 1
  }
}
