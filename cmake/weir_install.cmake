# Installs the headers, the library, and the package for find_package(weir).
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weir)
install(TARGETS weir EXPORT weir-targets FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT weir-targets NAMESPACE weir:: DESTINATION ${package_dir})
configure_package_config_file(cmake/weir-config.cmake.in ${PROJECT_BINARY_DIR}/weir-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/weir-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weir-config.cmake ${PROJECT_BINARY_DIR}/weir-config-version.cmake
  cmake/weir_cuda.cmake cmake/weir_cblas.cmake cmake/weir_kernels.cmake DESTINATION ${package_dir})
