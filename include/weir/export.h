// weir/export.h: which names libweir.so exports: those of a namespace block or declaration marked WEIR_API.
// Used by every public header; C99 and C++. Compile weir itself with -fvisibility=hidden.
#pragma once
#if defined(__GNUC__)
#define WEIR_API __attribute__((visibility("default")))
#define WEIR_LOCAL __attribute__((visibility("hidden")))  // the insides of an exported class
#else
#define WEIR_API
#define WEIR_LOCAL
#endif
