// Live bytes by category at any moment, at a cost that does not depend on the number of events: sums are kept
// before each CHUNK of events, and a pyramid finds the event of most use in a range.
const CHUNK = 64, MOST = 11;

class Peaks {
  constructor(recording) {
    this.value = i => recording.live[i] + recording.pending[i];
    const n = recording.events, first = new Uint32Array(Math.ceil(n / CHUNK));
    for (let c = 0; c < first.length; ++c) first[c] = this.best(c * CHUNK, Math.min(n, (c + 1) * CHUNK));
    this.levels = [first];
    for (let below = first; below.length > 1;) {
      const level = new Uint32Array(Math.ceil(below.length / 2));
      for (let k = 0; k < level.length; ++k) level[k] = this.higher(below[2 * k], below[Math.min(2 * k + 1, below.length - 1)]);
      this.levels.push(below = level);
    }
  }
  higher(a, b) { return this.value(b) > this.value(a) ? b : a; }
  best(from, to) {
    let at = from;
    for (let i = from + 1; i < to; ++i) at = this.higher(at, i);
    return at;
  }
  // Returns: the moment of most use in [from, to). Requires: from < to
  in(from, to) {
    const first = Math.ceil(from / CHUNK), last = Math.floor(to / CHUNK);
    if (first >= last) return this.best(from, to);
    let at = first * CHUNK > from ? this.best(from, first * CHUNK) : from;
    if (last * CHUNK < to) at = this.higher(at, this.best(last * CHUNK, to));
    for (let low = first, high = last, level = 0; low < high; low >>= 1, high >>= 1, ++level) {
      if (low & 1) at = this.higher(at, this.levels[level][low++]);
      if (high & 1) at = this.higher(at, this.levels[level][--high]);
    }
    return at;
  }
}

const SIZES = [[4 << 10, "up to 4 KiB"], [32 << 10, "up to 32 KiB"], [256 << 10, "up to 256 KiB"], [1 << 20, "up to 1 MiB"], [4 << 20, "up to 4 MiB"], [16 << 20, "up to 16 MiB"],
  [64 << 20, "up to 64 MiB"], [256 << 20, "up to 256 MiB"], [2 ** 30, "up to 1 GiB"], [Infinity, "above 1 GiB"]];
const SIZE_COLOURS = ["#3b4cc0", "#5a78e4", "#7fa1f7", "#8fc3e8", "#7ecbb0", "#9bd27a", "#e3cf57", "#f2a541", "#e2673b", "#b7233a"];
const COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#c2a93b", "#5f7f95", "#a3a7ad"];

