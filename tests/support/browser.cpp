// Threads: as browser.h.
#include "tests/support/browser.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace weir::tests {

bool has_browser() {
  return !std::getenv("WEIR_CHECK_RACES") && std::system("command -v chromium > /dev/null 2>&1") == 0;
}

std::string in_browser(std::string page, std::string const& script, char const* name, bool picture, int width,
                       int height) {
  auto const folder = std::filesystem::temp_directory_path() / ("weir_page_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::size_t const body = page.find("<body>");
  page.insert(body + 6,
              "<script>const failures = []; addEventListener('error', e => failures.push(e.message + ' at line ' + "
              "e.lineno));</script>");
  page.insert(page.rfind("</body>"), "<pre id='answer'></pre><script>\n" + script + "\n</script>");
  auto const file = folder / (std::string(name) + ".html");
  std::ofstream(file, std::ios::binary) << page;
  std::string const command =
      "chromium --headless --no-sandbox --disable-gpu --virtual-time-budget=20000 --window-size=" +
      std::to_string(width) + ',' + std::to_string(height) + " --user-data-dir=" + (folder / "profile").string() +
      (picture ? " --screenshot=" + (folder / name).string() + ".png" : std::string(" --dump-dom")) + " file://" +
      file.string() + " 2> " + (folder / "log").string();
  std::string out;
  if (FILE* const pipe = popen(command.c_str(), "r")) {
    char part[4096];
    while (std::size_t const n = std::fread(part, 1, sizeof part, pipe))
      out.append(part, n);
    pclose(pipe);
  }
  std::size_t const from = out.find("<pre id=\"answer\">"), to = out.find("</pre>", from);
  if (!std::getenv("WEIR_TEST_KEEP"))
    std::filesystem::remove_all(folder);
  return from == out.npos ? "no answer" : out.substr(from + 17, to - from - 17);
}

std::string told_by(std::string page, std::string const& expression, char const* name, int width, int height) {
  std::string const script = "try { document.getElementById('answer').textContent = failures.join() + (" + expression +
                             "); } catch (e) { document.getElementById('answer').textContent = e.stack; }";
  return in_browser(std::move(page), script, name, false, width, height);
}

}  // namespace weir::tests
