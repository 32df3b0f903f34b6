# Doors: libraries through which other programs use weir.

# PyTorch and CuPy: a library that Python loads (interop/torch). It needs no header of PyTorch.
file(GLOB door CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} interop/torch/*.cpp)
add_library(weir_torch MODULE ${door})
weir_own_code(weir_torch)
target_include_directories(weir_torch PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_definitions(weir_torch PRIVATE WEIR_VERSION="${PROJECT_VERSION}")
target_link_libraries(weir_torch PRIVATE weir::weir)  # the one line that says which weir it holds
set(exports ${PROJECT_SOURCE_DIR}/interop/torch/exports.map)
target_link_options(weir_torch PRIVATE LINKER:--exclude-libs,ALL LINKER:--strip-debug
  LINKER:--version-script=${exports})
set_target_properties(weir_torch PROPERTIES LINK_DEPENDS ${exports}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/interop)
