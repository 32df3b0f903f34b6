// The table of categories: sorted by a column, searched by name, and kept in place while the moment changes, so
// that the focus of the keyboard stays where it is.
const MOST_FOUND = 30;
const TOTALS = [
  ["live", "blocks that were not given back", "", (r, m) => r.live[m], "total"],
  ["pending", "given back, and another stream may still use it", "repeating-linear-gradient(135deg, var(--soft) 0 2px, transparent 2px 4px)", (r, m) => r.pending[m], ""],
  ["free", "held of the driver, in no block; what rounding leaves is in it", "var(--free)", (r, m) => r.reserved[m] - r.live[m] - r.pending[m], ""],
  ["reserved", "held of the driver: the black line", "", (r, m) => r.reserved[m], "total"],
];

// A folder may be cut to fit; a file and its line never are.
function nameParts(name) {
  const cut = name.lastIndexOf("/") + 1;
  return /:\d+$/.test(name) ? [name.slice(0, cut), name.slice(cut)] : ["", name];
}
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
const signed = bytes => (bytes < 0 ? "−" : bytes > 0 ? "+" : "") + bytesText(Math.abs(bytes));

class Legend {
  // choose(row): a row of the stack, or a key that the search found
  constructor(table, found, choose) {
    this.table = table, this.found = found, this.choose = choose;
    this.sort = "now", this.falls = true, this.search = "";
  }
  columns(stack) {
    const all = [["name", {size: "block size", line: "line of the program", stream: "stream"}[stack.by]], ["now", "now"], ["peak", "at the peak"]];
    if (stack.since) all.push(["since", "since then"]);
    return all;
  }
  sortBy(column) {
    this.falls = this.sort === column ? !this.falls : column !== "name";
    this.sort = column;
  }
  // Returns: rows to show. The search also finds lines that the chart draws among the others.
  rows(stack, moment) {
    const r = stack.recording, now = [...stack.at(moment)], peak = [...stack.at(r.peak)];
    let all = stack.names.map((name, at) => ({at, name, colour: stack.colours[at], title: stack.details[at] || name, now: now[at], peak: peak[at], since: stack.since ? stack.since[at] : 0}));
    const words = this.search.trim().toLowerCase();
    let more = 0;
    if (words) {
      const matches = name => name.toLowerCase().includes(words);
      all = all.filter(row => matches(row.name) && row.at !== stack.others);
      const inside = stack.inOthers().filter(key => matches(stack.nameOf(key)));
      const shown = inside.slice(0, MOST_FOUND), sums = stack.sumsOf(shown, moment), atPeak = stack.sumsOf(shown, r.peak);
      shown.forEach((key, i) => all.push({key, name: stack.nameOf(key), colour: stack.colours[stack.others], title: stack.nameOf(key), now: sums[i], peak: atPeak[i], since: stack.sinceOf(key)}));
      more = inside.length - shown.length;
    }
    const way = this.falls ? -1 : 1, column = this.sort;
    const value = row => row[column], most = row => Math.max(row.now, row.peak);
    const others = row => row.at !== undefined && row.at === stack.others;
    all.sort((a, b) => others(a) - others(b) || (column === "name" ? way * a.name.localeCompare(b.name, "en", {numeric: true}) : way * (value(a) - value(b))) || most(b) - most(a));
    return {all, more, words};
  }
  // `order`: the moment by which rows are sorted; `moment`: the one whose bytes are shown
  draw(stack, order, moment, chosen) {
    const columns = this.columns(stack), r = stack.recording, {all, more, words} = this.rows(stack, order);
    const key = JSON.stringify([columns, this.sort, this.falls, all.map(row => [row.at, row.key, row.name, row.title, row.colour])]);
    if (key !== this.key) this.build(columns, all), this.key = key;
    const now = moment === order ? null : stack.at(moment), keys = all.filter(row => row.key !== undefined).map(row => row.key);
    const found = now && keys.length ? stack.sumsOf(keys, moment) : [];
    all.forEach((row, i) => {
      const bytes = !now ? row.now : row.key === undefined ? now[row.at] : found[keys.indexOf(row.key)];
      this.fill(this.lines[i], [bytes, row.peak], row.since, row.at !== undefined && row.at === chosen);
    });
    TOTALS.forEach(([, , , of], i) => {
      const since = stack.since && i === 0 ? stack.sinceThen : null;
      this.fill(this.lines[all.length + i], [of(r, moment), of(r, r.peak)], since, false);
    });
    this.found.hidden = !words;
    const matches = countText(all.length) + (all.length === 1 ? " match" : " matches");
    const others = more ? ", and " + countText(more) + " with fewer bytes" : "";
    const none = "No line has “" + this.search.trim() + "” in its name.";
    text(this.found, !words ? "" : all.length ? matches + others : none);
  }
  fill(line, values, since, chosen) {
    values.forEach((bytes, i) => text(line.cells[i + 1], bytesText(bytes)));
    if (line.cells.length > 3) text(line.cells[3], since === null ? "" : signed(since));
    line.classList.toggle("chosen", chosen);
    const button = line.querySelector("button");
    if (button) button.setAttribute("aria-pressed", chosen);
  }
  build(columns, all) {
    this.table.tHead.replaceChildren(element("tr", {}, ...columns.map(([column, label]) => {
      const head = element("th", {scope: "col"}, element("button", {textContent: label, title: "Sort by this column", onclick: () => { this.sortBy(column), redraw(); }}));
      if (column === this.sort) head.setAttribute("aria-sort", this.falls ? "descending" : "ascending");
      return head;
    })));
    const line = (kind, first) => element("tr", {className: kind}, element("td", {}, first), ...columns.slice(1).map(() => element("td")));
    this.lines = all.map(row => {
      const [folder, file] = nameParts(row.name);
      const button = element("button", {className: "name", title: row.title, onclick: () => this.choose(row)}, swatch(row.colour), element("span", {className: "folder", textContent: folder}), element("span", {className: "file", textContent: file}));
      return line("choice_row", button);
    });
    for (const [name, title, colour, , kind] of TOTALS)
      this.lines.push(line(kind, element("span", {className: "name", title}, ...(colour ? [swatch(colour)] : []), name)));
    this.table.tBodies[0].replaceChildren(...this.lines);
  }
}
function swatch(colour) {
  const made = element("i", {className: "swatch"});
  made.style.background = colour;
  return made;
}
