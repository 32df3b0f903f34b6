# libweir_system_calls.so: tells the race checker of the program's system calls. A program links weir::system_calls, or
# is started with LD_PRELOAD: production programs keep the system's own functions.
# Sanitizers take the same functions, and their programs have none of it.
add_library(weir_system_calls SHARED interop/system_calls/system_calls.cpp)
weir_own_code(weir_system_calls)
set_target_properties(weir_system_calls PROPERTIES EXPORT_NAME system_calls
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
# Checked variants of the headers would define the functions inline.
target_compile_options(weir_system_calls PRIVATE -U_FORTIFY_SOURCE)
target_include_directories(weir_system_calls PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(weir_system_calls PRIVATE ${CMAKE_DL_LIBS})
target_link_options(weir_system_calls PRIVATE LINKER:-z,defs
  INTERFACE LINKER:-u,weir_watch_system_calls)  # else a linker may drop what no source names
add_library(weir::system_calls ALIAS weir_system_calls)
