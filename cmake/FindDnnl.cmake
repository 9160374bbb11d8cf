# FindDnnl.cmake - oneDNN as the target Dnnl::dnnl.
#
# In place of the package's own dnnl-config.cmake: Debian's asks for the OpenCL
# headers, which nobody here has a use for. Installed beside the runtime, whose
# users find oneDNN in the same way. With it comes the library that it takes its
# threads from, which the runtime tells to leave it with one.

find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
mark_as_advanced(DNNL_INCLUDE_DIR DNNL_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Dnnl REQUIRED_VARS DNNL_LIBRARY DNNL_INCLUDE_DIR)

if(Dnnl_FOUND AND NOT TARGET Dnnl::dnnl)
  add_library(Dnnl::dnnl UNKNOWN IMPORTED)
  set_target_properties(Dnnl::dnnl PROPERTIES
    IMPORTED_LOCATION "${DNNL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${DNNL_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES gomp)
endif()
