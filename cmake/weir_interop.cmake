# Doors: libraries through which other programs use weir.

# PyTorch and CuPy: a library that Python loads (interop/torch). It needs no header of PyTorch.
file(GLOB door CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} interop/torch/*.cpp)
add_library(weir_torch MODULE ${door})
weir_own_code(weir_torch)
target_compile_options(weir_torch PRIVATE -fno-plt)
target_include_directories(weir_torch PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(weir_torch PRIVATE WEIR_VERSION="${PROJECT_VERSION}")
# With libweir.so a C++ extension in the process shares the pool; without it the library has a copy of weir in it.
target_link_libraries(weir_torch PRIVATE $<IF:$<TARGET_EXISTS:weir::shared>,weir::shared,weir::weir>)
set(exports ${PROJECT_SOURCE_DIR}/interop/torch/exports.map)
target_link_options(weir_torch PRIVATE LINKER:--exclude-libs,ALL LINKER:--strip-debug
  LINKER:--version-script=${exports})
set_target_properties(weir_torch PROPERTIES LINK_DEPENDS ${exports}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/interop BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
if(TARGET weir_shared)  # beside it, so that the folder can be carried to another machine
  add_custom_command(TARGET weir_torch POST_BUILD VERBATIM COMMAND ${CMAKE_STRIP} --strip-debug -o
    ${PROJECT_BINARY_DIR}/interop/$<TARGET_SONAME_FILE_NAME:weir_shared> $<TARGET_FILE:weir_shared>)
endif()
