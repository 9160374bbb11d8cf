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
endif()
find_program(SEGUE_MOLD mold)
if(SEGUE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Warnings are errors in our own code.
add_compile_options(-Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-restrict) # false alarms on std::string, GCC PR 105329
endif()

if(SEGUE_SANITIZE)
  string(REPLACE ";" "," sanitizers "${SEGUE_SANITIZE}")
  # GCC gives false alarms on instrumented code: there, warnings stay warnings.
  add_compile_options(-fsanitize=${sanitizers} -fno-omit-frame-pointer -g1 -Wno-error)
  add_link_options(-fsanitize=${sanitizers})
endif()
if(SEGUE_BUILD_FUZZERS AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Coverage, which steers libFuzzer.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

if(SEGUE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  enable_testing()
endif()
