// The page: selection and hovering, and their effects. Everything is drawn at most once per frame.
const its = id => document.getElementById(id);
const names = JSON.parse(its("recording").textContent);
const chart = new Chart(its("chart")), overview = new Overview(its("overview"), chart), map = new MemoryMap(its("map"), its("map_frame"), its("map_height"), names);
const state = {by: names.lines.length > 2 ? "line" : "size", moment: 0, hovered: null, chosen: -1, lit: -1, changed: true};
const legend = new Legend(its("legend"), its("found"), row => {
  if (row.key !== undefined) restack(state.by, row.key), state.chosen = stack.keys.indexOf(row.key);
  else state.chosen = state.chosen === row.at ? -1 : row.at;
  redraw();
});
let recording, stack, lastDraw = 0;

function text(at, content) { if (at.textContent !== content) at.textContent = content; }
function choice(at, options, chosen, choose) {
  for (const [value, label] of options) {
    const button = at.appendChild(Object.assign(document.createElement("button"), {textContent: label}));
    const check = one => {
      for (const b of at.children) b.setAttribute("aria-checked", b === one), b.tabIndex = b === one ? 0 : -1;
    };
    button.setAttribute("role", "radio");
    button.onclick = () => { check(button), choose(value), redraw(); };
    if (value === chosen) check(button);
  }
  // Arrows choose among the buttons of a group, as in any group of radio buttons.
  at.onkeydown = e => {
    const step = {ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1}[e.key], count = at.children.length;
    if (!step) return;
    const next = at.children[([...at.children].indexOf(e.target) + step + count) % count];
    e.preventDefault(), e.stopPropagation(), next.focus(), next.click();
  };
}

const recordings = new Map();
function showDevice(i) {
  if (!recordings.has(i)) {
    const r = new Recording(names.devices[i], names.marks);
    delete names.devices[i].data;
    recordings.set(i, {r, peaks: new Peaks(r)});
  }
  recording = recordings.get(i).r;
  chart.view = null;
  chart.show(recording, recordings.get(i).peaks);
  map.show(recording);
  const failure = recording.failures.at(-1);
  state.moment = failure ? failure.event : recording.peak, state.hovered = null;
  its("failure").hidden = !failure;
  its("arena").replaceChildren(new Option("all streams", ""), ...map.lanes.map(l => new Option("stream " + names.streams[l.stream], l.stream)));
  restack(state.by), facts();
}
function restack(by, also) {
  state.by = by, state.chosen = -1;
  stack = new Stack(recording, by, names, also);
}
const times = count => count === 1 ? "once" : countText(count) + " times";
function facts() {
  const r = recording, most = r.live[r.peak] + r.pending[r.peak];
  let reserved = 0;
  for (let i = r.before; i < r.events; ++i) reserved = Math.max(reserved, r.reserved[i]);
  const all = [[r.hasHistory ? "most live and pending" : "live and pending", bytesText(most)],
    [r.hasHistory ? "most reserved" : "reserved", bytesText(reserved)]];
  if (r.hasHistory) all.push(["events", countText(r.events - r.before)], ["over", timeText(r.us[r.events - 1] - r.us[r.before])]);
  else all.push(["no history:", "the state at one moment. What came before is not known"]);
  if (r.hasHistory && r.before && r.live[r.before - 1])
    all.push(["live before the recording began", bytesText(r.live[r.before - 1])]);
  const unknown = r.bytes.filter((bytes, b) => bytes === 0 && r.born[b] < r.before).length;
  if (unknown) all.push(["of unknown size, from before", countText(unknown) + (unknown === 1 ? " block" : " blocks")]);
  if (r.failures.length) all.push(["out of memory", times(r.failures.length)]);
  if (names.since) all.push(["compared with", names.since]);
  for (const [name, live, held, limit] of r.pools) all.push(["pool " + name, bytesText(live) + " live, " + bytesText(held) + " reserved" + (limit ? " of " + bytesText(limit) : "")]);
  its("facts").replaceChildren(...all.map(([what, value]) => {
    const span = document.createElement("span");
    span.append(what + " ", Object.assign(document.createElement("b"), {textContent: value}));
    return span;
  }));
}