// names, colours: of the categories; of: the category of each block; others: the category of all other keys, or
// -1; since: what each category grew by since an earlier snapshot, if the page has one.
class Stack {
  // also: a key that has a category of its own, though it is not among the highest
  constructor(recording, by, recordingNames, also) {
    this.recording = recording, this.by = by, this.others = -1, this.also = also;
    this.of = new Uint8Array(recording.blocks);
    if (by === "size") this.bySize();
    else if (by === "stream") this.byKey(recording.stream, k => "stream " + recordingNames.streams[k]);
    else this.byKey(recording.site.map(site => recordingNames.sites[site][0]), k => recordingNames.lines[k], k => this.callsOf(k, recordingNames));
    if (by === "line" && recording.earlier) this.compare();
    const k = this.names.length, n = recording.events;
    this.sums = new Float64Array(k * Math.ceil(n / CHUNK)), this.now = new Float64Array(k), this.nowAt = -1;
    for (let i = 0; i < n; ++i) {
      if (i % CHUNK === 0) this.sums.set(this.now, k * i / CHUNK);
      this.apply(i);
    }
  }
  bySize() {
    const used = new Map();
    const size = b => { let c = 0; while (this.recording.bytes[b] > SIZES[c][0]) ++c; return c; };
    for (let b = 0; b < this.of.length; ++b) used.set(this.of[b] = size(b), 0);
    const all = [...used.keys()].sort((a, b) => a - b);
    const number = new Uint8Array(SIZES.length);
    all.forEach((c, i) => number[c] = i);
    for (let b = 0; b < this.of.length; ++b) this.of[b] = number[this.of[b]];
    this.names = all.map(c => SIZES[c][1]), this.colours = all.map(c => SIZE_COLOURS[c]), this.details = all.map(() => "");
    this.keys = [], this.shown = 0;
  }
  // The keys with the highest peaks, and the rest as one category.
  byKey(key, nameOf, detailOf = () => "") {
    const r = this.recording, now = new Map(), peak = new Map();
    for (let i = 0; i < r.events; ++i) {
      const b = r.what[i];
      if (r.kind[i] === ALLOC) {
        const bytes = (now.get(key[b]) || 0) + r.bytes[b];
        now.set(key[b], bytes);
        if (bytes > (peak.get(key[b]) || 0)) peak.set(key[b], bytes);
      } else if (r.kind[i] <= ASK) {
        now.set(key[b], now.get(key[b]) - r.bytes[b]);
      }
    }
    const byPeak = [...peak.keys()].sort((a, b) => peak.get(b) - peak.get(a));
    const wanted = byPeak.indexOf(this.also);
    if (wanted >= MOST) byPeak.splice(MOST - 1, 0, ...byPeak.splice(wanted, 1));
    const shown = byPeak.slice(0, byPeak.length <= MOST + 1 ? MOST + 1 : MOST), number = new Map(shown.map((k, i) => [k, i]));
    const others = byPeak.length - shown.length;
    this.keys = byPeak, this.shown = shown.length, this.key = key, this.nameOf = nameOf;
    for (let b = 0; b < this.of.length; ++b) { const n = number.get(key[b]); this.of[b] = n === undefined ? shown.length : n; }
    this.names = shown.map(nameOf), this.details = shown.map(detailOf), this.colours = shown.map((_, i) => COLOURS[i % COLOURS.length]);
    const most = byPeak.slice(shown.length, shown.length + 20).map(k => bytesText(peak.get(k)) + "  " + nameOf(k));
    if (others) this.others = shown.length, this.names.push(countText(others) + " others"), this.details.push(most.join("\n") + (others > most.length ? "\n…" : "")), this.colours.push("#a3a7ad");
  }
  // The keys of the last category, the highest first.
  inOthers() { return this.others < 0 ? [] : this.keys.slice(this.shown); }
  // Live bytes of some keys at a moment.
  sumsOf(keys, moment) {
    const r = this.recording, sums = new Map(keys.map(k => [k, 0]));
    if (!keys.length) return [];
    for (let b = 0; b < r.blocks; ++b) {
      if (r.born[b] > moment || r.freed[b] <= moment) continue;
      const sum = sums.get(this.key[b]);
      if (sum !== undefined) sums.set(this.key[b], sum + r.bytes[b]);
    }
    return keys.map(k => sums.get(k));
  }
  // A line is the same in both snapshots if its name is.
  compare() {
    const r = this.recording, before = new Map(r.earlier), last = r.events - 1, at = this.sumsOf(this.keys, last);
    const then = r.earlier.reduce((sum, [, bytes]) => sum + bytes, 0);
    const growth = new Map();
    this.keys.forEach((k, i) => {
      growth.set(k, at[i] - (before.get(this.nameOf(k)) || 0));
    });
    this.growth = growth;
    this.since = this.names.map((_, i) => i === this.others ? this.inOthers().reduce((sum, k) => sum + growth.get(k), 0) : growth.get(this.keys[i]));
    this.sinceThen = r.live[last] - then;  // of all lines, those too that hold nothing in this recording
  }
  sinceOf(key) { return this.growth ? this.growth.get(key) : 0; }
  // The calls that led to a line's most bytes.
  callsOf(line, recordingNames) {
    const r = this.recording, sums = new Map();
    for (let b = 0; b < r.blocks; ++b) if (recordingNames.sites[r.site[b]][0] === line) sums.set(r.site[b], (sums.get(r.site[b]) || 0) + r.bytes[b]);
    const most = [...sums.keys()].reduce((a, b) => sums.get(b) > sums.get(a) ? b : a);
    return (sums.size > 1 ? "of " + countText(sums.size) + " ways here, that of the most bytes:\n" : "") + callsText(most);
  }
  apply(i) {
    const r = this.recording, kind = r.kind[i];
    if (kind === ALLOC) this.now[this.of[r.what[i]]] += r.bytes[r.what[i]];
    else if ((kind === FREE || kind === ASK) && r.freed[r.what[i]] === i) this.now[this.of[r.what[i]]] -= r.bytes[r.what[i]];
  }
  // Bytes by category at a moment, always in the same array.
  at(moment) {
    const chunk = Math.floor(moment / CHUNK), k = this.names.length;
    if (!(this.nowAt <= moment && Math.floor(this.nowAt / CHUNK) === chunk)) this.now.set(this.sums.subarray(chunk * k, chunk * k + k)), this.nowAt = chunk * CHUNK - 1;
    while (this.nowAt < moment) this.apply(++this.nowAt);
    return this.now;
  }
}
