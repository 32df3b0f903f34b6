// The matrix, its legend, and the positions of devices on PCIe.
// Threads: any.
#include "topology.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "runtime/base/os.h"

namespace weir::tool {
namespace {

struct meaning {
  char const* word;
  char const* says;
};
constexpr meaning legend[] = {
    {"X", "itself"},
    {"SYS", "PCIe and the link between NUMA nodes"},
    {"NODE", "PCIe and the link between host bridges of a NUMA node"},
    {"PHB", "PCIe and a host bridge"},
    {"PXB", "several PCIe bridges, no host bridge"},
    {"PIX", "one PCIe bridge at most"},
    {"NV#", "so many NVLinks"},
    {"SIM", "a simulated link"},
};

std::vector<std::string> parts_of(std::string const& folder) {
  std::vector<std::string> parts;
  for (auto const& part : std::filesystem::path(folder))
    parts.push_back(part.string());
  return parts;
}

std::string folder_of(device_properties const& p) {
  std::string id = p.pci_bus_id;
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::error_code none;
  auto const found =
      id.empty() ? std::filesystem::path() : std::filesystem::canonical("/sys/bus/pci/devices/" + id, none);
  return none ? "" : found.string();
}

std::string cell(peer_link const& l, std::vector<device_properties> const& all,
                 std::vector<std::string> const& folders) {
  auto const a = static_cast<size_t>(l.from.index()), b = static_cast<size_t>(l.to.index());
  if (l.by == peer_link::kind::self)
    return "X";
  if (l.by == peer_link::kind::nvlink)
    return "NV" + std::to_string(l.nvlinks);
  if (all[a].simulated)
    return l.access ? "SIM" : "SYS";
  return path_between(folders[a], all[a].numa_node, folders[b], all[b].numa_node);
}

// Formats processor numbers as "0-3,8".
std::string ranges(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1)
      ++last;
    text +=
        (text.empty() ? "" : ",") + std::to_string(numbers[i]) + (last > i ? "-" + std::to_string(numbers[last]) : "");
    i = last + 1;
  }
  return text.empty() ? "not known" : text;
}

void append(std::string& text, std::string const& word, size_t width) {
  text += word + std::string(word.size() < width ? width - word.size() : 1, ' ');
}
void end_line(std::string& text) {
  text.erase(text.find_last_not_of(' ') + 1);
  text += '\n';
}

std::string about_verified(std::vector<peer_link> const& links) {
  std::string wrong, refused, untried;
  size_t right = 0;
  for (peer_link const& l : links) {
    if (l.by == peer_link::kind::self)
      continue;
    std::string const pair = l.from.str() + " -> " + l.to.str();
    if (l.verified)
      ++right;
    else if (l.wrong)
      wrong += (wrong.empty() ? "" : ", ") + pair;
    else if (l.access)
      untried += (untried.empty() ? "" : ", ") + pair;
    else
      refused += (refused.empty() ? "" : ", ") + pair;
  }
  std::string text =
      "verified by writing and reading back: " + std::to_string(right) + (right == 1 ? " link\n" : " links\n");
  if (!wrong.empty())
    text += "NOT verified, copies go through host memory: " + wrong + "\n";
  if (!untried.empty())
    text += "not tested, the driver copies, kernels have no access: " + untried + "\n";
  if (!refused.empty())
    text += "no access, copies go through host memory: " + refused + "\n";
  return text;
}

}  // namespace

std::string path_between(std::string const& folder_a, int node_a, std::string const& folder_b, int node_b) {
  auto const a = parts_of(folder_a), b = parts_of(folder_b);
  auto const is_bus = [](std::string const& part) {
    return part.starts_with("pci") && part.find(':') != std::string::npos;
  };
  auto const differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto const bus = std::find_if(a.begin(), differ.first, is_bus);
  if (bus == differ.first)
    return node_a >= 0 && node_a == node_b ? "NODE" : "SYS";
  auto const shared_bridges = differ.first - bus - 1;
  if (shared_bridges <= 0)
    return "PHB";
  // The devices share the last bridge: each path continues with one port and the device.
  return a.end() - differ.first <= 2 && b.end() - differ.second <= 2 ? "PIX" : "PXB";
}

std::string draw(std::vector<device_properties> const& all, std::vector<peer_link> const& links) {
  constexpr size_t width = 8;
  std::vector<std::string> folders;
  for (auto const& p : all)
    folders.push_back(p.simulated ? "" : folder_of(p));
  std::string text, row;
  append(row, "", width);
  for (size_t i = 0; i < all.size(); ++i)
    append(row, "gpu:" + std::to_string(i), width);
  append(row, "processors", 20);
  row += "NUMA node";
  text = row + "\n";
  std::set<std::string> seen;
  for (size_t i = 0; i < all.size(); ++i) {
    row.clear();
    append(row, "gpu:" + std::to_string(i), width);
    for (size_t k = 0; k < all.size(); ++k) {
      peer_link const& l = links[i * all.size() + k];
      std::string const word = cell(l, all, folders);
      seen.insert(word.starts_with("NV") ? "NV#" : word);
      append(row, l.wrong ? word + "!" : word, width);
      if (l.wrong)
        seen.insert("!");
    }
    append(row, all[i].numa_node >= 0 ? ranges(os::processors_near(all[i].numa_node)) : "not known", 20);
    row += all[i].numa_node >= 0 ? std::to_string(all[i].numa_node) : "not known";
    text += row;
    end_line(text);
  }
  for (auto const& [word, says] : legend) {
    if (!seen.count(word))
      continue;
    text += "  ";
    append(text, word, 6);
    text += std::string(says) + "\n";
  }
  if (seen.count("!"))
    text += "  !     failed its test\n";
  return text + about_verified(links);
}

}  // namespace weir::tool
