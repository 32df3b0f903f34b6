# weir_with_libtorch(target): compiles a program with LibTorch's headers and links LibTorch.
# A function, because the package sets variables for everything that comes behind it.
function(weir_with_libtorch target)
  find_package(Torch REQUIRED)
  # What the headers declare is not weir's to warn about.
  target_include_directories(${target} SYSTEM PRIVATE ${TORCH_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE ${TORCH_LIBRARIES})
  set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
endfunction()