function siteText(site) { return names.lines[names.sites[site][0]]; }
// Calls with a source line; where none has one, all. Innermost first.
function callsText(site) {
  const all = [];
  for (let call = names.sites[site][1]; call; call = names.calls[2 * call - 2]) all.push(names.frames[names.calls[2 * call - 1]]);
  const lines = all.filter(frame => /:\d+$/.test(frame)), shown = (lines.length ? lines : all).map(frame => frame.length > 200 ? frame.slice(0, 200) + "…" : frame);
  return shown.slice(0, 12).join("\n") + (shown.length > 12 ? "\n… " + countText(shown.length - 12) + " more" : "");
}
function eventText(i) {
  const r = recording, kind = r.kind[i], what = r.what[i];
  if (!r.hasHistory) return "";
  if (i < r.before) return "before the recording began";
  if (kind === MAP || kind === UNMAP) return (kind === MAP ? "memory taken from" : "memory given back to") + " the driver";
  if (kind === OOM) return "OUT OF MEMORY: " + bytesText(r.failures[what].bytes) + " for stream " + names.streams[r.failures[what].stream] + " at " + siteText(r.failures[what].site);
  const block = bytesText(r.bytes[what]) + " of stream " + names.streams[r.stream[what]] + ", taken at " + siteText(r.site[what]);
  if (kind === ALLOC) return "took " + block;
  if (kind === SETTLE) return "no longer used by another stream: " + block;
  return "gave back " + block + (kind === ASK ? ", which " + (r.user[what] ? "stream " + names.streams[r.user[what] - 1] : "another stream") + " still uses" : "");
}
function blockText(b, moment) {
  const r = recording, pending = r.freed[b] <= moment;
  const when = i => i < r.before ? "before the recording" : "operation " + countText(i - r.before) + " (" + timeText(r.us[i] - r.us[r.before]) + ")";
  return bytesText(r.bytes[b]) + (pending ? ", given back; " + (r.user[b] ? "stream " + names.streams[r.user[b] - 1] : "another stream") + " still uses it" : ", live") +
    "\nstream " + names.streams[r.stream[b]] + ", at 0x" + r.at[b].toString(16) +
    "\ntaken: " + when(r.born[b]) + "\ngiven back: " + (r.freed[b] < r.events ? when(r.freed[b]) : "not in this recording") +
    "\n" + siteText(r.site[b]) + "\n" + callsText(r.site[b]);
}

