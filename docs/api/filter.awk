# Doxygen's INPUT_FILTER: converts the headers' plain comments to documentation. Prints one line for each input line, so
# that Doxygen's warnings name the right lines. docs/Doxyfile has the rules.

# Comments are plain text: escapes the characters of Doxygen's commands and tags, except between backticks.
function plain(text,    parts, count, i, out) {
  count = split(text, parts, "`")
  for (i = 1; i <= count; ++i) {
    if (i % 2 == 1) gsub(/[\\@<>#&]/, "\\\\&", parts[i])
    out = out (i > 1 ? "`" : "") parts[i]
  }
  return out
}

# Splits "int a, b;" into two declarations: Doxygen would assign the comment to only one of them.
function declarators(code, comment,    parts, count, i, type, first, out) {
  sub(/;$/, "", code)
  count = split(code, parts, ", ")
  match(parts[1], /^ *[^ ]+ /)
  type = substr(parts[1], 1, RLENGTH)
  first = substr(parts[1], RLENGTH + 1)
  sub(/ .*/, "", first)
  out = comment == "" ? parts[1] ";" : "/** " comment " */ " parts[1] ";"
  for (i = 2; i <= count; ++i) out = out " /** " (comment == "" ? "See " first "." : comment) " */ " type parts[i] ";"
  return out
}

FNR == 1 {
  match(FILENAME, /(parallel\/)?[^\/]*\/[^\/]*$/)
  file = substr(FILENAME, RSTART)
  module = file
  sub(/\/.*/, "", module)
}
{
  sub(/ *\/\/ NOLINT.*/, "")
}

/^#pragma once/ { print "/// \\file"; next }
/^namespace lockstep[a-z:]* \{/ { print $0 " /** \\addtogroup " module " */ /** @{ */"; next }
/^\}  \/\/ namespace lockstep/ { print "/** @} */ }"; next }
/^ *\/\/ ---/ {
  match($0, /^ */)
  indent = RLENGTH
  section = $0
  gsub(/^ *\/\/ -+ *| *-+$/, "", section)
  if (section !~ /[:(]/) section = ""
  print ""
  next
}
/^ *\/\// {
  text = $0
  sub(/^ *\/\//, "", text)
  text = text ~ /^  / ? "    " text : plain(text)
  if (text ~ /head of this file/) text = text " \\copydetails " file
  print "///" text
  commented = 1
  next
}
/^ *$/ { commented = 0; section = ""; print; next }
{
  code = $0
  comment = ""
  at = index($0, "  // ")
  if (at) {
    code = substr($0, 1, at - 1)
    sub(/ +$/, "", code)
    comment = plain(substr($0, at + 5))
  }
  if (match(code, /^ *(class|struct) [A-Za-z0-9]+/)) {
    type = substr(code, RSTART, RLENGTH)
    sub(/.* /, "", type)
  }
  documented = commented || comment != ""
  if (!documented && code ~ /^struct [A-Za-z0-9]+Options \{/) {
    sub(/Options$/, "", type)
    code = "/** Options of " type ". */ " code
    type = ""
  }
  if (!documented && code ~ /= (default|delete);$|^ *(virtual )?~.*[;}]$/) { print ""; next }
  if (!documented && code ~ /^ *(virtual )?~/) code = "/** Ends it. */ " code
  name = ""
  if (code !~ /^ *(return|if|for|while)/ && match(code, /(operator[^A-Za-z]*|[A-Za-z_0-9]+)\(/)) name = substr(code, RSTART, RLENGTH - 1)
  if (!documented && name != "" && name == previous) code = "/** \\overload */ " code
  else if (!documented && name != "" && name == type) code = "/** See the class. */ " code
  else if (!documented && name != "" && section != "" && match($0, /^ */) && RLENGTH == indent) code = "/** " plain(section) " */ " code
  if (name != "") previous = name
  if (code ~ /^ *[A-Za-z][A-Za-z0-9:_]* [a-z_0-9]+( = [^,(]+)?(, [a-z_0-9]+( = [^,(]+)?)+;$/) {
    code = declarators(code, comment)
    comment = ""
  }
  if (comment != "") code = code ~ /\{$/ ? "/** " comment " */ " code : code "  ///< " comment
  print code
  if (code !~ /^ *template|^ *requires/) commented = 0
}
