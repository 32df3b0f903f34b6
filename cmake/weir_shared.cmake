# libweir.so: the objects of the static library, linked whole. It exports what include/weir declares (weir/export.h) and no more.
# A program and its plugins share one runtime if each links weir::shared.
add_library(weir_shared SHARED ${headers})
set_target_properties(weir_shared PROPERTIES OUTPUT_NAME weir EXPORT_NAME shared LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINK_DEPENDS "$<TARGET_FILE:weir>;${PROJECT_SOURCE_DIR}/cmake/weir.map")
add_dependencies(weir_shared weir)
# Not target_link_libraries(weir): what links the static library hides its names.
target_link_options(weir_shared PRIVATE "LINKER:--whole-archive,$<TARGET_FILE:weir>,--no-whole-archive"
  "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/weir.map" LINKER:-Bsymbolic-functions LINKER:-z,defs)
target_compile_features(weir_shared INTERFACE cxx_std_20)
target_sources(weir_shared INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers})
target_link_libraries(weir_shared PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
if(WEIR_LINKS_CBLAS)
  target_link_libraries(weir_shared PRIVATE weir::cblas)
endif()
if(WEIR_WITH_CUDA)
  target_link_libraries(weir_shared PRIVATE CUDA::cudart_static)
endif()
add_library(weir::shared ALIAS weir_shared)