// What the moment is, where it has a name.
function momentName(moment) {
  const r = recording, failure = r.failures.find(f => f.event === moment);
  if (failure) return r.failures.length === 1 ? "The failure" : "Failure " + countText(r.failures.indexOf(failure) + 1) + " of " + countText(r.failures.length);
  return moment === r.peak ? "The peak" : "";
}
function roundName(moment) {
  const mark = recording.marks.findLast(m => m.event <= moment);
  return mark ? mark.name : "";
}
function tellMoment(moment) {
  const r = recording, held = holes(r, map.layout);
  const place = ["operation " + countText(moment - r.before), timeText(r.us[moment] - r.us[r.before]), roundName(moment)];
  const title = r.hasHistory ? [momentName(moment), ...place].filter(part => part).join(", ") : "The state at one moment";
  text(its("moment_text"), title[0].toUpperCase() + title.slice(1));
  const inHoles = held.count ? " in " + countText(held.count) + (held.count === 1 ? " hole" : " holes") : "";
  const all = [["live", bytesText(r.live[moment])], ["pending", r.pending[moment] ? bytesText(r.pending[moment]) : ""],
    ["free", bytesText(held.bytes) + inHoles], ["reserved", bytesText(r.reserved[moment])]].filter(([, value]) => value);
  its("moment_numbers").replaceChildren(...all.map(([what, value]) => element("span", {}, what + " ", element("b", {textContent: value}))));
  text(its("moment_event"), eventText(moment));
  const failure = r.failures.find(f => f.event === moment);
  its("why").hidden = !failure;
  if (failure) text(its("why"), failureText(r, failure, names));
  if (state.hovered !== null) return;
  const told = its("moment_text").textContent + ": " + all.map(pair => pair.join(" ")).join(", ") + ". " + eventText(moment);
  text(its("spoken"), told);
  const slider = its("chart");
  slider.setAttribute("aria-valuemin", 0), slider.setAttribute("aria-valuemax", r.events - 1 - r.before);
  slider.setAttribute("aria-valuenow", moment - r.before), slider.setAttribute("aria-valuetext", told);
}
function draw() {
  state.changed = false;
  const begin = performance.now(), moment = state.hovered ?? state.moment, r = recording;
  chart.draw(stack, {moment: state.moment, hovered: state.hovered, chosen: state.chosen, life: state.lit >= 0 ? [r.born[state.lit], r.gone[state.lit]] : null});
  overview.draw(stack);
  map.draw(stack, moment, state.lit);
  tellMoment(moment);
  text(its("scale"), bytesText(map.rowBytes) + " a row");
  legend.draw(stack, state.moment, moment, state.chosen);
  lastDraw = performance.now() - begin;
}
function redraw() {
  if (!state.changed) state.changed = true, requestAnimationFrame(draw);
}
function setMoment(moment) {
  state.moment = Math.min(Math.max(moment, recording.before), recording.events - 1);
  chart.reveal(state.moment), redraw();
}
function tip(event, content) {
  const box = its("tip");
  box.hidden = !content;
  if (!content) return;
  text(box, content);
  const x = event.clientX + 16, y = event.clientY + 16;
  box.style.left = Math.min(x, innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = (y + box.offsetHeight > innerHeight - 8 ? event.clientY - box.offsetHeight - 12 : y) + "px";
}

function dragged(canvas, moved, clicked) {
  let from = null, far = 0;
  canvas.addEventListener("pointerdown", e => { from = e.offsetX, far = 0, canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointermove", e => {
    if (from === null) return;
    far += Math.abs(e.offsetX - from);
    if (far > 3) moved(e.offsetX, from), from = e.offsetX, redraw();
  });
  canvas.addEventListener("pointerup", e => {
    if (from !== null && far <= 3) clicked(e.offsetX);
    from = null;
  });
}
function listen() {
  const at = its("chart");
  at.addEventListener("wheel", e => { e.preventDefault(), chart.zoom(1.0018 ** e.deltaY, e.offsetX), redraw(); }, {passive: false});
  its("overview").addEventListener("wheel", e => { e.preventDefault(), chart.zoom(1.0018 ** e.deltaY, chart.pixelOf(overview.xAt(e.offsetX))), redraw(); }, {passive: false});
  dragged(at, (to, from) => chart.moveBy(chart.xAt(from) - chart.xAt(to)), x => setMoment(chart.momentUnder(x)));
  dragged(its("overview"), (to, from) => chart.moveBy(overview.xAt(to) - overview.xAt(from)), x => chart.moveBy(overview.xAt(x) - (chart.view[0] + chart.view[1]) / 2));
  at.addEventListener("pointermove", e => {
    state.hovered = e.offsetX < chart.left ? null : chart.momentUnder(e.offsetX);
    redraw();
    if (state.hovered === null) return tip(e, "");
    const m = state.hovered, r = recording;
    const sums = bytesText(r.live[m] + r.pending[m]) + " live and pending, " + bytesText(r.reserved[m]) + " reserved";
    const place = "operation " + countText(m - r.before) + ", " + timeText(r.us[m] - r.us[r.before]) + "\n" + eventText(m);
    tip(e, r.hasHistory ? sums + "\n" + place : sums);
  });
  at.addEventListener("pointerleave", e => { state.hovered = null, tip(e, ""), redraw(); });
  its("map").addEventListener("pointermove", e => {
    const found = map.under(e.offsetX, e.offsetY);
    state.lit = found && found.block !== undefined ? found.block : -1;
    redraw();
    if (!found) return tip(e, "");
    if (found.block !== undefined) return tip(e, blockText(found.block, map.moment));
    tip(e, found.hole ? bytesText(found.hole.bytes) + " free\nof stream " + names.streams[found.hole.stream] + ", at 0x" + found.hole.at.toString(16) : "not mapped at this moment");
  });
  its("map").addEventListener("pointerleave", e => { state.lit = -1, tip(e, ""), redraw(); });
  its("map_frame").addEventListener("scroll", redraw);
  its("find").oninput = e => { legend.search = e.target.value, redraw(); };
  const show = () => { chart.view = [...chart.whole], redraw(); };
  its("whole").onclick = show, its("peak").onclick = () => setMoment(recording.peak);
  // From the last failure on to the one before it, then around.
  its("failure").onclick = () => {
    const before = recording.failures.filter(f => f.event < state.moment).at(-1) || recording.failures.at(-1);
    if (before) setMoment(before.event);
  };
  its("closer").onclick = () => { map.scale(map.closeness + 1), redraw(); };
  its("farther").onclick = () => { map.scale(map.closeness - 1), redraw(); };
  its("arena").onchange = e => { map.choose(e.target.value === "" ? undefined : +e.target.value), redraw(); };
  its("device").onchange = e => { showDevice(+e.target.value), redraw(); };
  addEventListener("keydown", e => {
    if (e.target.matches("select, input, [role=radio]") || e.ctrlKey || e.metaKey || e.altKey) return;
    const act = {
      ArrowLeft: () => setMoment(state.moment - 1), ArrowRight: () => setMoment(state.moment + 1),
      p: () => setMoment(recording.peak), f: its("failure").onclick, "/": () => its("find").focus(), 0: show,
      "+": its("closer").onclick, "-": its("farther").onclick}[e.key];
    if (act) act(), e.preventDefault();
  });
  new ResizeObserver(redraw).observe(document.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

const [title, ...detail] = names.title.split("\n");
text(its("title"), title), text(its("detail"), detail.join(" ")), its("detail").hidden = !detail.length;
document.title = title;
document.querySelector("main").classList.toggle("compared", Boolean(names.since));
if (names.devices.length) {
  its("device").replaceChildren(...names.devices.map((d, i) => new Option("gpu:" + d.device, i)));
  its("device_choice").hidden = names.devices.length < 2;
  choice(its("by"), [["size", "By size"], ["line", "By line"], ["stream", "By stream"]], state.by, restack);
  choice(its("axis"), [["operations", "Operations"], ["time", "Time"]], "operations", axis => chart.setAxis(axis));
  showDevice(0), listen(), draw();
} else {
  text(its("facts"), "Nothing was recorded.");
}
