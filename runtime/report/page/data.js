// A device's recording, from the numbers that runtime/report/page.cpp wrote: events by time, blocks, mapped
// ranges. An event's moment is its number: "at moment i" is after events 0 … i. A block is live from `born`
// until before `freed`, then pending until before `gone`. The first `before` events are the initial state.
const ALLOC = 0, FREE = 1, ASK = 2, SETTLE = 3, MAP = 4, UNMAP = 5, OOM = 6;

function decoded(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

class Recording {
  constructor(meta, marks = []) {
    const n = this.events = meta.events, blocks = meta.blocks, ranges = meta.ranges;
    this.earlier = meta.earlier, this.pools = meta.pools, this.device = meta.device, this.beginUs = meta.begin_us;
    this.before = Math.min(meta.before, Math.max(n - 1, 0)), this.hasHistory = n > meta.before, this.blocks = blocks;
    this.kind = new Uint8Array(n), this.what = new Uint32Array(n), this.us = new Float64Array(n);
    this.live = new Float64Array(n), this.pending = new Float64Array(n), this.reserved = new Float64Array(n);  // bytes after each event
    this.at = new Float64Array(blocks), this.bytes = new Float64Array(blocks), this.site = new Uint32Array(blocks), this.stream = new Uint16Array(blocks);
    this.born = new Uint32Array(blocks).fill(n), this.freed = new Uint32Array(blocks).fill(n), this.gone = new Uint32Array(blocks).fill(n);
    this.user = new Uint16Array(blocks);  // of a pending block: number of the stream that still uses it, plus one
    this.ranges = [], this.failures = [], this.rangeCount = ranges;
    this.read(decoded(meta.data));
    this.byAddress = Uint32Array.from({length: blocks}, (_, b) => b).sort((a, b) => this.at[a] - this.at[b] || a - b);
    this.marks = marks.map(([us, name]) => ({name, event: Math.max(this.before, this.firstAfter(us - this.beginUs))})).filter(m => m.event < n);
    this.peak = this.before;
    for (let i = this.before; i < n; ++i) if (this.live[i] + this.pending[i] > this.live[this.peak] + this.pending[this.peak]) this.peak = i;
  }

  read(bytes) {
    let next = 0, us = 0, live = 0, pending = 0, reserved = 0, taken = 0, blockAt = 0, rangeAt = 0;
    const number = () => {
      let value = 0, scale = 1;
      for (;;) {
        const b = bytes[next++];
        value += (b & 127) * scale;
        if (b < 128) return value;
        scale *= 128;
      }
    };
    const away = () => { const n = number(); return n % 2 ? -(n + 1) / 2 : n / 2; };
    const mapped = new Map();  // by address
    for (let i = 0; i < this.events; ++i) {
      const kind = this.kind[i] = bytes[next++];
      us += number();
      this.us[i] = us;
      if (kind === ALLOC) {
        const b = this.what[i] = taken++;
        this.at[b] = blockAt += away(), this.bytes[b] = number(), this.site[b] = number(), this.stream[b] = number(), this.born[b] = i;
        live += this.bytes[b];
      } else if (kind <= SETTLE) {
        const b = this.what[i] = taken - number();
        if (kind === ASK) this.user[b] = number(), pending += this.bytes[b];
        if (this.freed[b] === this.events) this.freed[b] = i, live -= this.bytes[b];
        else pending -= this.bytes[b];
        if (kind !== ASK) this.gone[b] = i;
      } else if (kind === OOM) {
        this.what[i] = this.failures.push({event: i, bytes: number(), site: number(), stream: number()}) - 1;
      } else {
        const at = rangeAt += away(), size = number(), stream = number();
        reserved += kind === MAP ? size : -size;
        if (kind === MAP) this.map(mapped, {at, bytes: size, stream, born: i, gone: this.events});
        else this.unmap(mapped, at, size, i);
      }
      this.live[i] = live, this.pending[i] = pending, this.reserved[i] = reserved;
    }
    this.ranges.sort((a, b) => a.at - b.at);
  }
  map(mapped, range) {
    mapped.set(range.at, range);
    this.ranges.push(range);
  }
  // An unmapped range was mapped before. A range from before the recording may span several, or a part.
  unmap(mapped, at, size, i) {
    const exact = mapped.get(at);
    if (exact && exact.bytes === size) {
      exact.gone = i;
      mapped.delete(at);
      return;
    }
    for (const r of [...mapped.values()]) {
      const end = r.at + r.bytes;
      if (r.at >= at + size || end <= at) continue;
      r.gone = i;
      mapped.delete(r.at);
      if (r.at < at) this.map(mapped, {...r, bytes: at - r.at, born: i, gone: this.events});
      if (end > at + size) this.map(mapped, {...r, at: at + size, bytes: end - at - size, born: i, gone: this.events});
    }
  }

  // The first moment whose time is later than `us`.
  firstAfter(us) {
    let low = 0, high = this.events;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.us[middle] <= us) low = middle + 1; else high = middle;
    }
    return low;
  }
  // The last moment whose time is at most `us`.
  momentAt(us) { return Math.max(this.firstAfter(us) - 1, this.before); }

  // All memory held from the driver at a moment, by address: contiguous stretches with their blocks. The last
  // answer is kept, because a view that scrolls or zooms asks for the same moment again.
  layout(moment, stream) {
    if (this.laid && this.laid.moment === moment && this.laid.stream === stream) return this.laid.stretches;
    const stretches = this.layoutOf(moment, stream);
    this.laid = {moment, stream, stretches};
    return stretches;
  }
  layoutOf(moment, stream) {
    const stretches = [];
    for (const r of this.ranges) {
      if (r.born > moment || r.gone <= moment || (stream !== undefined && r.stream !== stream)) continue;
      const last = stretches[stretches.length - 1];
      if (last && last.stream === r.stream && last.at + last.bytes === r.at) last.bytes += r.bytes;
      else stretches.push({at: r.at, bytes: r.bytes, stream: r.stream, blocks: [], live: 0, pending: 0});
    }
    let s = 0;
    for (const b of this.byAddress) {
      if (this.born[b] > moment || this.gone[b] <= moment) continue;
      while (s < stretches.length && stretches[s].at + stretches[s].bytes <= this.at[b]) ++s;
      if (s === stretches.length) break;
      if (this.at[b] < stretches[s].at) continue;
      stretches[s].blocks.push(b);
      if (this.freed[b] <= moment) stretches[s].pending += this.bytes[b]; else stretches[s].live += this.bytes[b];
    }
    return stretches;
  }
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
function bytesText(n) {
  let unit = 0;
  while (n >= 1024 && unit < 4) n /= 1024, ++unit;
  return (unit === 0 || n >= 100 ? Math.round(n) : n >= 10 ? n.toFixed(1) : n.toFixed(2)) + " " + UNITS[unit];
}
function timeText(us) {
  if (us < 1000) return us.toFixed(0) + " µs";
  if (us < 1e6) return (us / 1e3).toFixed(us < 1e4 ? 3 : 1) + " ms";
  return (us / 1e6).toFixed(us < 1e7 ? 3 : 1) + " s";
}
const scaleText = n => bytesText(n).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");  // 12 GiB, not 12.0 GiB
const countText = n => n.toLocaleString("en");
