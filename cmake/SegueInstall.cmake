# SegueInstall.cmake - what `cmake --install build --component runtime` puts
# into a prefix: the libraries of the runtime, its headers as they lie in
# runtime/include, and what find_package(SegueRuntime) reads. Nothing of the
# compiler: the two share files and no code.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/SegueRuntime")

install(TARGETS SegueCollectives SegueCuda SegueDisk SegueEngine SegueLoops SegueNccl SeguePrecision SegueReports SegueRuntime SegueSigning SegueSlabBuilder SegueSquareQ
  EXPORT SegueRuntimeTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
if(TARGET SegueMPI)
  install(TARGETS SegueMPI LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/runtime/include/segue"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT runtime
  FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE"
  DESTINATION "${CMAKE_INSTALL_DATAROOTDIR}/doc/SegueRuntime" COMPONENT runtime)

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/SegueRuntimeConfig.cmake.in" "${CMAKE_CURRENT_BINARY_DIR}/SegueRuntimeConfig.cmake"
  INSTALL_DESTINATION "${package_dir}"
  NO_SET_AND_CHECK_MACRO)
# Until 1.0, the minor version is where the interface changes.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/SegueRuntimeConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/SegueRuntimeConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/SegueRuntimeConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindDnnl.cmake"
  DESTINATION "${package_dir}" COMPONENT runtime)
install(EXPORT SegueRuntimeTargets NAMESPACE SegueRuntime:: DESTINATION "${package_dir}" COMPONENT runtime)
