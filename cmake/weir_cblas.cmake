# Defines weir::cblas for matrix products on the host: any library with <cblas.h>, OpenBLAS first.
# Used by weir's own build and by the installed package.
if(NOT TARGET weir::cblas)
  find_path(WEIR_CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas-pthread openblas ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread)
  find_library(WEIR_CBLAS_LIBRARY NAMES openblas cblas blas PATH_SUFFIXES openblas-pthread)
  mark_as_advanced(WEIR_CBLAS_INCLUDE_DIR WEIR_CBLAS_LIBRARY)
  if(WEIR_CBLAS_INCLUDE_DIR AND WEIR_CBLAS_LIBRARY)
    add_library(weir::cblas UNKNOWN IMPORTED)
    set_target_properties(weir::cblas PROPERTIES
      IMPORTED_LOCATION ${WEIR_CBLAS_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${WEIR_CBLAS_INCLUDE_DIR})
  else()
    message(FATAL_ERROR "weir: no CBLAS was found (header cblas.h and a library). On Debian and Ubuntu: apt-get install libopenblas-dev")
  endif()
endif()
