# SegueBuild.cmake - how everything of Segue is compiled and linked.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

# ccache and a fast linker, where there are any.
find_program(SEGUE_CCACHE ccache)
if(SEGUE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER "${SEGUE_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SEGUE_CCACHE}")
  if(SEGUE_SANITIZE) # what comes after a precompiled header is not kept otherwise
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_SLOPPINESS=pch_defines,time_macros" "${SEGUE_CCACHE}")
  endif()
endif()
# lld comes with the LLVM that the compiler needs. Debian 12's mold is as fast and not usable: mold 1.10 never ends on
# some sizes of sections, and places RELRO where a program does not start.
find_program(SEGUE_LLD ld.lld HINTS /usr/lib/llvm-22/bin)
if(SEGUE_LLD)
  get_filename_component(SEGUE_LLD_FOLDER "${SEGUE_LLD}" DIRECTORY)
  add_link_options(-fuse-ld=lld "-B${SEGUE_LLD_FOLDER}") # GCC looks for its linker in the folders of -B
endif()

# Warnings are errors in our own code.
add_compile_options(-Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-restrict) # false alarms on std::string, GCC PR 105329
  # GCC collects its garbage first at 512 MiB: a tenth of the time of compiling is spent in it otherwise.
  add_compile_options("SHELL:--param ggc-min-heapsize=524288" "SHELL:--param ggc-min-expand=100")
endif()

if(SEGUE_SANITIZE)
  string(REPLACE ";" "," sanitizers "${SEGUE_SANITIZE}")
  # GCC gives false alarms on instrumented code: there, warnings stay warnings.
  add_compile_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer -g1 -Wno-error)
  add_link_options(-fsanitize=${sanitizers})
  if(sanitizers MATCHES "undefined")
    # Undefined behaviour ends the program: a fuzz target keeps the input then, a test fails.
    add_compile_options(-fno-sanitize-recover=all)
  endif()
endif()

# With clang and a sanitizer every source is compiled alike, so that headers of the standard library and of JSON, a third of the time of
# compiling, are read once for all targets that ask for them.
set(SEGUE_PRECOMPILED OFF)
if(SEGUE_SANITIZE AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(SEGUE_PRECOMPILED ON)
  find_package(nlohmann_json REQUIRED)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fPIC>")
endif()
if(SEGUE_BUILD_FUZZERS AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Coverage, which steers libFuzzer. -fsanitize=fuzzer-no-link also watches every comparison of numbers, which takes an
  # eighth of the time of compiling; strings and blocks of memory are compared by functions that libFuzzer sees without.
  add_compile_options(-fsanitize-coverage=inline-8bit-counters,pc-table)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

# Behind the options above, which a precompiled header is bound to.
if(SEGUE_PRECOMPILED)
  add_library(SeguePrecompiled OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/Precompiled.cpp")
  target_link_libraries(SeguePrecompiled PRIVATE nlohmann_json::nlohmann_json)
  target_compile_options(SeguePrecompiled PRIVATE -Xclang -fno-pch-timestamp) # ccache knows it by what is in it
  target_precompile_headers(SeguePrecompiled PRIVATE
    <algorithm> <array> <atomic> <bit> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <filesystem> <fstream> <functional>
    <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple> <unordered_map>
    <unordered_set> <utility> <variant> <vector> <nlohmann/json.hpp>)
endif()

# segue_precompiled(targets...): compiles targets, under a sanitizer, on top of the headers above.
function(segue_precompiled)
  foreach(target IN LISTS ARGN)
    if(SEGUE_PRECOMPILED)
      target_precompile_headers(${target} REUSE_FROM SeguePrecompiled)
    endif()
  endforeach()
endfunction()

# segue_unity(target [ALONE sources...] [APART sources...])
# With SEGUE_UNITY, compiles the sources of a target forty at a time: headers,
# and what templates make of them, are compiled once for all of them, and a fresh
# build takes less than half the time. Sources that share a name with a neighbour
# are compiled APART, together, or ALONE where they share names with each other.
function(segue_unity target)
  if(NOT SEGUE_UNITY)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "ALONE;APART" ${ARGN})
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_CODE_AFTER_INCLUDE "#undef DEBUG_TYPE"
    UNITY_BUILD_RELOCATABLE ON) # ccache then serves another clone as well (CMake 4)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage) # what is "included" here is no header
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(REMOVE_ITEM sources ${ARG_ALONE} ${ARG_APART})
  set(place 0)
  foreach(source IN LISTS sources)
    math(EXPR batch "${place} / 40")
    math(EXPR place "${place} + 1")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "together${batch}")
  endforeach()
  set_source_files_properties(${ARG_APART} PROPERTIES UNITY_GROUP apart)
endfunction()

# What tests compile is signed with a key that is made here, not with the user's.
set(SEGUE_TEST_DATA_HOME "${CMAKE_BINARY_DIR}/check/data")

if(SEGUE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  enable_testing()
endif()

# segue_add_unittest(name sources... [LINK_LIBS libs...] [ALONE sources...] [APART sources...] [TIMEOUT seconds] [PREFIX text] [NO_DISCOVERY])
# A program of GoogleTests, which ctest knows case by case. LINK_LIBS in place of
# the whole runtime, where a part stands alone; ALONE and APART as in segue_unity, of the
# sources named before; PREFIX: of the names of cases, where another program has some of the
# sources; NO_DISCOVERY: others run it. With -Og, tests are compiled as fast as
# without any optimisation. Without any, the runtime in them would be slow, too: of a template
# that a test and the runtime share, the linker takes the test's, which it sees first.
function(segue_add_unittest name)
  cmake_parse_arguments(ARG "NO_DISCOVERY" "TIMEOUT;PREFIX" "LINK_LIBS;ALONE;APART" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS} "${PROJECT_SOURCE_DIR}/runtime/test/TestEnvironment.cpp")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/runtime/test")
  set_property(SOURCE "${PROJECT_SOURCE_DIR}/runtime/test/TestEnvironment.cpp"
    PROPERTY COMPILE_DEFINITIONS SEGUE_TEST_DATA_HOME="${SEGUE_TEST_DATA_HOME}")
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-Og>)
  segue_unity(${name} ALONE ${ARG_ALONE} APART ${ARG_APART})
  segue_precompiled(${name})
  set_property(SOURCE "${PROJECT_SOURCE_DIR}/runtime/test/TestEnvironment.cpp" PROPERTY SKIP_PRECOMPILE_HEADERS ON) # it is small
  if(TARGET segue-headers)
    add_dependencies(${name} segue-headers)
  endif()
  if(NOT ARG_LINK_LIBS)
    set(ARG_LINK_LIBS SegueRuntime)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_LINK_LIBS} GTest::gtest_main)
  if(NOT ARG_NO_DISCOVERY)
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_PREFIX "${ARG_PREFIX}"
      PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT ASAN_OPTIONS=allocator_may_return_null=1
      # A filter that matches nothing is no success.
      FAIL_REGULAR_EXPRESSION "Running 0 tests")
  endif()
endfunction()
