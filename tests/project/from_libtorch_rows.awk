# Makes one C++ program of the tables in docs/from_libtorch.md: the fenced block that includes `header`, and a function
# per row with the code of its column (1: LibTorch, 2: Lockstep), statement by statement. Errors name the line of the
# page.
#   awk -v column=2 -v header=lockstep/lockstep.h -f from_libtorch_rows.awk from_libtorch.md
function complain(text) { print FILENAME ":" FNR ": " text > "/dev/stderr"; failed = 1 }

/^```/ {
  if (fenced && block ~ "include <" header ">") prelude = block
  fenced = !fenced
  block = "#line " FNR + 1 " \"" FILENAME "\"\n"
  next
}
fenced { block = block $0 "\n"; next }
/^\| LibTorch \| Lockstep \| what differs \|$/ || /^\|---/ { next }
/^\|/ {
  if (split($0, cells, "|") != 5) { complain("a row has three cells"); next }
  cell = cells[column + 1]
  body = ""
  for (rest = cell; match(rest, /`[^`]+`/); rest = substr(rest, RSTART + RLENGTH)) {
    code = substr(rest, RSTART + 1, RLENGTH - 2)
    if (code ~ /^#/) top = top code "\n"
    else body = body " " code ";"
    spans++
  }
  if (cell !~ /`/ && cell !~ /^ not there/) complain("a cell has code or says that it is \"not there\"")
  rows = rows "#line " FNR " \"" FILENAME "\"\nvoid row_" FNR "() {" body " }\n"
  count++
}
END {
  if (!prelude) { print "no block includes " header > "/dev/stderr"; failed = 1 }
  if (failed) exit 1
  print count " rows, " spans " pieces of code" > "/dev/stderr"
  printf "%s%s%s", top, prelude, rows
}
