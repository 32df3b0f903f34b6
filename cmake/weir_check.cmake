# libweir_check.so: the race checker for programs that do not use weir. `weir check` has CUDA load it.
# It holds a copy of weir whose names stay its own.
add_library(weir_check SHARED interop/check/check.cpp)
weir_own_code(weir_check)
set_target_properties(weir_check PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_include_directories(weir_check PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(weir_check PRIVATE weir::weir)
target_link_options(weir_check PRIVATE LINKER:-z,defs)
