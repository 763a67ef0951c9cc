# Makes ${OUTPUT}, a C++ source with the report's page: report.html with style and script in it, and a content security
# policy that allows these two, by their SHA-256, and nothing else.
file(READ ${FOLDER}/report.html page)
file(READ ${FOLDER}/report.css style)
file(READ ${FOLDER}/report.js script)
foreach(part IN ITEMS summary memory pipeline tools)
  file(READ ${FOLDER}/report_${part}.js text)
  string(REPLACE "\n// {{${part}}}\n" "${text}" script "${script}")
endforeach()

# The SHA-256 of `text` in base64, as the policy requires: three hexadecimal digits are two characters.
function(sha256_base64 text out)
  set(alphabet "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  string(SHA256 hex "${text}")
  set(base64 "")
  foreach(at RANGE 0 63 3)
    string(SUBSTRING "${hex}00" ${at} 3 digits)
    math(EXPR high "0x${digits} >> 6")
    math(EXPR low "0x${digits} & 63")
    string(SUBSTRING ${alphabet} ${high} 1 first)
    string(SUBSTRING ${alphabet} ${low} 1 second)
    string(APPEND base64 ${first}${second})
  endforeach()
  string(SUBSTRING ${base64} 0 43 base64)
  set(${out} "${base64}=" PARENT_SCOPE)
endfunction()

sha256_base64("${style}" style_hash)
sha256_base64("${script}" script_hash)
string(REPLACE "{{style}}" "${style}" page "${page}")
string(REPLACE "{{script}}" "${script}" page "${page}")
string(REPLACE "{{style-hash}}" "${style_hash}" page "${page}")
string(REPLACE "{{script-hash}}" "${script_hash}" page "${page}")

# A string literal may have 65,536 characters.
set(parts "")
string(LENGTH "${page}" length)
foreach(at RANGE 0 ${length} 8000)
  string(SUBSTRING "${page}" ${at} 8000 part)
  string(APPEND parts "  page += R\"page(${part})page\";\n")
endforeach()
file(WRITE ${OUTPUT} "// Made by tools/report/page.cmake.
#include <string>

namespace report {
std::string report_page();
std::string report_page() {
  std::string page;
${parts}  return page;
}
}  // namespace report
")
