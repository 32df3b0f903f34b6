// A page in headless Chromium. Threads: one.
#pragma once
#include <string>

namespace weir::tests {

// Whether Chromium is on the PATH. Not under the checker, because tests of pages use no machine.
bool has_browser();
// Returns: what `script` wrote into the element `answer`, and "no answer" if there is none. `failures` is an
// array with the errors of the page so far. name: of the page's file. WEIR_TEST_KEEP=1 keeps it.
// picture: writes a screenshot beside it instead. width, height: of the window, in pixels.
std::string in_browser(std::string page, std::string const& script, char const* name, bool picture = false,
                       int width = 1440, int height = 1000);
// Returns: the value of an expression of JavaScript as text, behind the errors of the page.
std::string told_by(std::string page, std::string const& expression, char const* name, int width = 1440,
                    int height = 1000);

}  // namespace weir::tests
