# EmbedPages.cmake - pages of dialects as C++. Called with -DOUTPUT=file.cpp and -DPAGES=a.md|b.md.

string(REPLACE "|" ";" PAGES "${PAGES}")
set(text "// Made of the reference of the dialects, which mlir-tblgen makes.\n#include \"DialectPages.h\"\nnamespace segue::tool {\nconst char *const dialectPages[] = {\n")
foreach(page ${PAGES})
  file(READ "${page}" content)
  string(APPEND text "R\"page(${content})page\",\n")
endforeach()
file(WRITE "${OUTPUT}" "${text}nullptr};\n} // namespace segue::tool\n")
