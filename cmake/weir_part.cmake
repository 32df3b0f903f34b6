# weir_part_of(variable part parts): K and N of K/N, which the variable says; 0 and 1, which is all, when it is empty.
function(weir_part_of variable part parts)
  set(k 0)
  set(n 1)
  if(NOT "${${variable}}" STREQUAL "")
    set(k 1)
    if("${${variable}}" MATCHES "^([0-9]+)/([1-9][0-9]*)$")
      set(k ${CMAKE_MATCH_1})
      set(n ${CMAKE_MATCH_2})
    endif()
    if(NOT k LESS n)  # it would be none of them
      message(FATAL_ERROR "${variable} is '${${variable}}': say which of how many parts, as 0/3")
    endif()
  endif()
  set(${part} ${k} PARENT_SCOPE)
  set(${parts} ${n} PARENT_SCOPE)
endfunction()

# weir_is_of_part(variable number result): whether that number is of the part that the variable names: all whose number leaves K
# when divided by N.
function(weir_is_of_part variable number result)
  weir_part_of(${variable} part parts)
  math(EXPR left "${number} % ${parts}")
  set(${result} OFF PARENT_SCOPE)
  if(left EQUAL part)
    set(${result} ON PARENT_SCOPE)
  endif()
endfunction()
