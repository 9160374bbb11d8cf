# SegueMLIR.cmake - finds LLVM, MLIR and lld 22 and says how our libraries use
# them: all link the two shared libraries MLIR and LLVM and nothing else of it
# (docs/decisions.md).

find_package(MLIR 22.1 REQUIRED CONFIG PATHS /usr/lib/llvm-22)
find_package(LLD REQUIRED CONFIG PATHS /usr/lib/llvm-22)
list(APPEND CMAKE_MODULE_PATH "${MLIR_CMAKE_DIR}" "${LLVM_CMAKE_DIR}")
include(TableGen)
include(AddLLVM)
include(AddMLIR)

# For tablegen and everything after it; ours before the packages'.
include_directories("${PROJECT_SOURCE_DIR}/include" "${PROJECT_BINARY_DIR}/include")
include_directories(SYSTEM ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
separate_arguments(SEGUE_LLVM_DEFINITIONS NATIVE_COMMAND "${LLVM_DEFINITIONS}")

# All generated headers: libraries of the compiler wait for it.
add_custom_target(segue-headers)

# All generated pages of docs/: `make docs` builds it.
add_custom_target(segue-doc)

# segue_add_library(name sources... [LINK_LIBS libs...] [ALONE sources...])
# A library of the compiler. ALONE: see segue_unity. A compile spends its time in LLVM: ours is built at -O1, which takes a
# quarter of the time less than -O3, and no model takes longer to compile. GCC sees values there that may not be set, which
# it knows better of at -O3.
function(segue_add_library name)
  cmake_parse_arguments(ARG "" "" "LINK_LIBS;ALONE" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS} ${ARG_ALONE})
  segue_unity(${name} ALONE ${ARG_ALONE})
  target_compile_options(${name} PRIVATE "$<$<CONFIG:Release>:-O1;-Wno-maybe-uninitialized>")
  add_dependencies(${name} segue-headers)
  separate_arguments(definitions NATIVE_COMMAND "${LLVM_DEFINITIONS}")
  target_compile_definitions(${name} PUBLIC ${definitions})
  target_link_libraries(${name} PUBLIC ${ARG_LINK_LIBS} MLIR LLVM)
endfunction()

# segue_add_tool(name sources... [LINK_LIBS libs...])
# A program in build/bin.
function(segue_add_tool name)
  cmake_parse_arguments(ARG "" "" "LINK_LIBS" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  target_link_libraries(${name} PRIVATE ${ARG_LINK_LIBS})
endfunction()

# segue_add_dialect_doc(name ops.td dialect)
# Writes docs/dialects/<name>.md of the build tree from an ops file.
function(segue_add_dialect_doc name file dialect)
  set(LLVM_TARGET_DEFINITIONS ${file})
  mlir_tablegen(${name}.md -gen-dialect-doc -dialect=${dialect})
  add_public_tablegen_target(${name}DocGen)
  add_custom_command(TARGET ${name}DocGen POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory "${PROJECT_BINARY_DIR}/docs"
    COMMAND ${CMAKE_COMMAND} -E copy "${CMAKE_CURRENT_BINARY_DIR}/${name}.md" "${PROJECT_BINARY_DIR}/docs/${name}.md")
  add_dependencies(segue-doc ${name}DocGen)
endfunction()

# segue_add_pass_doc(name passes.td)
# The same for a file of passes.
function(segue_add_pass_doc name file)
  set(LLVM_TARGET_DEFINITIONS ${file})
  mlir_tablegen(${name}.md -gen-pass-doc)
  add_public_tablegen_target(${name}DocGen)
  add_custom_command(TARGET ${name}DocGen POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory "${PROJECT_BINARY_DIR}/docs"
    COMMAND ${CMAKE_COMMAND} -E copy "${CMAKE_CURRENT_BINARY_DIR}/${name}.md" "${PROJECT_BINARY_DIR}/docs/${name}.md")
  add_dependencies(segue-doc ${name}DocGen)
endfunction()
